"""Recovery: the record of a run shows whether its holder died, and one replica claims the fire time again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockProvider, LockRecord, LockRequest
from shedlock_py.testing.contract.base import (
    LONG,
    SHORT,
    ContractBase,
    acquired,
    eventually,
    granted_soon,
    record_of,
)
from shedlock_py.testing.contract.fencing import FIRE_TIME, token_of
from shedlock_py.testing.contract.threads import THREADS, at_once

LATER = FIRE_TIME + timedelta(seconds=1)


def dead_runs(provider: LockProvider, names: Sequence[str], holder: str = "dead") -> list[LockRecord]:
    """Return the records of runs of :data:`FIRE_TIME` after their holder died: each lease has expired without a
    release."""
    for name in names:
        acquired(provider, LockRequest(name, SHORT, holder=holder, fire_time=FIRE_TIME))
    return [expired_record(provider, name) for name in names]


def dead_run(provider: LockProvider, name: str) -> LockRecord:
    """Return the record of a dead run, as :func:`dead_runs` does."""
    return dead_runs(provider, [name])[0]


def expired_record(provider: LockProvider, name: str) -> LockRecord:
    """Return the record of a lease that is about to end, after its end."""

    def found() -> LockRecord | None:
        record = record_of(provider, name)
        return None if record.is_held else record

    return eventually(found, f"the end of the lease of {name!r}")


def again(name: str) -> LockRequest:
    """Return the request that recovers a dead holder's run."""
    return LockRequest(name, LONG, holder="recoverer", fire_time=FIRE_TIME)


def says(is_released: bool, name: str, *replicas: LockProvider) -> None:
    """Check ``is_released`` in the record: whether its run was ended."""
    for replica in replicas:
        assert record_of(replica, name).is_released is is_released
        assert [record.is_released for record in replica.records(name)] == [is_released]


