"""The timeline of one job: lanes of runs, one for each holder, in percent of the width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shedlock_py import display
from shedlock_py.history import Run
from shedlock_py.record import LockRecord

DAY, WEEK = timedelta(days=1), timedelta(days=7)
NOW = 97.0
"""Where "now" is; what is planned to go on is to the right of it."""
MOST_LANES = 12
LANE_HEIGHT, AXIS_HEIGHT = 32, 18
SHAPES = ("ok", "failed", "cancelled", "lost", "vanished", "running", "paused", "no-end")


@dataclass(frozen=True)
class Mark:
    """One run: a bar from its start to its end, and a shape that says how it ended."""

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
    """For people who do not see it."""
    lanes: Sequence[Lane]
    ticks: Sequence[tuple[float, str]]
    height: int
    left_out: int
    """Holders without a lane of their own: there are more than fit."""
    shapes: Sequence[str]
    now: float = NOW


def shape_of(run: Run, record: LockRecord) -> str:
    return display.outcome_of(run, record).replace(" ", "-")


def title_of(run: Run, record: LockRecord) -> str:
    """All that is known of a run, for people who point at it."""
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


def chart(runs: Sequence[Run], record: LockRecord, span: timedelta, title: str) -> Chart:
    """The runs of the last ``span``. The newest holders come first; pauses have a lane of their own."""
    now = record.read_at
    begin = now - span

    def x(moment: datetime) -> float:
        return round(min(100.0, max(0.0, (moment - begin) / span * NOW)), 2)

    by_holder: dict[str, list[Mark]] = {}
    for run in runs:
        end = _end_of(run, record)
        if end < begin or run.started > now:
            continue
        start = x(run.started)
        shape = shape_of(run, record)
        at = start if shape in ("vanished", "no-end") else x(min(end, now))
        mark = Mark(shape, start, max(0.15, round(x(end) - start, 2)), at, title_of(run, record))
        by_holder.setdefault("paused" if run.is_pause else display.printable(run.holder), []).append(mark)
    lanes = [
        Lane(holder, number * LANE_HEIGHT, marks)
        for number, (holder, marks) in enumerate(list(by_holder.items())[:MOST_LANES])
    ]
    shown = [mark.shape for lane in lanes for mark in lane.marks]
    counts = ", ".join(f"{shown.count(shape)} {shape.replace('-', ' ')}" for shape in SHAPES if shape in shown)
    summary = f"{title}: {counts or 'no runs'}; the table below has each"
    height = max(1, len(lanes)) * LANE_HEIGHT + AXIS_HEIGHT
    shapes = [shape for shape in SHAPES if shape in shown]
    ticks = [(x(moment), label) for moment, label in _ticks(begin, now, span)]
    return Chart(title, summary, lanes, ticks, height, len(by_holder) - len(lanes), shapes)


def _end_of(run: Run, record: LockRecord) -> datetime:
    """Where its bar ends. Nobody knows when a run ended that vanished: it has no bar."""
    if run.outcome == "vanished":
        return run.started
    if run.ended is not None:
        return run.ended
    if run.is_pause and run.locked_by == record.locked_by:
        return record.lock_until
    return record.read_at if display.is_running(run, record) else run.started


def _ticks(begin: datetime, now: datetime, span: timedelta) -> Iterator[tuple[datetime, str]]:
    """Each sixth hour of a day, each midnight of a week, in this machine's time zone."""
    moment = display.in_local_zone(begin).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    while moment < now - span * 0.1:  # the label of "now" needs room
        local = display.in_local_zone(moment)
        if local.hour % (24 if span > DAY else 6) == 0:
            yield moment, f"{local:%a %d}" if span > DAY else f"{local:%H:%M}"
        moment += timedelta(hours=1)
