"""One client alone: the time and processor time of an acquire with its release, and of a skip."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from time import process_time_ns
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.plan import Plan
from benchmarks.servers import ProcessorTime, RunningStore
from benchmarks.statistics import quantile, ratio
from benchmarks.subject import Subject

WARM_UP = 12  # psycopg prepares a statement at its sixth use
MOST = 1000  # cycles in a block
_US = 1000


@dataclass
class Measured:
    """A contender's blocks, one for each round. None for a block that failed."""

    contender: Contender
    cycle: list[float | None] = field(default_factory=list)
    """Medians, in microseconds."""
    cycle_p95: list[float] = field(default_factory=list)
    skip: list[float | None] = field(default_factory=list)
    skip_p95: list[float] = field(default_factory=list)
    client_cpu: list[float] = field(default_factory=list)
    """Per acquire and release, in microseconds."""
    server_cpu: list[float] = field(default_factory=list)
    skip_server_cpu: list[float] = field(default_factory=list)

    def add(self, blocks: Sequence[_Block]) -> None:
        """Add one round's blocks."""
        self.cycle.append(median(block.cycle for block in blocks))
        self.cycle_p95.append(median(block.cycle_p95 for block in blocks))
        self.client_cpu.append(median(block.client_cpu for block in blocks))
        self.server_cpu.append(median(block.server_cpu for block in blocks))
        skips = [block.skip for block in blocks if block.skip is not None]
        self.skip.append(median(skips) if skips else None)
        if skips:
            self.skip_p95.append(median(block.skip_p95 for block in blocks))
            self.skip_server_cpu.append(median(block.skip_server_cpu for block in blocks))


@dataclass
class _Block:
    """In microseconds."""

    cycle: float
    cycle_p95: float
    client_cpu: float
    server_cpu: float
    skip: float | None = None
    skip_p95: float = 0.0
    skip_server_cpu: float = 0.0


@dataclass(eq=False)
class _Entry:
    subject: Subject
    holder: Subject | None
    measured: Measured
    cycles: int = 1
    refusals: int = 1

    @property
    def free(self) -> str:
        return f"free-{self.subject.contender.slug}"

    @property
    def held(self) -> str:
        return f"held-{self.subject.contender.slug}"


def measure(store: RunningStore, contenders: Sequence[Contender], plan: Plan, rng: random.Random) -> list[Measured]:
    with asyncio.Runner() as runner:
        entries = [entry for contender in contenders if (entry := _open(contender, store, plan, runner))]
        for _ in range(plan.rounds):
            _round(entries, store, plan, rng)
        for entry in entries:
            for subject in filter(None, (entry.subject, entry.holder)):
                plan.opened(subject.contender, "closing", subject.close)
        return [entry.measured for entry in entries]


def _round(entries: list[_Entry], store: RunningStore, plan: Plan, rng: random.Random) -> None:
    """Measure each contender once, in random order, and the floors three times, because all are compared with them."""
    order = entries + 2 * [entry for entry in entries if entry.subject.contender.kind == "floor"]
    rng.shuffle(order)
    blocks: dict[int, list[_Block]] = {}
    for entry in order:
        if entry not in entries:
            continue
        try:
            blocks.setdefault(id(entry), []).append(_block(entry, store))
        except Exception as error:
            plan.drop(entry.subject.contender, "latency", error)
            entries.remove(entry)
    for entry in entries:
        entry.measured.add(blocks[id(entry)])


def _open(contender: Contender, store: RunningStore, plan: Plan, runner: asyncio.Runner) -> _Entry | None:
    try:
        subject = Subject(contender, store.site, runner)
        entry = _Entry(subject, None, Measured(contender))
        took = median(subject.cycles([entry.free] * WARM_UP)[WARM_UP // 2 :])
        entry.cycles = _how_many(took, plan.block_seconds)
        if contender.skips:
            entry.holder = Subject(contender, store.site, runner)
            entry.holder.keep(entry.held)
            took = median(subject.refusals(entry.held, WARM_UP)[WARM_UP // 2 :])
            entry.refusals = _how_many(took, plan.block_seconds / 2)
    except Exception as error:
        plan.drop(contender, "latency", error)
        return None
    return entry


def _how_many(took_ns: float, seconds: float) -> int:
    return max(3, min(MOST, int(seconds * 1e9 / took_ns)))


def _block(entry: _Entry, store: RunningStore) -> _Block:
    entry.subject.cycles([entry.free] * 2)  # warms the caches after the previous contender
    processors = ProcessorTime(store.pid)
    server, client = processors.read(), process_time_ns()
    took = entry.subject.cycles([entry.free] * entry.cycles)
    client, server = process_time_ns() - client, processors.read_again() - server
    block = _Block(
        median(took) / _US,
        quantile(took, 0.95) / _US,
        client / entry.cycles / _US,
        server / entry.cycles / _US,
    )
    if entry.holder is not None:
        entry.subject.refusals(entry.held, 2)
        server = processors.read()
        took = entry.subject.refusals(entry.held, entry.refusals)
        block.skip_server_cpu = (processors.read_again() - server) / entry.refusals / _US
        block.skip, block.skip_p95 = median(took) / _US, quantile(took, 0.95) / _US
    return block


def figures(measured: Sequence[Measured]) -> dict[str, dict[str, Any]]:
    """Return the figures for the raw JSON, by name."""
    floors = {one.contender.name: one for one in measured if one.contender.kind == "floor"}
    return {one.contender.name: _figures(one, floors.get(one.contender.floor)) for one in measured}


def _figures(one: Measured, floor: Measured | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": one.contender.kind,
        "lacks": one.contender.lacks,
        "has_lease": one.contender.has_lease,
        "floor": one.contender.floor,
        "p50_us": _median(one.cycle),
        "p95_us": median(one.cycle_p95),
        "client_cpu_us": median(one.client_cpu),
        "server_cpu_us": median(one.server_cpu),
        "rounds_us": _rounded(one.cycle),
    }
    skips = [value for value in one.skip if value is not None]
    if skips:
        found |= {
            "skip_p50_us": median(skips),
            "skip_p95_us": median(one.skip_p95),
            "skip_server_cpu_us": median(one.skip_server_cpu),
            "skip_rounds_us": _rounded(skips),
        }
    if floor is not None:
        for name, ours, base in (
            ("ratio", one.cycle, floor.cycle),
            ("skip_ratio", one.skip, floor.skip),
            ("cpu_ratio", one.client_cpu, floor.client_cpu),
        ):
            if (compared := ratio(ours, base)) is not None:
                found[name] = asdict(compared)
    return found


def _median(values: Sequence[float | None]) -> float:
    return median([value for value in values if value is not None])


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 2) for value in values]
