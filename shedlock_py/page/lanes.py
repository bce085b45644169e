"""The timeline of one job: a lane of runs for each holder, in percent of the width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import pairwise

from shedlock_py.model.record import LockRecord
from shedlock_py.model.run import Run
from shedlock_py.operators import display

DAY, MONTH = timedelta(days=1), timedelta(days=30)
NOW = 97.0
"""The place of "now". To its right are leases and pauses that go on."""
MOST_LANES = 12
LANE_HEIGHT, AXIS_HEIGHT = 32, 18
SHAPES = ("ok", "failed", "cancelled", "lost", "vanished", "running", "paused", "demoted", "unfinished")
_ON_TOP = ("paused", "demoted", "ok", "running", "cancelled", "unfinished", "vanished", "lost", "failed")
"""The order of drawing: a later mark covers an earlier mark at the same place."""
RUNS_IN_WINDOW = 20
"""Runs in a window that fits, for a job with regular gaps."""


@dataclass(frozen=True)
class Window:
    """The time that a timeline shows: the last ``span``.

    :ivar tick: the time between two labels of the axis. It is whole days, or a part of a day.
    """

    words: str
    span: timedelta
    tick: timedelta


LAST_DAY = Window("24 hours", DAY, timedelta(hours=6))
LAST_WEEK = Window("7 days", timedelta(days=7), DAY)
WINDOWS = (
    Window("5 minutes", timedelta(minutes=5), timedelta(minutes=1)),
    Window("30 minutes", timedelta(minutes=30), timedelta(minutes=5)),
    Window("6 hours", timedelta(hours=6), timedelta(hours=1)),
    LAST_DAY,
    LAST_WEEK,
    Window("4 weeks", timedelta(weeks=4), timedelta(days=7)),
    Window("6 months", timedelta(days=184), MONTH),
    Window("3 years", timedelta(days=3 * 366), 6 * MONTH),
)


@dataclass(frozen=True)
class Mark:
    """One run: a bar from its start to its end, and a shape for its outcome."""

    shape: str
    x: float
    width: float
    at: float
    title: str


@dataclass(frozen=True)
class Lane:
    holder: str
    top: int
    marks: Sequence[Mark]


@dataclass(frozen=True)
class Chart:
    title: str
    summary: str
    """The chart in words, for screen readers."""
    lanes: Sequence[Lane]
    ticks: Sequence[tuple[float, str]]
    height: int
    left_out: int
    """The number of holders without a lane, because they do not fit."""
    shapes: Sequence[str]
    now: float = NOW


def title_of(run: Run, record: LockRecord) -> str:
    """Return all facts about a run, as the tooltip of its mark."""
    duration = display.duration_of(run, record)
    parts = [
        f"{display.outcome_of(run, record)}: {display.printable(run.holder)}",
        f"started {display.local_iso(run.started)}",
        f"took {display.in_words(duration)}" if duration is not None else "",
        f"fire time {display.local_iso(run.fire_time)}" if run.fire_time else "",
        f"token {run.fencing_token}",
        display.printable(run.error) if run.error else "",
    ]
    return "\n".join(filter(None, parts))


def fitting_window(runs: Sequence[Run], record: LockRecord) -> Window:
    """Return the smallest window with the last run and with twenty runs at the usual gap. ``runs`` are newest first."""
    starts = [run.started for run in runs if not run.is_pause]
    gaps = sorted(abs(later - earlier) for later, earlier in pairwise(starts))
    usual = gaps[len(gaps) // 2] if gaps else timedelta(hours=1)
    since_last = record.read_at - starts[0] if starts else timedelta(0)
    least = max(RUNS_IN_WINDOW * min(usual, WINDOWS[-1].span), since_last * 1.1)
    return next((window for window in WINDOWS if window.span >= least), WINDOWS[-1])


def chart(runs: Sequence[Run], record: LockRecord, window: Window) -> Chart:
    """Return the chart of the ``runs`` of a window. ``runs`` are newest first.

    The newest holders come first. Pauses have a lane of their own. In a lane, the oldest run comes first and bad ends
    come last, so that no other mark covers a bad end.
    """
    now, span = record.read_at, window.span
    begin = now - span

    def x(moment: datetime) -> float:
        return round(min(100.0, max(0.0, (moment - begin) / span * NOW)), 2)

    by_holder: dict[str, list[Mark]] = {}
    for run in runs:
        end = _end_of(run, record)
        if end < begin or run.started > now:
            continue
        start = x(run.started)
        shape = display.outcome_of(run, record)
        at = start if shape in ("vanished", "unfinished") else x(min(end, now))
        mark = Mark(shape, start, max(0.15, round(x(end) - start, 2)), at, title_of(run, record))
        by_holder.setdefault("paused" if run.is_pause else display.printable(run.holder), []).insert(0, mark)
    lanes = [
        Lane(holder, number * LANE_HEIGHT, sorted(marks, key=lambda mark: _ON_TOP.index(mark.shape)))
        for number, (holder, marks) in enumerate(list(by_holder.items())[:MOST_LANES])
    ]
    shown = [mark.shape for lane in lanes for mark in lane.marks]
    counts = ", ".join(f"{shown.count(shape)} {shape}" for shape in SHAPES if shape in shown)
    title = f"Last {window.words}"
    summary = f"{title}: {counts or 'no runs'}; the table below lists them"
    height = max(1, len(lanes)) * LANE_HEIGHT + AXIS_HEIGHT
    shapes = [shape for shape in SHAPES if shape in shown]
    ticks = [(x(moment), label) for moment, label in _ticks(begin, now, window)]
    return Chart(title, summary, lanes, ticks, height, len(by_holder) - len(lanes), shapes)


def _end_of(run: Run, record: LockRecord) -> datetime:
    """Return the end of the run's bar. A vanished run has no bar, because nobody knows its end."""
    if run.outcome == "vanished":
        return run.started
    if run.ended is not None:
        return run.ended
    if run.is_pause and run.locked_by == record.locked_by:
        return record.lock_until
    return record.read_at if display.is_running(run, record) else run.started


def _ticks(begin: datetime, now: datetime, window: Window) -> Iterator[tuple[datetime, str]]:
    """Yield round times of this machine's zone: midnights in a window of days, first days in a window of months."""
    latest = now - window.span * 0.1  # the label of "now" needs room
    if window.tick >= DAY:
        first = display.in_local_zone(begin).date()
        for days in range(1, window.span // DAY + 1):
            day = first + timedelta(days=days)
            moment = datetime.combine(day, time()).astimezone()
            if _is_round(day, window) and begin < moment < latest:
                yield moment, _day_label(day, window)
        return
    step = min(window.tick, timedelta(hours=1))  # a zone may be set forward or back by an hour
    moment = display.in_local_zone(begin).replace(minute=0, second=0, microsecond=0)
    while moment < latest:
        local = display.in_local_zone(moment)
        if moment > begin and timedelta(hours=local.hour, minutes=local.minute) % window.tick == timedelta(0):
            yield moment, f"{local:%H:%M}"
        moment += step


def _is_round(day: date, window: Window) -> bool:
    if window.tick < MONTH:
        return day.toordinal() % (window.tick // DAY) == 0
    return day.day == 1 and (day.month - 1) % (window.tick // MONTH) == 0


def _day_label(day: date, window: Window) -> str:
    if window.tick >= MONTH:
        return f"{day:%b %Y}"
    return f"{day:%a %d}" if window.tick == DAY else f"{day:%d %b}"
