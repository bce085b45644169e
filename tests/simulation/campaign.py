"""Simulate many schedules, one seed after another, until enough hours are over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from multiprocessing import get_context

from tests.simulation.schedule import KINDS, LIMITS, draw
from tests.simulation.simulation import simulate
from tests.simulation.tally import Result, Tally

WITHIN_LIMITS = tuple(kind for kind in KINDS if kind not in LIMITS)
SHORT, CALM, LONG = 1.0, 4.0, 24.0
"""Hours of one schedule. Only short schedules are dense."""
SHORT_EVERY = 3
"""Every so many schedules, a dense one comes. Not a divisor of the number of stores: kinds meet stores in both."""
LONG_EVERY = 50
"""Every so many schedules, a long one shows faults that build up slowly."""


MODELS = ("sql", "redis", "mongodb", "cas", "dynamodb")
"""Model stores of ``tests.simulation.stores``: the real statements and scripts, at half the speed."""
STORES = (*MODELS, *("memory",) * 95)
"""Schedules use these in rotation, so each model store gets a hundredth of them."""


@dataclass(frozen=True)
class Job:
    """A schedule to simulate."""

    seed: int
    kind: str
    hours: float
    store: str = "memory"


def jobs(seed: int, kinds: Sequence[str], stores: Sequence[str] = ("memory",)) -> Iterator[Job]:
    """Yield schedules without end, with seeds from ``seed`` on. Kinds and stores are used in rotation."""
    shifts = len(kinds) % SHORT_EVERY == 0  # otherwise the same kinds would always be dense
    for number in count():
        turn = number // len(kinds) if shifts else 0
        hours = SHORT if (number + turn) % SHORT_EVERY == 0 else CALM
        if number % LONG_EVERY == LONG_EVERY - 1:
            hours = LONG
        yield Job(seed + number, kinds[number % len(kinds)], hours, stores[number // len(kinds) % len(stores)])


def for_hours(hours: float, planned: Iterator[Job]) -> Iterator[Job]:
    """Yield the jobs that fit into ``hours``; the last job is cut off."""
    left = hours
    while left > 0:
        job = next(planned)
        yield Job(job.seed, job.kind, min(job.hours, left), job.store)
        left -= job.hours


def run_one(job: Job) -> Result:
    """Simulate a schedule. Without other violations, a violation of a limit counts."""
    outcome = simulate(draw(job.seed, job.hours, job.kind, store=job.store))
    violations = outcome.broken() or outcome.violations
    first = min(violations, key=lambda violation: violation.at, default=None)
    return Result(job.seed, job.kind, job.hours, outcome.events, outcome.counts, first, job.store)


def run(
    planned: Iterator[Job], *, processes: int = 1, on_result: Callable[[Tally, Result], None] | None = None
) -> Tally:
    """Simulate all of ``planned``, in this process or in several processes."""
    tally = Tally()
    for result in _results(planned, processes):
        tally.add(result)
        if on_result is not None:
            on_result(tally, result)
    return tally


def _results(planned: Iterator[Job], processes: int) -> Iterator[Result]:
    if processes == 1:
        yield from map(run_one, planned)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        while chunk := list(islice(planned, 16 * processes)):
            yield from pool.map(run_one, chunk)


# Documented limits


@dataclass(frozen=True)
class Limit:
    """How often schedules that go beyond a documented limit have broken a promise."""

    kind: str
    seeds: int
    broken: int
    rules: tuple[str, ...]
    unexpected: Tally

    def __str__(self) -> str:
        facts = KINDS[self.kind]
        found = f"{self.broken} of {self.seeds} seeds"
        if not self.broken:
            return f"NOT found, although documented: {self.kind}: {facts.limit}, {found}"
        return f"found, as documented: {self.kind}: {facts.limit}; {found} ({', '.join(self.rules)})"


def try_limit(kind: str, seed: int, seeds: int, *, processes: int = 1) -> Limit:
    """Simulate ``seeds`` schedules of ``kind``, an hour each."""
    rules: set[str] = set()
    unexpected = Tally()
    broken = 0
    for result in _results((Job(seed + number, kind, SHORT) for number in range(seeds)), processes):
        if result.violation is None:
            continue
        if result.violation.is_documented:
            broken += 1
            rules.add(result.violation.rule)
        else:
            unexpected.add(result)
    return Limit(kind, seeds, broken, tuple(sorted(rules)), unexpected)
