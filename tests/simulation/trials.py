"""Simulate each mutant, and measure the simulated time until the checker finds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from tests.simulation.mutants import ALL, Mutant
from tests.simulation.schedule import draw
from tests.simulation.simulation import simulate
from tests.simulation.timeline import clock

HOURS = 1.0
"""The checker must find a mutant within this simulated time."""


@dataclass(frozen=True)
class Detection:
    """When the checker found a mutant, with each seed that was tried.

    :ivar seconds: simulated seconds for each seed; None: not within an hour.
    """

    mutant: Mutant
    seconds: tuple[float | None, ...]
    rules: tuple[str, ...]

    @property
    def is_found(self) -> bool:
        """Whether a seed shows it within the hour. A year has thousands of such hours."""
        return any(each is not None for each in self.seconds)

    @property
    def median(self) -> float:
        return median(float("inf") if each is None else each for each in self.seconds)

    @property
    def worst(self) -> float:
        return max(float("inf") if each is None else each for each in self.seconds)

    def __str__(self) -> str:
        if not self.is_found:
            return f"{self.mutant.name}: NOT FOUND within an hour with {len(self.seconds)} seeds"
        rules = ", ".join(self.rules)
        missed = sum(each is None for each in self.seconds)
        if missed:
            return f"{self.mutant.name}: not within an hour with {missed} of {len(self.seconds)} seeds ({rules})"
        return f"{self.mutant.name}: {clock(self.median)}, at worst {clock(self.worst)} ({rules})"


def try_mutant(mutant: Mutant, seeds: Iterable[int], hours: float = HOURS) -> Detection:
    """Simulate an hour with ``mutant`` for each seed."""
    found = [_first(mutant, seed, hours) for seed in seeds]
    rules = sorted({each[1] for each in found if each is not None})
    return Detection(mutant, tuple(None if each is None else each[0] for each in found), tuple(rules))


def _first(mutant: Mutant, seed: int, hours: float) -> tuple[float, str] | None:
    """Return when, and by which rule, this seed shows the mutant."""
    outcome = simulate(draw(seed, hours, mutant.kind, store=mutant.store), mutant=mutant)
    violation = min(outcome.broken(), key=lambda violation: violation.at, default=None)
    return None if violation is None else (violation.at, violation.rule)


def try_all(seeds: Iterable[int], names: Iterable[str] = ()) -> Iterator[Detection]:
    """Try all mutants, or the mutants with these names."""
    seeds = tuple(seeds)
    for mutant in [ALL[name] for name in names] or ALL.values():
        yield try_mutant(mutant, seeds)
