"""When a lease that is kept alive has to be extended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import SystemRandom


class HeartbeatPlan:
    """When to extend a lease that is kept alive. Moments are monotonic seconds and always given.

    A heartbeat is due every third of the lease. One that fails is repeated after a growing, jittered pause, and one
    without a reply within a sixth of the lease is not waited for: several attempts fit in before the trust window ends.
    """

    HEARTBEATS = 3
    REPLY = 6

    def __init__(self, lock_at_most_for: timedelta, now: float, random: Callable[[], float] | None = None) -> None:
        """:param random: returns a number from 0 to 1, so that replicas do not retry at the same moment."""
        if random is None:
            # SystemRandom, because the module's generator is in the same state in all children that C code forks.
            random = SystemRandom().random
        self._random = random
        self.extended(lock_at_most_for, now)

    def sent(self, lock_at_most_for: timedelta, now: float) -> None:
        """A heartbeat was sent: without a reply, the next is due soon."""
        self.due = now + lock_at_most_for.total_seconds() / self.REPLY

    def extended(self, lock_at_most_for: timedelta, now: float) -> None:
        """The lease was extended by a request that was sent at ``now``."""
        self.failures = 0  # in a row
        self.due = now + lock_at_most_for.total_seconds() / self.HEARTBEATS

    def failed(self, lock_at_most_for: timedelta, now: float) -> None:
        """The store failed, at ``now``."""
        self.failures += 1
        lease = lock_at_most_for.total_seconds()
        pause = min(lease / 48 * 2 ** min(self.failures, 10), lease / self.REPLY)
        self.due = now + pause * (0.5 + self._random() / 2)
