"""Wall clocks that are wrong, or jump: of workers, of the store, of some servers of a quorum."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from tests.faults.checker import Finding, Report, check
from tests.faults.clocked import ClockedStore, clocked, worker_clocks
from tests.faults.clocks import Clock
from tests.faults.fleet import Fleet, ForkServer
from tests.faults.history import History, monotonic
from tests.faults.registry import OF_ANY_CLOCK, Budget, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import WITH_NETWORK, Store

MINUTE, HOUR = 60.0, 3600.0
SIZES = (HOUR, -HOUR, MINUTE, -MINUTE, 0.0)
JUMPS = 15
"""Jumps of the clocks of workers, or of a minority of servers, in one trial."""

# No longer extensions: the excuses after a jump are counted from at_most.
BEHAVIOUR = Behaviour(
    at_most=0.8, at_least=0.05, work=(0.05, 0.3), pause=(0.0, 0.03), extends=0.4, varies=0.0, keeps_alive=0.3
)

FORWARD = frozenset({"overlap", "refused write", "minimum hold"})
"""Rules that a store breaks if its clock is set forward: it treats valid leases as expired."""
BACK = frozenset({"crash bound", "grant lost"})
"""Rules that a store breaks if its clock is set back: it treats expired leases as valid."""
UNDER_WAY = 0.1
"""Seconds before a jump: an operation that began in this time may have met the jump."""


# Workers


@scenario(7, "workers' clocks jump", stores=tuple(name for name in OF_ANY_CLOCK if name in WITH_NETWORK))
def worker_jumps(store: Store, budget: Budget, seed: int) -> Report:
    """Three workers, one on time and two an hour off. The holder's clock jumps, and nothing changes."""
    with worker_clocks(3) as clocks:
        return budget.total(lambda trial: jump_workers(store, clocks, seed + trial))


def jump_workers(store: Store, clocks: Sequence[tuple[Clock, ForkServer]], seed: int, jumps: int = JUMPS) -> Report:
    for (clock, _), offset in zip(clocks, (0.0, HOUR, -HOUR), strict=True):
        clock.set(offset)
    with _fleet(store, clocks, seed) as fleet:
        by_worker = dict(zip([worker.name for worker in fleet.workers], clocks, strict=True))
        for _ in range(jumps):
            clock, _ = by_worker[fleet.wait_for_holder().name]
            clock.set(fleet.random.choice(SIZES))
            fleet.run_for(fleet.random.uniform(0.0, 0.1))
        fleet.wait_for_each_name()
        return _checked(fleet, clocks)


@scenario(7, "workers' clocks differ *", stores=("sqlite",), weight=0.5)
def sqlite_workers_differ(store: Store, budget: Budget, seed: int) -> Report:
    """Not promised, as a machine has one clock: a worker that is an hour ahead takes the lock from a worker on time."""

    def trial(clocks: Sequence[tuple[Clock, ForkServer]], number: int) -> Report:
        with _fleet(store, clocks[:1], seed + number) as fleet:
            fleet.wait_for_holder()
            ahead = fleet.add(fork_server=clocks[1][1])
            fleet.wait_for_grants(2, worker=ahead)
            return _checked(fleet, clocks, off=FORWARD | BACK)

    with worker_clocks(2) as clocks:
        clocks[1][0].set(HOUR)
        report = budget.total(partial(trial, clocks))
    report.note_overlaps(f"{store.kind}: not promised, the machine has one clock; one is an hour ahead", "trials")
    return report


def _fleet(store: Store, clocks: Sequence[tuple[Clock, ForkServer]], seed: int) -> Fleet:
    fleet = Fleet(store, size=0, behaviour=BEHAVIOUR, seed=seed, fork_server=clocks[0][1])
    for _, fork_server in clocks:
        fleet.add(fork_server=fork_server)
    return fleet


def _checked(fleet: Fleet, clocks: Sequence[tuple[Clock, ForkServer]], off: frozenset[str] = frozenset()) -> Report:
    history = fleet.end()
    for _, fork_server in clocks:
        complaints = fork_server.complaints()
        assert not complaints, complaints
    return check(history, rules_of(fleet.store, off=off))


# The store


@dataclass(frozen=True)
class Jump:
    size: float
    """Seconds; positive if forward."""
    before: float
    after: float
    """It happened between ``before`` and ``after``, by the common clock."""

    def with_met(self, history: History) -> Jump:
        """Return the jump with ``before`` moved to the begin of the operations that were under way."""
        met = [
            operation.started
            for operation in history.operations
            if operation.ended is not None and operation.started <= self.after and operation.ended >= self.before
        ]
        return replace(self, before=min([self.before, *met]))


