"""Extensions in any order and at any time: the holder always knows first."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from shedlock_py import LockRequest
from shedlock_py.model.lease import Claim, Extension
from shedlock_py.model.request import SLACK, TRUST_MARGIN
from shedlock_py.testing import FakeClock
from tests.support import tiers

settings.register_profile(
    "faults",
    deadline=None,
    database=None,
    derandomize=not tiers.runs("all"),  # the short run is the same each time; the full run looks for more
    max_examples=2000 if tiers.runs("all") else 60 if tiers.runs("full") else 30,
    stateful_step_count=60 if tiers.runs("all") else 40,
    suppress_health_check=[HealthCheck.too_slow],
)
SETTINGS = settings.get_profile("faults")
pytestmark = pytest.mark.timeout(900)  # the full run computes for more than a minute, on a machine that is not busy

MILLISECOND = timedelta(milliseconds=1)
lengths = st.integers(3, 20_000).map(lambda milliseconds: milliseconds * MILLISECOND)


class TrustMachine(RuleBasedStateMachine):
    """A lease with extensions that the store carries out at any time between request and reply, or later, or never.

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
        return self.lease._begin_extension(length)

    @precondition(lambda self: hasattr(self, "lease"))
    @rule(request_sent=requests)
    def carried_out(self, request_sent: Extension) -> None:
        """The store carries it out, perhaps a second time, or long after the caller gave up."""
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
            self.lease._lose()
            assert not self.lease.is_trusted()

    @invariant()
    def the_holder_knows_first(self) -> None:
        if hasattr(self, "lease") and self.lease.is_trusted():
            assert self.lease.trusted_until <= self.until - SLACK / 2, "I6"


TestTrust = TrustMachine.TestCase
TestTrust.settings = settings(SETTINGS, max_examples=5000 if tiers.runs("all") else 100 if tiers.runs("full") else 30)


@SETTINGS
@given(at_most=lengths, delay=st.floats(0, 30), drift=st.floats(-0.0099, 0.0099))
def test_i6_trust_ends_in_time_by_clocks_of_different_speed(at_most: timedelta, delay: float, drift: float) -> None:
    """The holder's clock may run up to the margin slower than the store's, and the store rounds to a millisecond."""
    clock = FakeClock()
    claim = Claim(LockRequest("job", at_most), clock)
    clock.advance(delay)
    lease = claim.granted(1)
    trusted = lease.trusted_until - 1000.0  # seconds on the holder's clock since the request
    assert trusted * (1 + drift) <= at_most.total_seconds() - SLACK / 2
    assert trusted <= at_most.total_seconds() * (1 - TRUST_MARGIN)
    assert lease.is_trusted() is (delay < trusted)
