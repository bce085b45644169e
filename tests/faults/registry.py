"""The scenarios. A module in tests/faults/scenarios adds its scenarios with the decorator; see README.md."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps

from tests.faults import scenarios
from tests.faults.checker import Report
from tests.support.stores import ALL, Store

OF_ANY_CLOCK = tuple(name for name in ALL if name != "s3")
"""Stores that serve clients with any clock. S3 refuses requests that are signed 15 minutes too early or too late."""


class Budget:
    """The time for the trials of a scenario; at least ``least`` trials however long they take."""

    def __init__(self, seconds: float, least: int = 1) -> None:
        self.seconds = seconds
        self.least = least
        self._until = time.monotonic() + seconds

    def trials(self) -> Iterator[int]:
        number = 0
        while number < self.least or time.monotonic() < self._until:
            yield number
            number += 1

    def total(self, one: Callable[[int], Report]) -> Report:
        report = Report()
        for number in self.trials():
            report.add(one(number))
        return report


Run = Callable[[Store, Budget, int], Report]
"""A scenario on one store with a seed. ``store.is_async`` says whether its providers are sync or async."""


@dataclass(frozen=True)
class Scenario:
    number: int
    """The number in the issue. The variants of a scenario share it."""
    name: str
    stores: tuple[str, ...]
    run: Run
    kinds: tuple[str, ...]
    weight: float
    """Its share of the time, relative to the other scenarios."""
    least: int
    """The least number of trials in a full run, for each store and kind, however long they take."""


def by_trial(one: Callable[[Store, int, int], Report]) -> Run:
    """Make a scenario of independent trials: ``one(store, seed, number)`` runs one trial."""

    @wraps(one)
    def run(store: Store, budget: Budget, seed: int) -> Report:
        return budget.total(lambda number: one(store, seed + number, number))

    return run


_scenarios: dict[str, Scenario] = {}


def scenario(
    number: int,
    name: str,
    *,
    stores: tuple[str, ...] = ALL,
    kinds: tuple[str, ...] = ("sync", "async"),
    weight: float = 1.0,
    least: int = 1,
) -> Callable[[Run], Run]:
    """Register ``run(store, budget, seed)``, which stays a function that tests call."""

    def register(run: Run) -> Run:
        _scenarios[name] = Scenario(number, name, stores, run, kinds, weight, least)
        return run

    return register


def all_scenarios() -> list[Scenario]:
    """Import every module of tests/faults/scenarios, and return the scenarios in the order of their numbers."""
    for module in pkgutil.iter_modules(scenarios.__path__, f"{scenarios.__name__}."):
        importlib.import_module(module.name)
    return sorted(_scenarios.values(), key=lambda scenario: (scenario.number, scenario.name))
