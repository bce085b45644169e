"""Ten thousand replicas with five hundred jobs each, all at the same second, on one store: what helps?

A simulation with measured costs: ``python -m benchmarks.simulate`` reads the last full run, and writes the tables of
``docs/scaling.md`` and its chart again. Every replica wakes up at the tick, plus its clock error and its jitter, and
requests its jobs' locks a few at a time, as its thread pool allows. Each processor of the store handles requests in
sequence. A request beyond the time limit is an error instead of a skip.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import charts
from benchmarks.contenders import US
from benchmarks.machine import ROOT

PAGE = ROOT / "docs" / "scaling.md"
CHART = ROOT / "docs" / "benchmarks" / "scaling.svg"
LAST = ROOT / "benchmarks" / "results" / "last.json"
BEGIN = "<!-- begin: written by `make bench` -->"
END = "<!-- end: written by `make bench` -->"

REPLICAS = 10_000
JOBS = 500
SIZES = (10, 100, 1_000, REPLICAS)
THREADS = 10
"""The default of APScheduler's pool."""
CLOCKS_DIFFER = 0.02
"""Seconds: the standard deviation of the replicas' clocks and of the schedulers' own delays."""
NETWORK = 0.0005
TIME_LIMIT = 5.0
"""Seconds. A longer request is an error, with a provider from a URL."""
GRACE = 1.0
"""APScheduler's ``misfire_grace_time``: a run that cannot begin by then is dropped."""
ENOUGH = 0.25
"""The share of a store that locking may use if the store has other work."""
PERIOD = 60.0
"""Seconds between ticks: a store that takes longer never catches up."""
RETRY_PERIOD = 2.0
"""Seconds between a follower's reads, by default; a tenth is added on average."""


@dataclass(frozen=True)
class Store:
    name: str
    processors: int
    skip_us: float
    """Its processor time."""
    run_us: float
    """An acquire and its release."""
    read_us: float


@dataclass(frozen=True)
class Strategy:
    name: str
    jitter: float = 0.0
    """Seconds, uniformly distributed."""
    groups: int = 1
    """Number of groups of replicas. Each job runs in one group only."""
    stores: int = 1
    """Number of stores. Lock names are spread over them."""
    leads: bool = False
    """Whether only the leader's scheduler works."""
    retry_period: float = RETRY_PERIOD


PLAIN = Strategy("every replica attempts at the tick")
STRATEGIES = [
    PLAIN,
    Strategy("jitter of 30 s", jitter=30),
    Strategy("each job on 1 replica in 100", groups=100),
    Strategy("names over 10 stores", stores=10),
    Strategy("leader mode", leads=True),
    Strategy("leader mode, followers read every 20 s", leads=True, retry_period=20),
]


@dataclass(frozen=True)
class Outcome:
    attempts: int
    answered: float
    """Seconds until the last reply."""
    replica: float
    """Seconds between first request and last reply, on the slowest replica."""
    late: float
    """Share of the requests beyond the time limit."""
    steady: float
    """Followers' requests per second, at all times."""
    load: float
    """Their share of one store's processors."""
    busy: float
    """Share of the processors for one tick per period, with followers. Above 1, the store never catches up."""


