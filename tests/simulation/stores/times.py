"""What the model stores share: how their programs get to know the store's time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from shedlock_py.providers.cas import ServerTime
from shedlock_py.providers.kit.options import DEFAULT_TIMEOUT
from tests.simulation.dice import Dice

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CLOCK_ERROR = 1.0
"""Seconds: the default of ``clock_error``, and how far the clocks of the two front ends really differ."""


class ExactTime:
    """A store whose commands read its clock."""

    kept_longer: ClassVar[float] = 0.0
    """Seconds that it may keep a lease longer than asked, a round trip apart."""

    def has_changed(self, command: Any, reply: Any) -> bool:
        """Whether ``command`` may have changed a record: not, if it reads, or if its condition did not hold."""
        return True

    def received(self, reply: Any, sent_at: float, received_at: float) -> Any:
        """``reply`` as the client returns it. The moments are of the clock of its process."""
        return reply


class TimeByDate:
    """A store whose replies have a ``Date`` header, cut to seconds, from two front ends: the clock of one is ahead.

    :ivar ahead: by so many seconds.
    """

    kept_longer: ClassVar[float] = 2 * CLOCK_ERROR + 2.0 + DEFAULT_TIMEOUT.total_seconds()
    """``clock_error``, because the one that grants may be ahead; the same, which is added to what is written; a second
    for each of the two dates that are cut; and the round trip of the reply by which the time was known."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead

    def date(self, now_us: int) -> ServerTime:
        """What the front end that replies tells at that time; :meth:`received` fills in the other moments.

        The microsecond chooses the front end: so it stays the same when another fault is left out of a schedule.
        """
        is_ahead = self.ahead and Dice(now_us, 1)() < 0.5
        seconds = (now_us + (round(self.ahead * 1_000_000) if is_ahead else 0)) // 1_000_000
        return ServerTime(EPOCH + timedelta(seconds=seconds), 0.0, 0.0)

    def received(self, reply: Any, sent_at: float, received_at: float) -> Any:
        return reply._replace(time=replace(reply.time, sent_at=sent_at, received_at=received_at))
