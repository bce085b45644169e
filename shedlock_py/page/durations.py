"""The durations of the last runs of one job: a bar for each run, in percent of the width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from shedlock_py.model.record import LockRecord
from shedlock_py.model.run import Run
from shedlock_py.operators import display
from shedlock_py.page.lanes import title_of

MOST_BARS = 60
HEIGHT = 60
_TOP = 12
"""Pixels above the highest bar, for a label."""
FARTHEST = 4
"""A lease more than so many times the longest run is shown in words, because a line would leave no room for bars."""


@dataclass(frozen=True)
class Bar:
    shape: str
    x: float
    width: float
    y: float
    height: float
    title: str


@dataclass(frozen=True)
class Durations:
    """The chart.

    :ivar lease_y: the line of ``lock_at_most_for``, or of the present run's lease. None if the line does not fit.
    """

    bars: Sequence[Bar]
    longest: str
    summary: str
    lease: str
    lease_y: float | None
    height: int = HEIGHT


def durations(runs: Sequence[Run], record: LockRecord, lock_at_most_for: timedelta | None = None) -> Durations | None:
    """Return the chart of the newest runs, or None for fewer than two durations. ``runs`` are newest first.

    :param lock_at_most_for: the job's option. Without it, the chart shows the lease of the present run.
    """
    timed = [
        (run, duration)
        for run in runs
        if not (run.is_pause or run.is_demotion) and (duration := display.duration_of(run, record)) is not None
    ][:MOST_BARS]
    if len(timed) < 2:
        return None
    longest = max(duration for _, duration in timed)
    present = record.lock_until - record.locked_at if display.is_running(timed[0][0], record) else None
    lease = lock_at_most_for or present
    has_line = lease is not None and lease <= FARTHEST * max(longest, timedelta(milliseconds=1))
    scale = max(longest, lease) if has_line and lease is not None else longest

    def y(duration: timedelta) -> float:
        share = duration / scale if scale else 0.0
        return round(_TOP + (HEIGHT - _TOP) * (1 - share), 1)

    width = 100 / max(len(timed), 20)
    bars = [
        Bar(
            display.outcome_of(run, record),
            round(number * width, 2),
            round(width * 0.8, 2),
            min(y(duration), HEIGHT - 1),
            max(1, HEIGHT - y(duration)),
            title_of(run, record),
        )
        for number, (run, duration) in enumerate(reversed(timed))
    ]
    words = display.in_words(longest)
    what = "lock_at_most_for is" if lock_at_most_for else "the present lease is of"
    lease_words = "" if lease is None else f"{what} {display.in_words(lease)}"
    summary = f"Durations of the last {len(timed)} runs, the longest {words}" + (lease_words and f"; {lease_words}")
    return Durations(bars, words, summary, lease_words, y(lease) if has_line and lease is not None else None)