@cache
def simulate(store: Store, strategy: Strategy, replicas: int = REPLICAS, jobs: int = JOBS, seed: int = 1) -> Outcome:
    """Simulate one tick. Seconds are counted from the tick."""
    rng = random.Random(seed)
    steady = replicas / (strategy.retry_period * 1.1) if strategy.leads else 0.0
    load = steady * store.read_us / 1e6 / store.processors
    if strategy.leads:
        store = replace(store, skip_us=store.run_us / max(0.05, 1 - load))  # the followers' reads come in between
    replicas_at_tick = 1 if strategy.leads else replicas
    each_us = store.run_us if strategy.leads else store.skip_us
    # All stores behave alike: simulate only the first.
    attempts = max(1, jobs // strategy.groups // strategy.stores)
    waits, done, slowest = _tick(store, strategy.jitter, replicas_at_tick, attempts, rng)
    questions = sum(size for _, size in waits)
    return Outcome(
        attempts=questions * strategy.stores,
        answered=done,
        replica=slowest,
        late=sum(size for wait, size in waits if wait > TIME_LIMIT) / questions,
        steady=steady,
        load=load,
        busy=load + questions * each_us / 1e6 / store.processors / PERIOD,
    )


Waits = list[tuple[float, int]]
"""Waits in seconds, each with its number of attempts."""


def _tick(store: Store, jitter: float, replicas: int, jobs: int, rng: random.Random) -> tuple[Waits, float, float]:
    """Let each replica send requests for its jobs, a few at a time, and continue after the replies.

    Return each group's wait, the end, and the slowest replica's time.
    """
    each = store.skip_us / 1e6 / store.processors
    starts = [rng.gauss(0, CLOCKS_DIFFER) + rng.uniform(0, jitter) for _ in range(replicas)]
    todo = [(start, number, jobs) for number, start in enumerate(starts)]
    heapq.heapify(todo)
    waits: Waits = []
    free, last, slowest = -1e9, 0.0, 0.0
    while todo:
        now, number, left = heapq.heappop(todo)
        size = min(THREADS, left)
        free = max(free, now) + size * each
        answered = free + NETWORK
        waits.append((answered - now, size))
        last, slowest = max(last, answered), max(slowest, answered - starts[number])
        if left > size:
            heapq.heappush(todo, (answered, number, left - size))
    return waits, last, slowest


# From measured costs


def stores(results: dict[str, Any]) -> list[Store]:
    """Redis works on one processor; for PostgreSQL eight are assumed."""
    found = []
    for name, title, processors in (("redis", "Redis", 1), ("postgres", "PostgreSQL", 8)):
        entry = results.get("latency", {}).get(name, {}).get(US)
        if entry and entry.get("skip_server_cpu_us"):
            skip = entry["skip_server_cpu_us"]
            found.append(Store(title, processors, skip, entry["server_cpu_us"], skip))
    return found


def write(results: dict[str, Any], page: Path = PAGE, chart: Path = CHART) -> None:
    if not stores(results):
        return
    page.write_text(filled(page.read_text(), results))
    chart.write_text(draw(results))


def filled(text: str, results: dict[str, Any]) -> str:
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"no marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables(results)}\n{END}{after}"


def tables(results: dict[str, Any]) -> str:
    found = stores(results)
    titles = "".join(f" | {_title(store)}" for store in found)
    lines = [f"| | attempts | between ticks{titles} |", f"| --- | ---: | ---: |{' --- |' * len(found)}"]
    for strategy in STRATEGIES:
        outcomes = [simulate(store, strategy) for store in found]
        steady = f"{outcomes[0].steady:,.0f}/s" if outcomes[0].steady else "–"
        cells = "".join(
            f" | {_seconds(outcome.answered)}, {outcome.busy:.0%}: {verdict(outcome)}" for outcome in outcomes
        )
        lines.append(f"| {strategy.name} | {outcomes[0].attempts:,} | {steady}{cells} |")
    return "\n".join([*lines, ""])


def _title(store: Store) -> str:
    return f"{store.name}, {store.processors} processor{'s' if store.processors > 1 else ''}"


def verdict(outcome: Outcome) -> str:
    """Return the worst finding."""
    if outcome.busy > 1 or outcome.answered > PERIOD:
        return "**not done at the next tick**"
    if outcome.late > 0:
        return f"**{outcome.late:.0%} errors**"
    if outcome.replica > GRACE:
        return "late runs are dropped"
    return "good" if outcome.busy < ENOUGH else "the store has little time for anything else"


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value:.1f} s"


def draw(results: dict[str, Any]) -> str:
    return charts.scaling(
        [(store.name, _lines(store)) for store in stores(results)],
        {PERIOD: f"{PERIOD:g} s: the next tick", GRACE: f"{GRACE:g} s: late runs are dropped"},
        f"How long the slowest replica waits for the answers to its {JOBS} jobs (lower is better)",
    )


def _lines(store: Store) -> Sequence[tuple[str, Sequence[tuple[float, float]]]]:
    shown = [strategy for strategy in STRATEGIES if strategy.retry_period == RETRY_PERIOD]
    return [
        (strategy.name, [(float(size), simulate(store, strategy, size).replica) for size in SIZES])
        for strategy in shown
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate",
        description="Simulate with the costs of skips and acquires from the benchmark, and rewrite the tables of"
        " docs/scaling.md and its chart. make bench does this, too.",
    )
    parser.add_argument("results", nargs="?", type=Path, default=LAST, help="raw figures (default: the last full run)")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write (default: docs/scaling.md)")
    parser.add_argument("--chart", type=Path, default=CHART, help="default: docs/benchmarks/scaling.svg")
    options = parser.parse_args(arguments)
    write(json.loads(options.results.read_text()), options.page, options.chart)


if __name__ == "__main__":
    main()
