"""Recovery: decide from the lock record whether the run of a fire time has ended, goes on, or never ended.

Under ``recover=True`` a refused replica watches the lease of the run. It reads the record when the lease should end: a
live holder has extended or released it by then. If a lease expired without a release, its holder died or gave its run
back. :class:`Watch` decides. It does not wait; its caller carries out the decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from shedlock_py.model.record import LockRecord
from shedlock_py.model.waiting import random_share

DEFAULT_MOST_RECOVERIES = 3
_MARGIN = 0.01
"""Seconds between the end of a lease and the read that follows."""
_JITTER = 0.1
"""The longest random pause after the end of a lease, as a part of the lease: replicas do not all read at the same
moment."""
_LONGEST_JITTER = 10.0


@dataclass(frozen=True)
class Wait:
    """The run goes on: read the record again in so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Recover:
    """The run never ended: claim exactly this record, with the same fire time."""

    expected: LockRecord


@dataclass(frozen=True)
class Acquire:
    """The fire time was given back before the run began: acquire as usual, with the same fire time."""


@dataclass(frozen=True)
class Over:
    """There is nothing to recover.

    :ivar lost: the reason to emit ``RunMissed``, if no replica will run it.
    """

    why: Literal["released", "paused", "later_fire_time", "no_record", "lost"]
    lost: Literal["not_recoverable", "too_many_recoveries"] | None = None


Decision = Wait | Recover | Acquire | Over


class Watch:
    """Decides about one fire time that this replica was refused.

    :param fire_time: the refused fire time; None for any fire time.
    :param max_recoveries: how often one fire time is recovered, on all replicas together.
    :param random: returns a number from 0 to 1.
    """

    def __init__(
        self,
        fire_time: datetime | None,
        max_recoveries: int = DEFAULT_MOST_RECOVERIES,
        random: Callable[[], float] = random_share,
    ) -> None:
        self.fire_time = fire_time
        self._max_recoveries = max_recoveries
        self._random = random

    def decide(self, record: LockRecord | None) -> Decision:
        """Decide what to do.

        :param record: the store's record now.
        """
        if record is None:
            return Over("no_record")
        newest = record.last_fire_time
        if self.fire_time is not None:
            if newest is not None and newest > self.fire_time:
                return Over("later_fire_time")
            if newest is None or newest < self.fire_time:
                return Wait(self._pause(record)) if record.is_held else Acquire()
        if record.is_of_operator:
            return Over("paused")
        if record.is_released:
            return Over("released")
        if record.is_held:
            return Wait(self._pause(record))
        if record.is_released is None:
            return Over("lost", "not_recoverable")
        if record.recoveries >= self._max_recoveries:
            return Over("lost", "too_many_recoveries")
        return Recover(record)

    def _pause(self, record: LockRecord) -> float:
        left = record.remaining.total_seconds()
        return left + _MARGIN + self._random() * min(left * _JITTER, _LONGEST_JITTER)
