"""The times of heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from shedlock_py.model.waiting import random_share


class HeartbeatPlan:
    """When to extend a lease that is kept alive. All moments are arguments, in monotonic seconds.

    A heartbeat is due every third of the lease. After a failure, the next heartbeat follows a growing, jittered pause.
    A heartbeat without a reply is not waited for longer than a sixth of the lease. So several attempts fit in before
    the trust window ends.
    """

    HEARTBEATS = 3
    REPLY = 6

    def __init__(self, lock_at_most_for: timedelta, now: float, random: Callable[[], float] = random_share) -> None:
        """:param random: returns a number from 0 to 1, so that replicas do not retry at the same moment."""
        self._random = random
        self.extended(lock_at_most_for, now)

    def sent(self, lock_at_most_for: timedelta, now: float) -> None:
        """Note that a heartbeat was sent. Without a reply, the next heartbeat is due soon."""
        self.due = now + lock_at_most_for.total_seconds() / self.REPLY

    def extended(self, lock_at_most_for: timedelta, now: float) -> None:
        """Note that the lease was extended by a request that was sent at ``now``."""
        self.failures = 0  # in a row
        self.due = now + lock_at_most_for.total_seconds() / self.HEARTBEATS

    def failed(self, lock_at_most_for: timedelta, now: float) -> None:
        self.failures += 1
        lease = lock_at_most_for.total_seconds()
        pause = min(lease / 48 * 2 ** min(self.failures, 10), lease / self.REPLY)
        self.due = now + pause * (0.5 + self._random() / 2)
