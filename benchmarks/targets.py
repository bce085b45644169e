"""The targets, and whether they are reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.charts import STORES
from benchmarks.contenders import US
from benchmarks.history import WITH

Results = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A value with its spread over the rounds, if any, and its contender or store."""

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
    """Results of other contenders in the same rounds, by name. The best is shown."""
    key: str = "ratio"
    at_least: bool = False
    unit: str = ""
    digits: int = 2

    def is_reached(self, figure: Figure) -> bool:
        return figure.value >= self.limit if self.at_least else figure.value <= self.limit

    def best(self, results: Results, *, with_token: bool = False) -> Figure | None:
        """Return the best peer's figure; ``with_token`` leaves out peers without a fencing token."""
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


def _in(figure: str, group: str) -> Callable[[Results], dict[str, Any]]:
    return lambda results: results.get(figure, {}).get(group, {})


def _is_rival(entry: dict[str, Any]) -> bool:
    """Whether the lock has a lease. A lock without a lease costs less, but stays with a hung holder."""
    return bool(entry.get("kind") == "peer" and entry.get("has_lease", True))


def _most_records(results: Results) -> Figure | None:
    """Return the store where the most records cost most."""
    figures = []
    for store, sizes in results.get("records", {}).items():
        if store == "mongodb":  # SecantusDB is not MongoDB, and has fewer records
            continue
        largest = max(sizes, key=int)
        figure = _figure(sizes[largest].get(US), "ratio", f"{store}, {int(largest):,}")
        if figure is not None:
            figures.append(figure)
    return max(figures, key=lambda figure: figure.value, default=None)


def _latency(what: str, limit: float, group: str) -> Target:
    return Target(
        what, limit, lambda results: _figure(_in("latency", group)(results).get(US), "ratio"), _in("latency", group)
    )


def _history(store: str) -> Target:
    what = f"{STORES[store]}: acquire + release with run history, ratio to no history"
    return Target(what, 1.3, lambda results: _figure(_in("history", store)(results).get(WITH), "ratio"))


def _skips(store: str, limit: float) -> Target:
    what = f"{STORES[store]}: skips per second of 16 processes, share of the floor's"
    found = _in("contention", store)
    return Target(
        what, limit, lambda results: _figure(found(results).get(US), "share"), found, key="share", at_least=True
    )


def _guarded_call(results: Results) -> Figure | None:
    entry = results.get("decorators", {}).get(f"{US}: decorator")
    return Figure(entry["ns"] / 1000) if entry else None


def _import(what: str, limit: float, key: str, unit: str = "") -> Target:
    return Target(what, limit, lambda results: _figure(_in("imports", US)(results), key), unit=unit, digits=0)


TARGETS = [
    _latency("Redis: acquire + release", 1.2, "redis"),
    _latency("Redis, asyncio", 1.4, "redis async"),
    _latency("PostgreSQL, from a URL", 1.6, "postgres"),
    _latency("MariaDB, from a URL", 1.6, "mariadb"),
    _latency("MySQL, from a URL", 1.6, "mysql"),
    _latency("SQLite, from a URL", 2, "sqlite"),
    _latency("MongoDB", 1.2, "mongodb"),
    _latency("etcd", 1.5, "etcd"),
    _latency("etcd, asyncio", 1.5, "etcd async"),
    _latency("DynamoDB Local", 1.5, "dynamodb"),
    _latency("DynamoDB Local, asyncio", 1.5, "dynamodb async"),
    _latency("S3", 1.5, "s3"),
    _latency("S3, asyncio", 1.5, "s3 async"),
    _latency("Kubernetes", 1.5, "kubernetes"),
    _latency("Kubernetes, asyncio", 1.5, "kubernetes async"),
    *(_history(store) for store in ("postgres", "redis", "mongodb")),
    _skips("postgres", 0.4),
    _skips("redis", 0.75),
    Target("a guarded call in memory", 25, _guarded_call, unit=" µs", digits=1),
    _import("`import shedlock_py`, over Python alone", 60, "ms_over_bare", " ms"),
    _import("modules that it imports", 85, "modules"),
    Target("an acquire with 1,000,000 records, to one with 10 (the worst store)", 1.1, _most_records),
]
