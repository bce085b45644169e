"""Any operations in any order, and any time: the pure rules and the store in memory against a plain model."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from shedlock_py import InMemoryLockProvider, Lease, LockRequest
from shedlock_py.lease import Claim, Extension
from shedlock_py.request import SLACK, TRUST_MARGIN
from shedlock_py.testing import FakeClock

FULL = bool(os.environ.get("FAULTS_FULL"))
settings.register_profile(
    "faults",
    deadline=None,
    database=None,
    derandomize=not FULL,  # the short run is the same each time; the full one looks for more
    max_examples=2000 if FULL else 60,
    stateful_step_count=60 if FULL else 40,
    suppress_health_check=[HealthCheck.too_slow],
)
SETTINGS = settings.get_profile("faults")

NAMES = ["a", "b", "A"]
MILLISECOND = timedelta(milliseconds=1)
lengths = st.integers(3, 20_000).map(lambda milliseconds: milliseconds * MILLISECOND)
moments = st.integers(0, 5).map(lambda minutes: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes))


def microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)


class Expected:
    """What the model knows of one lock. Moments are whole microseconds of the clock."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.until = 0
        self.kept_until = 0
        self.fired: datetime | None = None


class MemoryMachine(RuleBasedStateMachine):
    """Several claimants of several locks on one store in memory."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.provider = InMemoryLockProvider(clock=self.clock)
        self.locks = {name: Expected() for name in NAMES}
        self.last_token = 0

    def now(self) -> int:
        return round(self.clock() * 1_000_000)

    def is_held(self, name: str) -> bool:
        return self.locks[name].until > self.now()

    def granted(self, request: LockRequest, lease: Lease) -> None:
        lock, now = self.locks[request.name], self.now()
        assert lease.fencing_token is not None
        assert lease.fencing_token > self.last_token, "I7"
        self.last_token = lease.fencing_token
        lock.lease, lock.until = lease, now + microseconds(request.lock_at_most_for)
        lock.kept_until = now + microseconds(request.lock_at_least_for)
        lock.fired = max((time for time in (lock.fired, request.fire_time) if time), default=None)

    @rule(
        target=leases, name=st.sampled_from(NAMES), at_most=lengths, part=st.integers(0, 100),
        fire_time=st.none() | moments,
    )  # fmt: skip
    def acquire(self, name: str, at_most: timedelta, part: int, fire_time: datetime | None) -> Any:
        request = LockRequest(name, at_most, at_most * part / 100, "me", fire_time)
        lock = self.locks[name]
        has_run = bool(fire_time and lock.fired and fire_time <= lock.fired)
        lease = self.provider.acquire(request)
        assert (lease is None) is (self.is_held(name) or has_run), "I1, I4, I11"
        if lease is None:
            return multiple()
        self.granted(request, lease)
        return lease

    @rule(target=leases, name=st.sampled_from(NAMES), at_most=lengths, fire_time=st.none() | moments)
    def take_over(self, name: str, at_most: timedelta, fire_time: datetime | None) -> Lease:
        request = LockRequest(name, at_most, 0, "me", fire_time)
        lease: Lease = self.provider.take_over(request)
        self.granted(request, lease)
        return lease

    def is_current(self, lease: Lease) -> bool:
        lock = self.locks[lease.name]
        return lock.lease is lease and self.is_held(lease.name)

    @rule(lease=leases, length=lengths)
    def extend(self, lease: Lease, length: timedelta) -> None:
        lock, may = self.locks[lease.name], self.is_current(lease) and not lease.has_ended()
        extended = self.provider.extend(lease, length)
        assert extended is (lease if may else None), "I2"
        if may:
            lock.until = max(self.now() + microseconds(length), lock.kept_until)

    @rule(lease=leases)
    def release(self, lease: Lease) -> None:
        lock, may = self.locks[lease.name], self.is_current(lease) and not lease.has_ended()
        assert self.provider.release(lease) is may, "I2"
        assert not lease.is_trusted()
        if may:
            lock.until = max(self.now(), lock.kept_until)

    @rule(name=st.sampled_from(NAMES))
    def force_release(self, name: str) -> None:
        was_held = self.is_held(name)
        assert self.provider.force_release(name) is was_held
        if was_held:
            self.locks[name].until = self.now()

    @rule(unused_for=st.integers(0, 10_000).map(lambda milliseconds: milliseconds * MILLISECOND))
    def prune(self, unused_for: timedelta) -> None:
        limit = self.now() - microseconds(unused_for)
        known = {record.name for record in self.provider.records()}
        old = {name for name in known if self.locks[name].until <= limit}
        assert self.provider.prune(unused_for) == len(old)
        assert {record.name for record in self.provider.records()} == known - old
        for name in old:
            self.locks[name].fired = None

    @rule(seconds=st.integers(1, 15_000).map(lambda milliseconds: milliseconds / 1000))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(name=st.sampled_from(NAMES), more=st.sampled_from([-1, 0, 1]))
    def time_goes_by_until_just_about_the_end(self, name: str, more: int) -> None:
        left = self.locks[name].until - self.now() + more
        if left > 0:
            self.clock.advance(timedelta(microseconds=left))

    @invariant()
    def records_are_as_expected(self) -> None:
        for record in self.provider.records():
            lock = self.locks[record.name]
            if lock.lease is not None and lock.lease.is_trusted() and self.is_held(record.name):
                assert lock.lease.trusted_until * 1_000_000 < lock.until, "I6"
            assert record.is_held is self.is_held(record.name)
            assert microseconds(record.remaining) == max(0, lock.until - self.now())
            assert lock.lease is not None
            assert (record.locked_by, record.fencing_token) == (lock.lease.locked_by, lock.lease.fencing_token)
            assert record.last_fire_time == lock.fired


class TrustMachine(RuleBasedStateMachine):
    """One lease whose extensions are carried out at any time between request and reply, or later, or never.

    I6: whatever happens, the holder never trusts its lease for longer than the store keeps the lock.
    """

    requests = Bundle("requests")

    @initialize(at_most=lengths, part=st.integers(0, 100), before=lengths, after=lengths)
    def acquire(self, at_most: timedelta, part: int, before: timedelta, after: timedelta) -> None:
        self.clock = FakeClock()
        claim = Claim(LockRequest("job", at_most, at_most * part / 100, "me"), self.clock)
        self.clock.advance(before / 10)
        self.until = self.clock() + at_most.total_seconds()
        self.kept_until = self.clock() + (at_most * part / 100).total_seconds()
        self.clock.advance(after / 10)
        self.lease = claim.granted(1)
        self.done: set[int] = set()
        self.answered: set[int] = set()

    @rule(target=requests, length=lengths | st.sampled_from([timedelta(seconds=1), timedelta(hours=1)]))
    def ask(self, length: timedelta) -> Extension:
        return self.lease.begin_extension(length)

    @precondition(lambda self: hasattr(self, "lease"))
    @rule(request_sent=requests)
    def carried_out(self, request_sent: Extension) -> None:
        """By the store; perhaps a second time, or long after the answer was given up."""
        if self.until > self.clock() and not (id(request_sent) in self.done and id(request_sent) in self.answered):
            self.until = self.clock() + request_sent.lock_for.total_seconds()
            self.done.add(id(request_sent))
            assert self.until >= self.kept_until - 1e-9, "I4"

    @rule(request_sent=requests)
    def granted_by_the_reply(self, request_sent: Extension) -> None:
        if id(request_sent) in self.done - self.answered:
            self.answered.add(id(request_sent))
            assert request_sent.granted() is self.lease

    @rule(seconds=st.integers(1, 8_000).map(lambda milliseconds: milliseconds / 1000))
    def time_goes_by(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: hasattr(self, "lease"))
    @rule()
    def lost(self) -> None:
        if self.until <= self.clock():
            self.lease.lose()
            assert not self.lease.is_trusted()

    @invariant()
    def the_holder_knows_first(self) -> None:
        if hasattr(self, "lease") and self.lease.is_trusted():
            assert self.lease.trusted_until <= self.until - SLACK / 2, "I6"


TestMemory = MemoryMachine.TestCase
TestMemory.settings = SETTINGS
TestTrust = TrustMachine.TestCase
TestTrust.settings = settings(SETTINGS, max_examples=5000 if FULL else 100)


@SETTINGS
@given(at_most=lengths, delay=st.floats(0, 30), drift=st.floats(-0.0099, 0.0099))
def test_i6_clocks_of_different_speed(at_most: timedelta, delay: float, drift: float) -> None:
    """The holder's clock may run up to the margin slower than the store's, and the store rounds to a millisecond."""
    clock = FakeClock()
    claim = Claim(LockRequest("job", at_most), clock)
    clock.advance(delay)
    lease = claim.granted(1)
    trusted = lease.trusted_until - 1000.0  # seconds on the holder's clock since the request
    assert trusted * (1 + drift) <= at_most.total_seconds() - SLACK / 2
    assert trusted <= at_most.total_seconds() * (1 - TRUST_MARGIN)
    assert lease.is_trusted() is (delay < trusted)
