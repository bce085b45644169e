"""How programs get to know the time of model stores."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from shedlock_py.providers.cas import ServerTime
from shedlock_py.providers.kit.options import DEFAULT_TIMEOUT
from tests.simulation.dice import Dice

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CLOCK_ERROR = 1.0
"""Seconds: the default of ``clock_error``, and the real difference between the clocks of the two front ends."""


class ExactTime:
    """A store whose commands read its clock."""

    kept_longer: ClassVar[float] = 0.0
    """Seconds that it may keep a lease longer than requested, apart from a round trip."""

    def has_changed(self, command: Any, reply: Any) -> bool:
        """Whether ``command`` may have changed a record: not if it reads, or if its condition did not hold."""
        return True

    def received(self, reply: Any, sent_at: float, received_at: float) -> Any:
        """Return ``reply`` as the client returns it. The moments are by the clock of its process."""
        return reply


class TimeByDate:
    """A store with two front ends that reply with a ``Date`` header, cut to seconds. One of their clocks is ahead.

    :ivar ahead: seconds by which it is ahead.
    """

    kept_longer: ClassVar[float] = 2 * CLOCK_ERROR + 2.0 + DEFAULT_TIMEOUT.total_seconds()
    """Twice ``clock_error``: the granting front end may be ahead, and the programs add it to their writes. A second for
    each of two dates that are cut. The round trip of the reply that showed the time."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead

    def date(self, now_us: int) -> ServerTime:
        """Return the time in the replying front end's header at that moment; :meth:`received` sets the other moments.

        The microsecond chooses the front end, so that it stays the same when a different fault is left out of a
        schedule.
        """
        is_ahead = self.ahead and Dice(now_us, 1)() < 0.5
        seconds = (now_us + (round(self.ahead * 1_000_000) if is_ahead else 0)) // 1_000_000
        return ServerTime(EPOCH + timedelta(seconds=seconds), 0.0, 0.0)

    def received(self, reply: Any, sent_at: float, received_at: float) -> Any:
        return reply._replace(time=replace(reply.time, sent_at=sent_at, received_at=received_at))
