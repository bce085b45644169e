"""``undo`` gives back all of an unused acquisition; fire times from a wrong clock are refused."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.testing.contract.base import LONG, ContractBase, acquired, expired, granted_soon, record_of
from shedlock_py.testing.contract.fencing import FIRE_TIME, token_of

MICROSECOND = timedelta(microseconds=1)
HOUR = timedelta(hours=1)


class GivingBackContract(ContractBase):
    """The promises of ``undo``, of ``forget_fire_time``, and of the limit of fire times.

    The two methods are not in the protocol :class:`LockProvider`, so that providers written before them still satisfy
    it.
    """

    def test_i12_undo_frees_at_once_without_minimum_hold(self, provider: Any, other: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG, LONG))
        assert provider.undo(lease) is True
        assert not lease.is_trusted()
        assert lease.has_ended()
        assert not record_of(other, name).is_held
        successor = acquired(other, LockRequest(name, LONG))
        assert token_of(successor) > token_of(lease)
        assert provider.undo(lease) is False
        assert provider.release(lease) is False
        assert record_of(other, name).is_held

    def test_i2_undo_acts_on_its_own_acquisition_only(self, provider: Any, other: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG))
        other.force_release(name)
        acquired(other, LockRequest(name, LONG))
        before = record_of(other, name)
        assert provider.undo(lease) is False
        after = record_of(other, name)
        assert (after.locked_by, after.lock_until) == (before.locked_by, before.lock_until)

    def test_i12_undo_of_an_expired_lease_frees_nothing_and_gives_its_fire_time_back(
        self, provider: Any, other: LockProvider, name: str
    ) -> None:
        lease = expired(provider, name, fire_time=FIRE_TIME)
        before = record_of(provider, name)
        provider.undo(lease)
        assert record_of(provider, name).lock_until <= before.read_at
        granted_soon(other, LockRequest(name, LONG, fire_time=FIRE_TIME))

    def test_i11_undo_gives_the_fire_time_back(self, provider: Any, other: LockProvider, name: str) -> None:
        former = FIRE_TIME - HOUR
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=former)))
        assert provider.undo(acquired(provider, LockRequest(name, LONG, LONG, fire_time=FIRE_TIME))) is True
        assert other.acquire(LockRequest(name, LONG, fire_time=former)) is None
        other.release(acquired(other, LockRequest(name, LONG, fire_time=FIRE_TIME)))
        assert provider.acquire(LockRequest(name, LONG, fire_time=FIRE_TIME)) is None
        assert record_of(provider, name).last_fire_time == FIRE_TIME

    def test_i11_undo_of_a_take_over_gives_no_fire_time_back(
        self, provider: Any, other: LockProvider, name: str
    ) -> None:
        """A take-over does not compare fire times, so this fire time may have run before."""
        other.release(acquired(other, LockRequest(name, LONG, fire_time=FIRE_TIME)))
        assert provider.undo(provider.take_over(LockRequest(name, LONG, fire_time=FIRE_TIME))) is True
        assert other.acquire(LockRequest(name, LONG, fire_time=FIRE_TIME)) is None

    def test_i11_undo_of_the_earliest_fire_time_there_is(self, provider: Any, name: str) -> None:
        earliest = datetime.min.replace(tzinfo=UTC)
        with suppress(ProviderError):  # the earliest time of some stores is later
            assert provider.undo(acquired(provider, LockRequest(name, LONG, fire_time=earliest))) is True

    def test_i11_undo_of_a_run_without_fire_time_leaves_that_of_others(self, provider: Any, name: str) -> None:
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME)))
        provider.undo(acquired(provider, LockRequest(name, LONG)))
        assert record_of(provider, name).last_fire_time == FIRE_TIME

    def test_i11_undo_gives_no_fire_time_back_that_somebody_else_has_run(
        self, provider: Any, other: LockProvider, name: str
    ) -> None:
        lease = acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME))
        other.force_release(name)
        other.release(acquired(other, LockRequest(name, LONG, fire_time=FIRE_TIME + HOUR)))
        provider.undo(lease)
        for ran in (FIRE_TIME, FIRE_TIME + HOUR):
            assert other.acquire(LockRequest(name, LONG, fire_time=ran)) is None

    def test_i11_a_fire_time_beyond_the_tolerance_is_an_error(self, provider: LockProvider, name: str) -> None:
        """If a replica's clock is a day ahead, it must not stop the job on every other replica for a day."""
        now = self._now(provider, f"{name}/clock")
        wrong = LockRequest(name, LONG, fire_time=now + timedelta(days=1), holder="wrong-clock")
        for grant in (provider.acquire, provider.take_over):
            with pytest.raises(
                ProviderError, match=r"fire time .* later than the store's clock .*wrong-clock"
            ) as caught:
                grant(wrong)
            assert not isinstance(caught.value, ProviderUnreachable)
            assert caught.value.lock_name == name
        assert provider.record(name) is None
        lease = acquired(provider, LockRequest(name, LONG, fire_time=now))
        with pytest.raises(ProviderError, match="later than the store's clock"):
            provider.acquire(wrong)  # also while it is held
        provider.release(lease)
        before = provider.record(name)
        with pytest.raises(ProviderError, match="later than the store's clock"):
            provider.acquire(wrong)
        after = record_of(provider, name)
        assert before is not None
        assert (after.locked_by, after.last_fire_time) == (before.locked_by, before.last_fire_time)
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=now + timedelta(seconds=1))))

    def test_i11_a_fire_time_within_the_tolerance_is_granted(self, provider: LockProvider, name: str) -> None:
        soon = self._now(provider, f"{name}/clock") + timedelta(minutes=4)
        acquired(provider, LockRequest(name, LONG, fire_time=soon))
        assert record_of(provider, name).last_fire_time == soon

    def test_i11_forget_fire_time(self, provider: Any, other: LockProvider, name: str) -> None:
        assert provider.forget_fire_time(name) is False
        lease = acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME))
        assert provider.forget_fire_time(name) is True
        record = record_of(provider, name)
        assert (record.last_fire_time, record.is_held) == (None, True)
        assert provider.forget_fire_time(name) is False
        assert provider.release(lease) is True
        acquired(other, LockRequest(name, LONG, fire_time=FIRE_TIME - HOUR))

    def _now(self, provider: LockProvider, name: str) -> datetime:
        """The store's clock."""
        provider.release(acquired(provider, LockRequest(name, LONG)))
        return record_of(provider, name).read_at.astimezone(UTC)
