"""Fencing tokens only grow, and a fire time runs once."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

from shedlock_py import Lease, LockProvider, LockRequest, attempt
from shedlock_py.model.record import ONCE
from shedlock_py.testing.contract.base import LONG, ContractBase, acquired, expired, granted_soon, record_of

FIRE_TIME = datetime(2024, 10, 26, 1, 30, 0, 123456, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
COARSE = 0.1
"""Seconds. With a coarser clock, tests do not wait in each round of a loop."""


def token_of(lease: Lease) -> int:
    assert lease.fencing_token is not None
    return lease.fencing_token


class FencingContract(ContractBase):
    def test_i7_tokens_grow_however_the_last_lease_ended(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        tokens = [0]

        def granted(lease: Lease) -> Lease:
            assert token_of(lease) > tokens[-1]
            assert record_of(provider, name).fencing_token == lease.fencing_token
            tokens.append(token_of(lease))
            return lease

        provider.release(granted(acquired(provider, LockRequest(name, LONG))))
        granted(expired(provider, name))
        granted(granted_soon(other, LockRequest(name, LONG)))
        granted(provider.take_over(LockRequest(name, LONG)))
        other.force_release(name)
        granted(acquired(other, LockRequest(name, LONG)))
        self.delete_record(other, name)
        time.sleep(self.clock_resolution)
        granted(acquired(provider, LockRequest(name, LONG)))
        provider.force_release(name)
        time.sleep(self.clock_resolution)
        provider.prune(0)
        assert provider.record(name) is None
        granted(provider.take_over(LockRequest(name, LONG)))

    def test_i7_tokens_grow_in_a_tight_loop(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        def prune(lease: Lease) -> None:
            provider.force_release(lease.name)
            provider.prune(0)

        ends: list[Callable[[Lease], object]] = [
            provider.release,
            prune,
            lambda lease: other.force_release(lease.name),
            lambda lease: self.delete_record(other, lease.name),
        ]
        is_coarse = self.clock_resolution > COARSE
        if is_coarse:
            ends.pop()
        last = 0
        for number in range(12 if is_coarse else 48):
            replica = (provider, other)[number % 2]
            if number % 3:
                lease = acquired(replica, LockRequest(name, LONG))
                ends[number // 2 % len(ends)](lease) if replica is provider else other.release(lease)
            else:
                lease = replica.take_over(LockRequest(name, LONG))
                replica.release(lease)
            assert token_of(lease) > last, f"number {number}"
            last = token_of(lease)
            if provider.record(name) is None:
                time.sleep(self.clock_resolution)

    def test_i7_a_skip_and_an_extension_use_no_token(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        lease = acquired(provider, LockRequest(name, LONG))
        other.acquire(LockRequest(name, LONG))
        provider.extend(lease, "2m")
        assert record_of(provider, name).fencing_token == lease.fencing_token

    def test_i2_an_extension_carries_its_token(self, provider: LockProvider, name: str) -> None:
        """A lease does not extend a record with its claim id and a later token.

        Such a record exists after a claim was sent twice, as after a lost reply. The second copy was granted long after
        the lease had ended, when other holders had used the lock.
        """
        lease = acquired(provider, LockRequest(name, LONG))
        lease.fencing_token = token_of(lease) - 1
        before = provider.record(name)
        assert provider.extend(lease, "1h") is None
        assert not lease.is_trusted()
        assert provider.record(name) == before

    def test_i11_one_fire_time_one_run(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        def request(fire_time: datetime | None) -> LockRequest:
            return LockRequest(name, LONG, fire_time=fire_time)

        provider.release(acquired(provider, request(FIRE_TIME)))
        for refused in (FIRE_TIME, FIRE_TIME - MICROSECOND, FIRE_TIME - timedelta(days=400)):
            for replica in (provider, other):
                assert replica.acquire(request(refused)) is None
        newer = FIRE_TIME + MICROSECOND
        other.release(acquired(other, request(newer)))
        assert record_of(provider, name).last_fire_time == newer
        assert provider.acquire(request(newer)) is None
        other.release(acquired(other, request(newer + timedelta(seconds=1))))

    def test_i11_a_refused_fire_time_leaves_the_record_alone(self, provider: LockProvider, name: str) -> None:
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME)))
        before = provider.record(name)
        assert provider.acquire(LockRequest(name, "1h", "1h", fire_time=FIRE_TIME)) is None
        assert provider.record(name) == before

    def test_i11_also_after_the_lease_expired(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        expired(provider, name, fire_time=FIRE_TIME)
        assert other.acquire(LockRequest(name, LONG, fire_time=FIRE_TIME)) is None
        granted_soon(other, LockRequest(name, LONG, fire_time=FIRE_TIME + timedelta(seconds=1)))

    def test_prune_keeps_the_keys_of_run_once(self, provider: LockProvider, name: str) -> None:
        """Their tasks would run again."""
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=ONCE)))
        time.sleep(self.clock_resolution)
        provider.prune(0)
        assert record_of(provider, name).last_fire_time == ONCE

    def test_i11_a_newer_fire_time_does_not_break_a_lock(self, provider: LockProvider, name: str) -> None:
        acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME))
        assert provider.acquire(LockRequest(name, LONG, fire_time=FIRE_TIME + timedelta(days=1))) is None
        assert record_of(provider, name).last_fire_time == FIRE_TIME

    def test_i11_a_request_without_one_ignores_it_and_keeps_it(self, provider: LockProvider, name: str) -> None:
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME)))
        provider.release(acquired(provider, LockRequest(name, LONG)))
        assert record_of(provider, name).last_fire_time == FIRE_TIME
        assert provider.acquire(LockRequest(name, LONG, fire_time=FIRE_TIME)) is None

    def test_i11_the_first_one_on_a_record_without(self, provider: LockProvider, name: str) -> None:
        provider.release(acquired(provider, LockRequest(name, LONG)))
        assert record_of(provider, name).last_fire_time is None
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME)))
        assert record_of(provider, name).last_fire_time == FIRE_TIME

    def test_i11_take_over_notes_it_and_does_not_compare(self, provider: LockProvider, name: str) -> None:
        for given, noted in ((0, 0), (0, 0), (-1, 0), (1, 1), (None, 1)):
            fire_time = None if given is None else FIRE_TIME + timedelta(seconds=given)
            provider.release(provider.take_over(LockRequest(name, LONG, fire_time=fire_time)))
            assert record_of(provider, name).last_fire_time == FIRE_TIME + timedelta(seconds=noted)

    def test_i11_a_moment_is_the_same_in_every_time_zone(self, provider: LockProvider, name: str) -> None:
        there = FIRE_TIME.astimezone(timezone(timedelta(hours=5, minutes=30)))
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=there)))
        assert provider.acquire(LockRequest(name, LONG, fire_time=FIRE_TIME)) is None
        last = record_of(provider, name).last_fire_time
        assert last == FIRE_TIME
        assert last is not None
        assert last.utcoffset() == timedelta(0)

    def test_i11_a_skip_says_why(self, provider: LockProvider, name: str) -> None:
        request = LockRequest(name, LONG, fire_time=FIRE_TIME)
        ran: list[str] = []
        reasons = []
        for _ in range(2):
            result = attempt(request, lambda: ran.append("ran"), provider=provider)
            reasons.append(getattr(result, "reason", "executed"))
        acquired(provider, LockRequest(name, LONG))
        reasons.append(getattr(attempt(request, lambda: None, provider=provider), "reason", "executed"))
        assert reasons == ["executed", "already_ran", "held"]
        assert ran == ["ran"]