@pytest.mark.usefixtures("recovery")
class RecoveryContract(ContractBase):
    """The promises of a record's ``is_released``, and of ``recover``.

    ``recover`` is not in the protocol :class:`LockProvider`: providers that are made with the kit have it.
    """

    def test_i14_the_record_says_whether_a_run_was_ended(self, provider: Any, other: LockProvider, name: str) -> None:
        """A release, an undo, and an operator end a run."""
        lease = acquired(provider, LockRequest(name, LONG))
        says(False, name, provider, other)
        assert provider.extend(lease, "2m") is lease
        says(False, name, provider)
        assert provider.release(lease) is True
        says(True, name, provider, other)
        lease = acquired(other, LockRequest(name, LONG))
        says(False, name, provider)
        other.release(lease)
        lease = acquired(provider, LockRequest(name, LONG, LONG))
        assert provider.undo(lease) is True
        says(True, name, other)
        lease = provider.take_over(LockRequest(name, LONG))
        says(False, name, provider)
        assert other.force_release(name) is True
        says(True, name, provider, other)
        assert provider.release(lease) is False
        says(True, name, provider)

    def test_i14_the_record_says_so_during_a_minimum_hold(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        """The run is ended twice if an operator also ends its minimum hold."""
        assert provider.release(acquired(provider, LockRequest(name, LONG, LONG))) is True
        assert record_of(provider, name).is_held
        says(True, name, provider, other)
        assert other.force_release(name) is True
        says(True, name, provider, other)

    def test_i14_an_operators_pause_is_ended_by_resume(self, provider: Any, name: str) -> None:
        if not hasattr(provider, "pause"):
            pytest.skip("this provider has no pause")
        provider.pause(name, "1m")
        says(False, name, provider)
        assert provider.resume(name) is True
        says(True, name, provider)

    def test_i14_a_finished_run_never_looks_like_a_dead_one(
        self, provider: Any, other: LockProvider, name: str
    ) -> None:
        """One run ends during its minimum hold, which passes. The other is extended and ended between two reads."""

        def request(ending: str, at_least: str = "0s") -> LockRequest:
            return LockRequest(f"{name}/{ending}", LONG, at_least, fire_time=FIRE_TIME)

        ended = acquired(provider, request("minimum-hold", SHORT))
        extended = acquired(provider, request("extended"))
        seen = [_as_if_expired(record_of(other, lease.name)) for lease in (ended, extended)]
        assert provider.extend(extended, "2m") is extended
        for lease in (ended, extended):
            assert provider.release(lease) is True
        lost = acquired(provider, LockRequest(f"{name}/dead", SHORT))
        expired_record(provider, ended.name)
        for record in seen:
            says(True, record.name, provider, other)
            assert other.recover(again(record.name), record) is None  # type: ignore[attr-defined]
            says(True, record.name, provider)
        expired_record(provider, lost.name)
        says(False, lost.name, provider, other)

    def test_i1_of_n_racers_one_recovers_a_run(self, provider: Any, other: Any, name: str) -> None:
        dead = dead_run(provider, name)
        assert (dead.is_released, dead.recoveries) == (False, 0)
        leases = at_once(THREADS, lambda index: (provider, other)[index % 2].recover(again(name), dead))
        [lease] = [lease for lease in leases if lease]
        assert lease.is_trusted()
        record = record_of(other, name)
        assert (record.locked_by, record.is_held, record.is_released) == (lease.locked_by, True, False)
        assert (record.holder, record.recoveries, record.last_fire_time) == ("recoverer", 1, FIRE_TIME)
        assert record.locked_at >= dead.lock_until
        assert token_of(lease) == record.fencing_token
        assert record.fencing_token > (dead.fencing_token or 0), "I7"

    def test_i11_a_recovered_run_runs_once_more(self, provider: Any, other: Any, name: str) -> None:
        """``acquire`` does not get the fire time while the recovery runs, nor after its end."""
        dead = dead_run(provider, name)
        assert other.acquire(again(name)) is None
        lease = provider.recover(again(name), dead)
        assert other.acquire(again(name)) is None
        assert provider.extend(lease, "2m") is lease
        assert provider.release(lease) is True
        says(True, name, provider, other)
        assert other.acquire(again(name)) is None
        assert other.recover(again(name), dead) is None
        assert record_of(other, name).last_fire_time == FIRE_TIME
        acquired(other, LockRequest(name, LONG, fire_time=LATER))

    def test_i2_the_late_holder_of_a_recovered_run_changes_nothing(self, provider: Any, other: Any, name: str) -> None:
        late = acquired(provider, LockRequest(name, SHORT, fire_time=FIRE_TIME))
        lease = other.recover(again(name), expired_record(other, name))
        before = record_of(other, name)
        assert provider.extend(late, "1h") is None
        assert provider.release(late) is False
        assert record_of(other, name) == before
        assert other.release(lease) is True

    def test_i14_a_run_is_recovered_again_and_each_time_is_counted(self, provider: Any, other: Any, name: str) -> None:
        dead = dead_run(provider, name)
        tokens = [dead.fencing_token]
        for recoveries in (1, 2):
            request = LockRequest(name, SHORT, fire_time=FIRE_TIME)
            tokens.append(token_of(eventually(partial(provider.recover, request, dead), "a recovery")))
            dead = expired_record(other, name)
            assert (dead.is_released, dead.recoveries, dead.last_fire_time) == (False, recoveries, FIRE_TIME)
        assert tokens == sorted({*tokens}, key=lambda token: token or 0)
        granted_soon(other, LockRequest(name, LONG, fire_time=LATER))
        assert record_of(provider, name).recoveries == 0

    def test_i1_a_record_that_has_changed_is_not_recovered(self, provider: Any, other: Any, name: str) -> None:
        changes: dict[str, Callable[[LockRecord], Any]] = {
            "recovered": lambda record: other.recover(again(record.name), record),
            "recovered and released": lambda record: other.release(other.recover(again(record.name), record)),
            "recovered and freed": lambda record: [
                other.recover(again(record.name), record),
                provider.force_release(record.name),
            ],
            "a later run": lambda record: granted_soon(other, LockRequest(record.name, LONG, fire_time=LATER)),
            "a later run that has ended": lambda record: other.release(
                granted_soon(other, LockRequest(record.name, LONG, LONG, fire_time=LATER))
            ),
            "taken over": lambda record: other.take_over(LockRequest(record.name, LONG)),
        }
        records = dead_runs(provider, [f"{name}/{change}" for change in changes])
        for (change, make), dead in zip(changes.items(), records, strict=True):
            assert make(dead), change
            before = record_of(provider, dead.name)
            for replica in (provider, other):
                assert replica.recover(again(dead.name), dead) is None, change
            assert provider.record(dead.name) == before, change

    def test_i12_a_run_that_its_late_holder_gives_back_is_not_recovered(
        self, provider: Any, other: Any, name: str
    ) -> None:
        """Any replica then acquires the fire time as usual."""
        lease = acquired(provider, LockRequest(name, SHORT, fire_time=FIRE_TIME))
        dead = expired_record(other, name)
        assert provider.undo(lease) is True
        assert other.recover(again(name), dead) is None
        granted_soon(other, again(name))

    def test_i1_a_held_record_is_not_recovered_whatever_the_replica_has_read(
        self, provider: Any, other: Any, name: str
    ) -> None:
        """A replica that believes the holder dead gets nothing while the store still has the lease."""
        lease = acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME))
        for _ in range(2):
            record = record_of(other, name)
            assert other.recover(again(name), _as_if_expired(record)) is None
            assert other.record(name) == record
            assert provider.extend(lease, "2m") is lease
        assert provider.release(lease) is True

    def test_a_deleted_record_is_not_recovered(self, provider: Any, other: Any, name: str) -> None:
        dead = dead_run(provider, name)
        self.delete_record(provider, name)
        assert other.recover(again(name), dead) is None
        assert other.record(name) is None
        acquired(provider, again(name))
        assert other.recover(again(name), dead) is None

    def test_a_record_of_no_dead_run_is_refused_by_recover(self, provider: Any, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG))
        held = record_of(provider, name)
        assert provider.release(lease) is True
        for record in (held, record_of(provider, name), replace(_as_if_expired(held), is_released=None)):
            with pytest.raises(ConfigurationError, match="run that never ended"):
                provider.recover(again(name), record)


def _as_if_expired(record: LockRecord) -> LockRecord:
    """Return ``record`` as if a clock far ahead had read it."""
    return replace(record, read_at=record.lock_until)
