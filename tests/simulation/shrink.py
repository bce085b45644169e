"""Find the shortest schedule that still shows a violation: fewer faults, fewer nodes, less time.

Delta debugging: leave out a part, simulate the remaining parts, and keep the part out if the same rule is still broken.
The schedule lists all faults, and each message's fate depends on its own number only. So leaving out a fault does not
change the other events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tests.simulation.schedule import Outcome, Schedule, Violation

Part = TypeVar("Part")
Simulation = Callable[[Schedule], Outcome]

AFTERWARDS = 1.0
"""Seconds that are simulated after the violation: the judge may need the end of an operation."""


@dataclass(frozen=True)
class Shrunk:
    """The shortest schedule found, and its outcome."""

    schedule: Schedule
    outcome: Outcome
    violation: Violation
    simulations: int
    is_complete: bool
    """False if the time limit came first."""


class _OutOfTime(Exception):
    pass


class Shrinker:
    """Shrinks a schedule. ``simulation`` must be deterministic."""

    def __init__(self, simulation: Simulation, *, seconds: float = 60.0) -> None:
        self._simulation = simulation
        self._until = time.monotonic() + seconds
        self._simulations = 0
        self._best: tuple[Schedule, Outcome, Violation]

    def shrink(self, schedule: Schedule, outcome: Outcome) -> Shrunk:
        """Return the shortest schedule that breaks the same rule as the first violation of ``outcome``."""
        self._best = (schedule, outcome, first(outcome))
        is_complete = False
        try:
            while True:
                before = self._best[0]
                self._cut_the_end()
                self._leave_out_faults()
                self._leave_out_nodes()
                if self._best[0] == before:
                    break
            is_complete = True
        except _OutOfTime:
            pass
        return Shrunk(*self._best, self._simulations, is_complete)

    def _still_violates(self, schedule: Schedule) -> bool:
        if time.monotonic() > self._until:
            raise _OutOfTime
        self._simulations += 1
        outcome = self._simulation(schedule)
        same = [each for each in outcome.violations if _promise(each) == _promise(self._best[2])]
        if not same:
            return False
        self._best = (schedule, outcome, min(same, key=lambda violation: violation.at))
        return True

    def _cut_the_end(self) -> None:
        schedule, _, violation = self._best
        for afterwards in (AFTERWARDS, 30.0, 300.0):
            hours = (violation.at + afterwards) / 3600
            if hours >= schedule.hours:
                return
            faults = tuple(fault for fault in schedule.faults if fault.at <= violation.at)
            if self._still_violates(replace(schedule, hours=hours, faults=faults)):
                return

    def _leave_out_faults(self) -> None:
        faults = self._best[0].faults
        smallest(faults, lambda kept: self._still_violates(replace(self._best[0], faults=tuple(kept))))

    def _leave_out_nodes(self) -> None:
        for nodes in range(1, self._best[0].nodes):
            faults = tuple(fault for fault in self._best[0].faults if fault.node < nodes)
            if self._still_violates(replace(self._best[0], nodes=nodes, faults=faults)):
                return


def smallest(parts: Sequence[Part], is_enough: Callable[[Sequence[Part]], bool]) -> Sequence[Part]:
    """Return parts that are all needed (delta debugging: leave out halves first, then smaller pieces)."""
    if not parts or is_enough(()):
        return ()
    size = max(1, len(parts) // 2)
    while True:
        position = 0
        was_smaller = False
        while position < len(parts):
            rest = (*parts[:position], *parts[position + size :])
            if len(rest) < len(parts) and rest and is_enough(rest):
                parts, was_smaller = rest, True
            else:
                position += size
        if size == 1 and not was_smaller:
            return parts
        size = max(1, size // 2)


def _promise(violation: Violation) -> str:
    """Return a common name for wrong skips: their rule depends on the death of the last holder, so on the faults."""
    return "grant lost" if violation.rule == "crash bound" else violation.rule


def first(outcome: Outcome) -> Violation:
    """Return the first violation; violations that no documented limit explains come first."""
    return min(outcome.broken() or outcome.violations, key=lambda violation: violation.at)
