"""Hours of work in minutes: memory, descriptors, threads and connections of workers do not grow.

Samples are taken of a fleet at work. After a warm-up, the second half is compared with the first half: a leak grows,
and the normal need of a process does not. The tolerances are below.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.faults.checker import Finding, Report, check
from tests.faults.fleet import Fleet
from tests.faults.registry import Budget, scenario
from tests.faults.report import percentile
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.connections import connections_to
from tests.support.stores import Store

BEHAVIOUR = Behaviour(at_most=0.8, work=(0.0, 0.005), pause=(0.0, 0.005), extends=0.3, keeps_alive=0.3, forgets=0.01)
SIZE = 3
SECONDS = 50.0
"""For every run: six stores, sync and async, take ten minutes."""
GRANTS = 50
"""The least number, for each worker."""
WARM_UP = 0.2
"""Part of the time, and of the grants, in which pools fill, modules are imported, and caches grow."""
SAMPLES = 10
"""The least number. Each worker gets its share of the grants between two samples, so that a leak shows even on a slow
machine."""
SAMPLE_SECONDS = 0.1

MEMORY_TOLERANCE = 2048
"""KiB by which the median memory of all workers together may grow between the halves: 0.7 MiB for each worker."""
COUNT_TOLERANCE = {"descriptors": 3, "threads": 3, "connections": 3}
"""One per worker: a connection that is just being replaced, the thread of a heartbeat."""


@dataclass(frozen=True)
class Sample:
    """A sample of all workers together."""

    memory: int
    """Resident, in KiB."""
    descriptors: int
    threads: int
    connections: int

    @classmethod
    def of(cls, pids: list[int], store: Store) -> Sample:
        status = [_status(pid) for pid in pids]
        return cls(
            memory=sum(int(one["VmRSS"].split()[0]) for one in status),
            descriptors=sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
            threads=sum(int(one["Threads"]) for one in status),
            connections=connections_to(store.addresses),
        )


@scenario(14, "soak", weight=0.5)
def soak(store: Store, budget: Budget, seed: int) -> Report:
    """Run as long as the budget allows, and 50 s at least."""
    return soak_for(store, max(budget.seconds, SECONDS), seed)


def soak_for(
    store: Store,
    seconds: float,
    seed: int,
    *,
    grants: int = GRANTS,
    memory: int = MEMORY_TOLERANCE,
    counts: Mapping[str, int] = COUNT_TOLERANCE,
    provider: str | None = None,
) -> Report:
    """Run for ``seconds``, and until each worker has ``grants``: leaks grow with the number of operations.

    ``memory``, ``counts``: tolerances. Short runs need larger tolerances, as processes touch much of their memory for
    the first time.
    """
    samples: list[Sample] = []
    with Fleet(store, size=SIZE, names=2, behaviour=BEHAVIOUR, seed=seed, provider=provider) as fleet:
        fleet.wait_for_each_name()
        _work(fleet, seconds * WARM_UP, grants * WARM_UP)
        until = time.monotonic() + seconds * (1 - WARM_UP)
        while time.monotonic() < until or len(samples) < SAMPLES:
            samples.append(Sample.of([worker.pid for worker in fleet.workers], store))
            _work(fleet, SAMPLE_SECONDS, grants * (1 - WARM_UP) / SAMPLES)
        report = check(fleet.end(), rules_of(store))
    report.findings += compare(samples, report, memory, counts)
    return report


def _work(fleet: Fleet, seconds: float, grants: float) -> None:
    began = _work_done(fleet)
    fleet.run_for(seconds)
    fleet.wait(lambda: all(_work_done(fleet)[w] - began[w] >= grants for w in began), "work of each")


def _work_done(fleet: Fleet) -> dict[str, int]:
    return {worker.name: fleet.count("acquire", "granted", worker=worker) for worker in fleet.workers}


def compare(
    samples: list[Sample],
    report: Report,
    memory: int = MEMORY_TOLERANCE,
    counts: Mapping[str, int] = COUNT_TOLERANCE,
) -> list[Finding]:
    """Compare the median of the second half with the median of the first half."""
    half = len(samples) // 2
    findings, words = [], []
    for what, tolerance in {"memory": memory, **counts}.items():
        first, second = (
            _median([getattr(sample, what) for sample in part]) for part in (samples[:half], samples[half:])
        )
        words.append(f"{what} {first:.0f} → {second:.0f}{' KiB' if what == 'memory' else ''}")
        if second > first + tolerance:
            text = f"{what} grew from {first:.0f} to {second:.0f} while nothing else changed"
            findings.append(Finding("flat", "", text, 0.0))
    operations = sum(number for kind, number in report.counts.items() if " " in kind)
    report.notes.append(f"{operations} operations of {SIZE} workers: {', '.join(words)}")
    return findings


def _median(values: list[int]) -> float:
    return percentile(values, 0.5) or 0


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
