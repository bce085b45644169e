"""Mutual exclusion: a lock has one holder at a time, and no holder changes another holder's lock."""

from __future__ import annotations

from datetime import timedelta

from shedlock_py import InMemoryLockProvider, LockProvider, LockRequest
from shedlock_py.testing.contract.base import LONG, SHORT, ContractBase, acquired, expired, granted_soon, record_of

ROUNDING = timedelta(milliseconds=2)


class ExclusionContract(ContractBase):
    def test_i1_a_second_lock_is_refused(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG))
        assert other.acquire(LockRequest(name, LONG)) is None
        assert provider.release(lease) is True

    def test_i1_the_same_holder_is_refused_as_well(self, provider: LockProvider, name: str) -> None:
        acquired(provider, LockRequest(name, LONG, holder="me"))
        assert provider.acquire(LockRequest(name, LONG, holder="me")) is None

    def test_i1_a_skip_changes_nothing(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        acquired(provider, LockRequest(name, LONG))
        before = provider.record(name)
        assert other.acquire(LockRequest(name, "1h", "1h", holder="another")) is None
        assert provider.record(name) == before

    def test_two_names_are_independent(self, provider: LockProvider, name: str) -> None:
        first = acquired(provider, LockRequest(name, LONG))
        second = acquired(provider, LockRequest(f"{name}-2", LONG))
        assert provider.release(first) is True
        assert provider.acquire(LockRequest(f"{name}-2", LONG)) is None
        assert provider.release(second) is True

    def test_a_released_lock_is_free_at_once(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        claim_ids = set()
        for number in range(10):
            replica, rival = (provider, other) if number % 2 else (other, provider)
            lease = acquired(replica, LockRequest(name, LONG))
            assert rival.acquire(LockRequest(name, LONG)) is None
            assert replica.release(lease) is True
            claim_ids.add(lease.claim_id)
        assert len(claim_ids) == 10

    def test_i1_a_lease_times_out_and_not_before(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        acquired(provider, LockRequest(name, SHORT))
        first = record_of(provider, name)
        granted_soon(other, LockRequest(name, LONG))
        second = record_of(provider, name)
        assert second.locked_at >= first.lock_until
        assert first.lock_until - first.locked_at >= timedelta(milliseconds=100) - ROUNDING

    def test_i2_a_stale_release_does_not_free_the_successor(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        stale = expired(provider, name)
        successor = granted_soon(other, LockRequest(name, LONG))
        assert provider.release(stale) is False
        assert other.acquire(LockRequest(name, LONG)) is None
        assert other.release(successor) is True

    def test_i2_a_stale_extension_does_not_prolong_the_successor(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        stale = expired(provider, name)
        granted_soon(other, LockRequest(name, LONG))
        before = other.record(name)
        assert provider.extend(stale, "1h") is None
        assert not stale.is_trusted()
        assert other.record(name) == before

    def test_i2_same_provider_same_holder_same_thread(self, provider: LockProvider, name: str) -> None:
        stale = expired(provider, name, holder="me")
        successor = granted_soon(provider, LockRequest(name, LONG, holder="me"))
        before = provider.record(name)
        assert provider.extend(stale, "1h") is None
        assert provider.release(stale) is False
        assert provider.record(name) == before
        assert provider.release(successor) is True

    def test_i2_an_expired_lease_is_not_released(self, provider: LockProvider, name: str) -> None:
        stale = expired(provider, name)
        before = provider.record(name)
        assert provider.release(stale) is False
        assert provider.record(name) == before

    def test_i2_a_second_release_frees_no_successor(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        lease = acquired(provider, LockRequest(name, LONG))
        assert provider.release(lease) is True
        assert provider.release(lease) is False
        successor = acquired(other, LockRequest(name, LONG))
        assert provider.release(lease) is False
        assert other.release(successor) is True

    def test_i4_a_second_release_leaves_the_minimum_hold_alone(self, provider: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG, LONG))
        assert provider.release(lease) is True
        before = provider.record(name)
        assert provider.release(lease) is False
        assert provider.record(name) == before

    def test_i6_a_released_lease_cannot_be_extended(self, provider: LockProvider, name: str) -> None:
        for at_least in (0, LONG):  # under a minimum hold the record still names this lease
            lease = acquired(provider, LockRequest(f"{name}-{at_least}", LONG, at_least))
            assert provider.release(lease) is True
            before = provider.record(lease.name)
            assert provider.extend(lease, "1h") is None
            assert provider.record(lease.name) == before
            assert not lease.is_trusted()

    def test_i2_a_lease_of_another_store_does_no_harm(self, provider: LockProvider, name: str) -> None:
        elsewhere = InMemoryLockProvider()
        foreign = acquired(elsewhere, LockRequest(name, LONG))
        assert provider.release(foreign) is False
        assert provider.record(name) is None
        assert elsewhere.acquire(LockRequest(name, LONG)) is None
        lease = acquired(provider, LockRequest(name, LONG))
        before = provider.record(name)
        for lock_name in (name, f"{name}-unknown"):
            foreign = acquired(InMemoryLockProvider(), LockRequest(lock_name, LONG))
            assert provider.extend(foreign, "1h") is None
            foreign = acquired(InMemoryLockProvider(), LockRequest(lock_name, LONG))
            assert provider.release(foreign) is False
        assert provider.record(name) == before
        assert provider.record(f"{name}-unknown") is None
        assert provider.release(lease) is True

    def test_a_deleted_record_does_not_stop_the_job(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        lease = acquired(provider, LockRequest(name, LONG))
        self.delete_record(provider, name)
        assert provider.record(name) is None
        assert provider.extend(lease, LONG) is None
        assert provider.release(lease) is False
        for replica in (provider, other, provider):
            assert replica.release(acquired(replica, LockRequest(name, LONG))) is True
            self.delete_record(other, name)
