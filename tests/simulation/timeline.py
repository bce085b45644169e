"""Print the shortest schedule that shows a violation as a timeline for people."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.schedule import KINDS, Entry, Schedule, Violation
from tests.simulation.shrink import Shrunk

LINES = 60
"""Number of last lines before the violation: earlier events seldom matter."""
AFTERWARDS = 1.0
"""Seconds that are shown after the violation."""


def describe(shrunk: Shrunk, *, lines: int = LINES) -> str:
    """Describe the schedule, its events, and how to replay it."""
    return "\n".join(_describe(shrunk, lines))


def _describe(shrunk: Shrunk, lines: int) -> Iterator[str]:
    schedule, violation = shrunk.schedule, shrunk.violation
    yield f"{violation.rule}: {violation.text}"
    yield f"  broken {clock(violation.at)} after the start of seed {schedule.seed}, kind {schedule.kind!r}"
    faults = [fault for fault in schedule.faults if fault.at <= violation.at]
    yield (
        f"  the shortest schedule that shows it, after {shrunk.simulations} simulations"
        f"{'' if shrunk.is_complete else ' (the time was over: a shorter one may exist)'}: "
        f"{schedule.nodes} nodes, {clock(schedule.hours * 3600)}, {len(faults)} faults"
    )
    for fault in faults:
        yield f"    {relative(fault.at, violation)}  {str(fault).partition(': ')[2]}"
    yield from timeline(shrunk.outcome.timeline, violation, lines)


def timeline(entries: list[Entry], violation: Violation, lines: int = LINES) -> Iterator[str]:
    """Yield the events before the violation and right after it. Times count from the violation."""
    shown = [entry for entry in entries if entry.at <= violation.at + AFTERWARDS]
    yield "  seconds before the violation, who, what:"
    if len(shown) > lines:
        yield f"    … {len(shown) - lines} lines before that"
    is_after = False
    for entry in shown[-lines:]:
        if entry.at > violation.at and not is_after:
            is_after = True
            yield f"    {relative(violation.at, violation)}  {'':10}  ^ {violation.rule}"
        yield f"    {relative(entry.at, violation)}  {entry.node:10}  {entry.text}"
    if not is_after:
        yield f"    {relative(violation.at, violation)}  {'':10}  ^ {violation.rule}"


def relative(at: float, violation: Violation) -> str:
    return f"{at - violation.at:+12.3f}"


def clock(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes:02} min {rest:04.1f} s"
    return f"{minutes} min {rest:04.1f} s" if minutes else f"{rest:.1f} s"


def replay(schedule: Schedule) -> str:
    """Return the command that simulates this schedule again."""
    store = "" if schedule.store == "memory" else f" --store {schedule.store}"
    what = f"--kind '{schedule.kind}' --hours {schedule.hours:g}{store}"
    return f".venv/bin/python -m tests.simulation {what} --replay {schedule.seed}"


def name_of(schedule: Schedule) -> str:
    facts = KINDS[schedule.kind]
    return f"seed {schedule.seed}, {schedule.kind} ({facts.text})"
