"""Pauses between attempts to acquire a held lock, under ``wait=``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from random import SystemRandom

from shedlock_py.model.record import LockRecord

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
MILLISECOND = 0.001
random_share = SystemRandom().random
"""A random number from 0 to 1. The module ``random`` gives the same numbers to all children that C code forks."""


class Waiting:
    """The pauses between attempts, in seconds. They grow to one second, and end earlier if the lease does.

    The pauses are random, so that replicas do not all try at the same moment.
    """

    def __init__(
        self,
        wait: timedelta | None,
        now: float,
        fire_time: datetime | None = None,
        random: Callable[[], float] = random_share,
    ) -> None:
        """:param now: when the first attempt began, by the clock of :meth:`pause`.
        :param fire_time: the run's fire time. Once it was granted, the wait is over.
        :param random: returns a number from 0 to 1.
        """
        self.is_on = bool(wait)
        self._fire_time = fire_time
        self._until = now + (wait.total_seconds() if wait else 0.0)
        self._longest = FIRST_PAUSE
        self._random = random

    def pause(self, now: float, record: LockRecord | None = None) -> float | None:
        """Return how long to wait for the next attempt; None if the time is over, or the fire time was granted.

        :param record: the lock record after the last attempt, if it was read.
        """
        left = self._until - now
        newest = None if record is None else record.last_fire_time
        if left <= 0 or (self._fire_time is not None and newest is not None and newest >= self._fire_time):
            return None
        pause = self._longest * (1 + self._random()) / 2
        self._longest = min(self._longest * 2, LONGEST_PAUSE)
        if record is not None and record.is_held:
            pause = min(pause, record.remaining.total_seconds() + MILLISECOND)
        return min(pause, left)
