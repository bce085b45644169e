"""Time in the search: ticks, and always the same moment.

An event is stored as the number of ticks since it. So the number of states is finite, although time never ends.
"""

from __future__ import annotations

from datetime import UTC, datetime

TICK = 1000.0
"""Seconds. Actions within a tick take milliseconds. A holder does not trust the last 1 % of its lease, 10 s."""
TICK_MS, TICK_US = 1_000_000, 1_000_000_000
NOW = 100_000_000.0
"""The holders' monotonic clock, in seconds."""
STORE_NOW_US = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
"""The store's clock."""
STEP = 0.001
"""Seconds between two requests of one holder, and, on the store's clock, between two grants."""
STEP_US = 1000


class HolderClock:
    """The clock of all programs. The search sets it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def is_urgent(seconds: float) -> bool:
    """Whether a number is a moment on the holder's clock, and not a duration."""
    return abs(seconds - NOW) < NOW / 10
