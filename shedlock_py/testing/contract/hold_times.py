"""Hold times: at most, at least, and how long the holder may trust its lease."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from datetime import timedelta

from shedlock_py import Lease, LockProvider, LockRequest
from shedlock_py.testing.contract.base import (
    LONG,
    SHORT,
    ContractBase,
    acquired,
    eventually,
    expired,
    granted_soon,
    record_of,
)

ROUNDING = timedelta(milliseconds=2)
NOTHING = timedelta(0)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


class HoldTimesContract(ContractBase):
    def test_i3_a_dead_holder_blocks_for_at_most(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        expired(provider, name)
        record = record_of(other, name)
        assert record.lock_until - record.locked_at <= timedelta(milliseconds=100) + self.kept_longer
        granted_soon(other, LockRequest(name, LONG))

    def test_i3_an_extension_counts_from_itself(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, "1h"))
        assert provider.extend(lease, SHORT) is lease
        assert record_of(provider, name).remaining <= timedelta(milliseconds=100) + self.kept_longer
        granted_soon(other, LockRequest(name, LONG))

    def test_i4_minimum_hold_survives_the_release(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, "2m", LONG))
        assert provider.release(lease) is True
        for replica in (provider, other):
            assert replica.acquire(LockRequest(name, LONG)) is None
        assert seconds(30) < record_of(provider, name).remaining <= seconds(60) + self.kept_longer

    def test_i4_nobody_else_before_it_is_over(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG, "200ms"))
        first = record_of(provider, name)
        provider.release(lease)
        granted_soon(other, LockRequest(name, LONG))
        assert record_of(provider, name).locked_at - first.locked_at >= timedelta(milliseconds=200) - ROUNDING

    def test_i4_a_shorter_extension_does_not_cut_it(self, provider: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, "2m", LONG))
        assert provider.extend(lease, "1s") is lease
        assert record_of(provider, name).remaining > seconds(30)
        assert lease.trusted_for() > seconds(30)
        assert provider.release(lease) is True
        assert record_of(provider, name).remaining > seconds(30)

    def test_i4_a_minimum_hold_that_is_over_frees_at_once(self, provider: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG, "50ms"))
        over = time.monotonic() + 0.06
        eventually(lambda: time.monotonic() > over)
        assert provider.release(lease) is True
        acquired(provider, LockRequest(name, LONG))

    def test_an_extension_keeps_the_lock_and_its_record(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        lease = acquired(provider, LockRequest(name, LONG))
        before = record_of(provider, name)
        assert provider.extend(lease, "1h") is lease
        assert lease.lock_at_most_for == timedelta(hours=1)
        assert lease.trusted_for() > timedelta(minutes=50)
        assert other.acquire(LockRequest(name, LONG)) is None
        after = record_of(provider, name)
        assert timedelta(minutes=50) < after.remaining <= timedelta(hours=1) + self.kept_longer
        assert (after.locked_by, after.locked_at) == (before.locked_by, before.locked_at)
        assert (after.fencing_token, after.last_fire_time) == (before.fencing_token, before.last_fire_time)
        assert provider.release(lease) is True
        acquired(other, LockRequest(name, LONG))

    def test_a_lease_can_be_extended_again_and_again(self, provider: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG))
        before = record_of(provider, name)
        for _ in range(10):
            assert provider.extend(lease, LONG) is lease
            after = record_of(provider, name)
            assert after.lock_until >= before.lock_until - self.kept_longer
            before = after
        assert provider.release(lease) is True

    def test_an_expired_lease_cannot_be_extended(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        lease = expired(provider, name)
        before = provider.record(name)
        assert provider.extend(lease, LONG) is None
        assert provider.record(name) == before
        granted_soon(other, LockRequest(name, LONG))

    def test_a_lease_may_last_3_milliseconds_or_10_years(self, provider: LockProvider, name: str) -> None:
        acquired(provider, LockRequest(name, "3ms"))
        granted_soon(provider, LockRequest(name, "520w"))
        assert record_of(provider, name).remaining > timedelta(weeks=519)
        assert provider.acquire(LockRequest(name, LONG)) is None

    def test_i6_the_holder_stops_first(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, "300ms"))
        granted_soon(other, LockRequest(name, LONG))
        assert lease.trusted_for() == NOTHING
        assert not lease.is_trusted()

    def test_i6_trust_ends_before_the_record(self, provider: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, "10m"))
        self._check_trust(provider, lease)
        assert timedelta(minutes=9) < lease.trusted_for() <= timedelta(minutes=10) * 0.99 - ROUNDING
        assert provider.extend(lease, "20m") is lease
        self._check_trust(provider, lease)
        assert timedelta(minutes=18) < lease.trusted_for() <= timedelta(minutes=20) * 0.99 - ROUNDING

    def test_i6_a_shorter_extension_narrows_the_trust(self, provider: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, "1h"))
        assert provider.extend(lease, LONG) is lease
        assert lease.trusted_for() <= seconds(60)
        assert record_of(provider, name).remaining <= seconds(60) + self.kept_longer
        self._check_trust(provider, lease)

    def test_i6_a_released_or_lost_lease_is_not_trusted(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        lease = acquired(provider, LockRequest(name, LONG, LONG))
        provider.release(lease)
        assert lease.trusted_for() == NOTHING
        lease = provider.take_over(LockRequest(name, LONG))
        other.take_over(LockRequest(name, LONG))
        assert provider.extend(lease, LONG) is None
        assert lease.trusted_for() == NOTHING

    def _check_trust(self, provider: LockProvider, lease: Lease) -> None:
        """Check by the store's clock that the record outlasts the holder's trust in it."""
        trusted_for = lease.trusted_for()
        started = time.monotonic()
        record = record_of(provider, lease.name)
        unknown = seconds(time.monotonic() - started)  # the record was read at some moment in this span
        assert trusted_for <= record.remaining + unknown - timedelta(milliseconds=1)


class StallingStoreContract(ContractBase):
    """For stores that a test can make wait before they reply."""

    def stalled(self, name: str) -> AbstractContextManager[None]:
        """Make every write of the record of ``name`` wait during the block."""
        raise NotImplementedError("override the method stalled of the contract")

    def test_i6_trust_counts_from_the_question_not_from_the_answer(self, provider: LockProvider, name: str) -> None:
        provider.release(acquired(provider, LockRequest(name, LONG)))
        assert self._trust_lost_while_stalled(provider, None, name) > seconds(0.3)
        lease = provider.take_over(LockRequest(name, LONG))
        assert self._trust_lost_while_stalled(provider, lease, name) > seconds(0.3)

    def _trust_lost_while_stalled(self, provider: LockProvider, lease: Lease | None, name: str) -> timedelta:
        """Return how much trust a lease has lost when the store took half a second to grant or extend it."""
        leases: list[Lease | None] = []
        is_asking = threading.Event()

        def request() -> None:
            is_asking.set()
            request = LockRequest(name, LONG)
            leases.append(provider.acquire(request) if lease is None else provider.extend(lease, LONG))

        requesting = threading.Thread(target=request)
        with self.stalled(name):
            requesting.start()
            is_asking.wait()
            requesting.join(0.5)
            assert requesting.is_alive(), "the store did not stall"
        requesting.join()
        assert leases[0] is not None
        return seconds(60) * 0.99 - leases[0].trusted_for()
