"""The results of many simulations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.schedule import Violation


@dataclass(frozen=True)
class Result:
    """The result of one schedule, small enough to send between processes."""

    seed: int
    kind: str
    hours: float
    events: int
    counts: Counter[str]
    violation: Violation | None
    """The first violation."""
    store: str = "memory"


@dataclass(frozen=True)
class Found:
    """A violation, and the schedule to replay."""

    seed: int
    kind: str
    hours: float
    violation: Violation
    store: str = "memory"


@dataclass
class Tally:
    """The sum of many results."""

    hours: float = 0.0
    events: int = 0
    seeds: int = 0
    found: list[Found] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    by_kind: dict[str, float] = field(default_factory=dict)
    """Simulated hours."""
    by_store: dict[str, float] = field(default_factory=dict)
    """Simulated hours."""

    def add(self, result: Result) -> None:
        self.hours += result.hours
        self.events += result.events
        self.seeds += 1
        self.counts.update(result.counts)
        self.by_kind[result.kind] = self.by_kind.get(result.kind, 0.0) + result.hours
        self.by_store[result.store] = self.by_store.get(result.store, 0.0) + result.hours
        if result.violation is not None:
            self.found.append(Found(result.seed, result.kind, result.hours, result.violation, result.store))
