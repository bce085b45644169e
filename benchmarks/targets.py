"""What is to be reached, and whether it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.contenders import US

Results = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A value, with its spread over the rounds if it has one, and whose or where it is."""

    value: float
    low: float | None = None
    high: float | None = None
    whose: str = ""


@dataclass(frozen=True)
class Target:
    what: str
    limit: float
    ours: Callable[[Results], Figure | None]
    others: Callable[[Results], dict[str, Any]] = lambda results: {}
    """What was measured at the same time, by name, of which the best is looked for."""
    key: str = "ratio"
    at_least: bool = False
    unit: str = ""
    digits: int = 2

    def is_reached(self, figure: Figure) -> bool:
        return figure.value >= self.limit if self.at_least else figure.value <= self.limit

    def best(self, results: Results, *, with_token: bool = False) -> Figure | None:
        """The best of the others; of those that give a fencing token, if so wished."""
        entries = self.others(results).items()
        figures = [
            _figure(entry, self.key, name)
            for name, entry in entries
            if _is_rival(entry) and not (with_token and "token" in entry.get("lacks", ""))
        ]
        choose = max if self.at_least else min
        return choose(filter(None, figures), key=lambda figure: figure.value, default=None)

    def shown_limit(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}{self.unit}"


def _figure(entry: Any, key: str, whose: str = "") -> Figure | None:
    found = (entry or {}).get(key)
    if isinstance(found, dict):
        return Figure(found["middle"], found["low"], found["high"], whose)
    return None if found is None else Figure(found, whose=whose)


def _ours(figure: str, group: str, key: str, name: str = US) -> Callable[[Results], Figure | None]:
    return lambda results: _figure(results.get(figure, {}).get(group, {}).get(name), key)


def _in(figure: str, group: str) -> Callable[[Results], dict[str, Any]]:
    return lambda results: results.get(figure, {}).get(group, {})


def _is_rival(entry: dict[str, Any]) -> bool:
    """A lock without a lease is another thing: it costs less, and does not end when its holder hangs."""
    return bool(entry.get("kind") == "peer" and entry.get("has_lease", True))


def _most_records(results: Results) -> Figure | None:
    """The store in which the greatest number of records costs most."""
    figures = []
    for store, sizes in results.get("records", {}).items():
        if store == "mongodb":  # not MongoDB itself, and with fewer
            continue
        largest = max(sizes, key=int)
        figure = _figure(sizes[largest], "ratio", f"{store}, {int(largest):,}")
        if figure is not None:
            figures.append(figure)
    return max(figures, key=lambda figure: figure.value, default=None)


TARGETS = [
    Target("Redis: acquire + release", 1.2, _ours("latency", "redis", "ratio"), _in("latency", "redis")),
    Target(
        "Redis, asyncio",
        1.2,
        _ours("latency", "redis async", "ratio"),
        _in("latency", "redis async"),
    ),
    Target(
        "PostgreSQL, from a URL",
        1.5,
        _ours("latency", "postgres", "ratio"),
        _in("latency", "postgres"),
    ),
    Target("MariaDB, from a URL", 1.5, _ours("latency", "mariadb", "ratio"), _in("latency", "mariadb")),
    Target("SQLite, from a URL", 5, _ours("latency", "sqlite", "ratio"), _in("latency", "sqlite")),
    Target("MongoDB", 1.2, _ours("latency", "mongodb", "ratio")),
    Target(
        "PostgreSQL: skips per second of 16 processes, share of the floor's",
        0.6,
        _ours("contention", "postgres", "share"),
        _in("contention", "postgres"),
        key="share",
        at_least=True,
    ),
    Target(
        "Redis: skips per second of 16 processes, share of the floor's",
        0.8,
        _ours("contention", "redis", "share"),
        _in("contention", "redis"),
        key="share",
        at_least=True,
    ),
    Target(
        "decorator on the in-memory provider",
        4,
        lambda results: _figure(results.get("decorators", {}).get(f"{US}: decorator"), "ratio"),
        lambda results: results.get("decorators", {}),
    ),
    Target(
        "`import shedlock_py`, over Python alone",
        30,
        lambda results: _figure(results.get("imports", {}).get(US), "ms_over_bare"),
        unit=" ms",
        digits=0,
    ),
    Target(
        "modules that it imports",
        80,
        lambda results: _figure(results.get("imports", {}).get(US), "modules"),
        digits=0,
    ),
    Target("an acquire with 1,000,000 records, to one with 10 (the worst store)", 1.1, _most_records),
]