@scenario(7, "store's clock jumps, plain rule *", weight=1.5, least=2)
def store_jumps(store: Store, budget: Budget, seed: int) -> Report:
    """The clock is set forward by a minute or an hour while the lock is held, and back. Some holders of that time die.

    Excused: after a jump forward, leases end early for the length of a lease. After a jump back, the name is not free
    until the clock is set forward again. All other rules hold: tokens grow and stale writes are refused all the time.
    """
    report = Report()
    figures = Figures()
    with clocked(store.name, is_async=store.is_async) as ours, closing(ForkServer(ours.environment)) as fork_server:
        for trial in budget.trials():
            size = (MINUTE, HOUR)[trial % 2]
            low = random.Random(seed + trial).choice((0.0, -size))
            ours.set(low)
            with Fleet(ours.store, size=3, behaviour=BEHAVIOUR, seed=seed + trial, fork_server=fork_server) as fleet:
                jumps = _back_and_forth(fleet, ours, low, low + size)
                history = fleet.end()
            one = check(history, rules_of(store))
            jumps = [jump.with_met(history) for jump in jumps]
            one.takeovers.clear()  # they last as long as the clock is wrong
            figures.add(one, jumps)
            one.findings = [finding for finding in one.findings if not is_excused(finding, jumps)]
            report.add(one)
    report.notes.append(f"{store.kind}: {figures}")
    return report


def _back_and_forth(fleet: Fleet, ours: ClockedStore, low: float, high: float) -> list[Jump]:
    jumps: list[Jump] = []
    for offset in (high, low, high, low, high):
        size = offset - ours.clocks[0].offset
        is_free = not jumps or jumps[-1].size > 0
        holder = fleet.wait_for_holder() if is_free else None  # set back, it may stay locked until the clock catches up
        if holder and size < 0 and fleet.random.random() < 0.7:
            fleet.kill(holder)
            fleet.add()
        before = monotonic()
        ours.set(offset)
        jumps.append(Jump(size, before, monotonic()))
        if size > 0:
            fleet.wait_for_grants(2)
        else:
            fleet.run_for(BEHAVIOUR.at_most * 1.2)
    return jumps


def is_excused(finding: Finding, jumps: Iterable[Jump]) -> bool:
    """Whether the plain rule cannot promise this while the store's clock jumps."""
    later = [jump for jump in jumps if jump.after >= finding.at]
    earlier = [jump for jump in jumps if jump.before - UNDER_WAY <= finding.at]
    if finding.rule in FORWARD:
        return any(jump.size > 0 and finding.at <= jump.after + BEHAVIOUR.at_most for jump in earlier)
    if finding.rule in BACK:
        is_back = bool(earlier) and earlier[-1].size < 0
        return is_back or (bool(later) and later[0].size > 0 and len(earlier) > 1)
    return False


@dataclass
class Figures:
    forward: int = 0
    back: int = 0
    overlapped: int = 0
    worst: float = 0.0
    blocked: int = 0
    refused: int = 0

    def add(self, report: Report, jumps: Sequence[Jump]) -> None:
        overlaps = [finding.at for finding in report.findings if finding.rule == "overlap"]
        skips = [finding.at for finding in report.findings if finding.rule in BACK]
        for jump, following in zip(jumps, [*jumps[1:], None], strict=True):
            until = following.before if following else float("inf")
            if jump.size > 0:
                self.forward += 1
                self.overlapped += any(jump.before <= at < until for at in overlaps)
            else:
                self.back += 1
                self.blocked += any(jump.before <= at <= until for at in skips)
        self.worst = max(self.worst, report.worst_overlap)
        self.refused += report.counts["write refused"]

    def __str__(self) -> str:
        return (
            f"set forward by a minute or an hour {self.forward} times: two holders after {self.overlapped} of them, "
            f"for up to {self.worst * 1000:.0f} ms, {self.refused} stale writes refused; set back {self.back} times: "
            f"a free name stayed locked after {self.blocked} of them"
        )


# Servers of a quorum


@scenario(7, "clocks of a minority wrong", stores=("quorum",))
def minority_wrong(store: Store, budget: Budget, seed: int) -> Report:
    """One or two of five servers are up to an hour off, and stay so. Nothing changes."""
    return _minority(store, budget, seed, jumps=0)


@scenario(7, "clocks of a minority jump *", stores=("quorum",))
def minority_jumps(store: Store, budget: Budget, seed: int) -> Report:
    """They jump while the lock is held. A lease that only three of five granted ends when a clock of these jumps."""
    report = _minority(store, budget, seed, jumps=JUMPS, off=FORWARD | BACK)
    report.notes.append(
        f"{store.kind}: the clocks of one or two of five servers jumped {JUMPS * report.trials} times: two holders "
        f"for up to {report.worst_overlap * 1000:.0f} ms, {report.counts['write refused']} stale writes refused"
    )
    return report


def _minority(store: Store, budget: Budget, seed: int, *, jumps: int, off: frozenset[str] = frozenset()) -> Report:

    def trial(ours: ClockedStore, number: int) -> Report:
        choice = random.Random(seed + number)
        wrong = choice.sample(ours.clocks, 1 + number % 2)
        ours.set(0.0)
        _set_any(wrong, choice)
        with Fleet(ours.store, size=3, behaviour=BEHAVIOUR, seed=seed + number) as fleet:
            for _ in range(jumps):
                fleet.wait_for_holder()
                _set_any(wrong, choice)
                fleet.run_for(choice.uniform(0.0, 0.1))
            fleet.wait_for_grants(5)
            return check(fleet.end(), rules_of(store, off=off))

    with clocked("quorum", is_async=store.is_async, servers=5) as ours:
        return budget.total(partial(trial, ours))


def _set_any(clocks: Iterable[Clock], choice: random.Random) -> None:
    for clock in clocks:
        clock.set(choice.choice([size for size in SIZES if size != clock.offset]))
