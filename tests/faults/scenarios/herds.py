"""Two hundred attempts at one instant, from eight processes; and five thousand names."""

from __future__ import annotations

import multiprocessing
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any
from uuid import uuid4

from shedlock_py import Lease, LockRequest, ProviderUnreachable
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.faults.checker import Finding, Report
from tests.faults.registry import Budget, scenario
from tests.faults.report import percentile
from tests.support.connections import MostConnections
from tests.support.stores import Store, open_provider

PROCESSES, EACH = 8, 25
NAMES, FEW_NAMES, OF_A_ROUND = 5000, 300, 100
ROUNDS = 1000
TIMEOUT = 120.0
"""Seconds for a round, on a busy machine."""
SHORTEST_LIMIT = 0.9
"""Seconds: the shortest time limit of a store for a missing reply."""
_OF_TIME = re.compile(r"(?i)time|is locked")
_LEAD = 0.05
"""Seconds from the command to the moment of the attempts, so that every process has received the command."""


@dataclass
class Outcome:
    """The result of a round."""

    granted: list[str] = field(default_factory=list)
    skipped: int = 0
    errors: list[str] = field(default_factory=list)
    slow: int = 0
    """Errors that say that a time limit was over: two cores may be too few. These attempts got no lease."""
    seconds: list[float] = field(default_factory=list)
    """From the moment of the attempts to each reply."""

    @classmethod
    def total(cls, outcomes: Sequence[Outcome]) -> Outcome:
        total = cls()
        for one in outcomes:
            total.granted += one.granted
            total.skipped += one.skipped
            total.errors += one.errors
            total.slow += one.slow
            total.seconds += one.seconds
        return total


# The scenarios


@scenario(12, "200 attempts at one instant", least=2)
def herd(store: Store, budget: Budget, seed: int) -> Report:
    """Cold, with every connection still to be opened, and again, warm: one grant and no error each time."""
    report, slowest, most = Report(), [], 0
    for _ in budget.trials():
        rounds = [[f"herd-{uuid4().hex[:8]}"] for _ in range(2)]
        outcomes, connections = run(store, rounds)
        most = max(most, connections)
        report.trials += 1
        for names, outcome in zip(rounds, outcomes, strict=True):
            slowest.append(max(outcome.seconds))
            judge(report, names, outcome, PROCESSES * EACH)
    _judge_connections(report, store, most)
    report.notes.append(
        f"{PROCESSES * EACH} attempts at one instant from {PROCESSES} processes: all answered after "
        f"{percentile(slowest, 0.5):.2f} s (median), {max(slowest):.2f} s at worst; "
        f"{f'at most {most} connections' if store.addresses else 'a file'}; "
        f"{report.counts['acquire error']} gave up after a time limit, on two cores"
    )
    return report


@scenario(12, "16 racers, 1000 rounds", stores=("zookeeper", "dynamodb", "s3", "azblob", "nats"), least=1)
def racers(store: Store, budget: Budget, seed: int) -> Report:
    """Sixteen attempts at one instant, from four processes, a thousand times: one winner each time."""
    return race_of_sixteen(store, budget, ROUNDS)


def race_of_sixteen(store: Store, budget: Budget, number: int) -> Report:
    report = Report()
    for _ in budget.trials():
        prefix = f"racers-{uuid4().hex[:8]}-"
        rounds = [[f"{prefix}{i}"] for i in range(number)]
        outcomes, _ = run(store, rounds, processes=4, each=4)
        for names, outcome in zip(rounds, outcomes, strict=True):
            judge(report, names, outcome, 16)
        report.trials += 1
        report.notes.append(
            f"{number} rounds of 16 racers: {report.counts['acquire granted']} winners, "
            f"{report.counts['acquire skipped']} skipped, {report.counts['acquire error']} gave up after a time limit"
        )
    return report


@scenario(12, "5000 names", least=1)
def many_names(store: Store, budget: Budget, seed: int) -> Report:
    """Four processes race for every name. There are fewer names if a server reads all records one after another."""
    return race(store, budget, FEW_NAMES if store.name in ("mongodb", "s3", "azblob") else NAMES)


def race(store: Store, budget: Budget, number: int) -> Report:
    report, processes, most = Report(), 4, 0
    for _ in budget.trials():
        prefix = f"many-{uuid4().hex[:8]}-"
        names = [f"{prefix}{i}" for i in range(number)]
        rounds = [names[i : i + OF_A_ROUND] for i in range(0, number, OF_A_ROUND)]
        outcomes, connections = run(store, rounds, processes, each=5)
        outcome = Outcome.total(outcomes)
        seconds = sum(max(one.seconds) for one in outcomes)
        report.trials += 1
        judge(report, names, outcome, processes * number)
        most = max(most, connections)
        provider = store.open()
        records = len(provider.records(prefix))
        provider.close()
        # An attempt that gave up after a time limit may have been granted the lock, and have given it back.
        if records < len(outcome.granted) or (not outcome.slow and records > len(outcome.granted)):
            report.findings.append(Finding("herd", prefix, f"{records} records of {len(outcome.granted)} grants", 0.0))
        report.notes.append(
            f"{number} names from {processes} processes: {processes * number / seconds:.0f} attempts per second; "
            f"{outcome.slow} gave up after a time limit"
        )
    _judge_connections(report, store, most, processes)
    return report


def run(
    store: Store, rounds: list[list[str]], processes: int = PROCESSES, each: int = EACH
) -> tuple[list[Outcome], int]:
    """Run the rounds. Return their outcomes, and the largest number of connections.

    Each of the ``processes`` has ``each`` threads or tasks. At the moment of a round, every process attempts each of
    its names. If the round has only one name, every thread or task attempts it.
    """
    context = multiprocessing.get_context("forkserver")  # no provider is opened before the fork, and no thread runs
    context.set_forkserver_preload([__name__])
    with MostConnections(store.direct_addresses) as connections:
        workers = []
        for _ in range(processes):
            here, there = context.Pipe()
            process = context.Process(target=_worker, args=(store.arguments(), rounds, each, there), daemon=True)
            process.start()
            there.close()
            workers.append((process, here))
        outcomes = []
        for _ in rounds:
            for _, pipe in workers:
                _receive(pipe)  # it is ready
            moment = time.monotonic() + _LEAD
            for _, pipe in workers:
                pipe.send(moment)
            outcomes.append(Outcome.total([_receive(pipe) for _, pipe in workers]))
        for process, pipe in workers:
            process.join(TIMEOUT)
            pipe.close()
    return outcomes, connections.most


def _receive(pipe: Any) -> Any:
    """Receive from a worker. :raises TimeoutError: no message came for too long."""
    if not pipe.poll(TIMEOUT):
        raise TimeoutError("a worker of the herd hangs")
    return pipe.recv()


def _worker(arguments: dict[str, Any], rounds: list[list[str]], each: int, pipe: Connection) -> None:
    """A process: its threads attempt at the moments that the pipe gives. An async provider has one event loop."""
    make: Any = partial(open_provider, **arguments)

    def attempt(names: Sequence[str], moment: float, outcome: Outcome) -> None:
        time.sleep(max(0.0, moment - time.monotonic()))
        for name in names:
            try:
                reply = provider.acquire(LockRequest(name, "10m"))
            except Exception as error:
                reply = error
            _note(outcome, name, moment, reply)

    opened: Any = BlockingLockProvider(make) if arguments["is_async"] else closing(make())
    with opened as provider, ThreadPoolExecutor(each) as threads:
        everybody = threading.Barrier(each)
        list(threads.map(lambda _: everybody.wait(TIMEOUT), range(each)))  # wait for all threads
        for names in rounds:
            pipe.send("ready")
            moment = pipe.recv()
            outcomes = [Outcome() for _ in range(each)]
            parts = [names if len(names) == 1 else names[i::each] for i in range(each)]
            list(threads.map(attempt, parts, [moment] * each, outcomes))
            pipe.send(Outcome.total(outcomes))


def _note(outcome: Outcome, name: str, moment: float, reply: Lease | Exception | None) -> None:
    seconds = time.monotonic() - moment
    outcome.seconds.append(seconds)
    if reply is None:
        outcome.skipped += 1
    elif isinstance(reply, Lease):
        outcome.granted.append(name)
    elif seconds >= SHORTEST_LIMIT and isinstance(reply, ProviderUnreachable) and _OF_TIME.search(str(reply)):
        outcome.slow += 1
    else:
        outcome.errors.append(f"{type(reply).__name__}: {reply}")


def judge(report: Report, names: Sequence[str], outcome: Outcome, attempts: int) -> None:
    report.counts["acquire granted"] += len(outcome.granted)
    report.counts["acquire skipped"] += outcome.skipped
    report.counts["acquire error"] += len(outcome.errors) + outcome.slow
    if len(outcome.granted) != len(set(outcome.granted)) or (not outcome.slow and set(outcome.granted) != set(names)):
        text = f"{len(outcome.granted)} grants of {len(names)} names, {len(set(outcome.granted))} of them different"
        report.findings.append(Finding("overlap", names[0], text, 0.0))
    if outcome.errors:
        text = f"{len(outcome.errors)} errors, such as {outcome.errors[0]}"
        report.findings.append(Finding("error", names[0], text, 0.0))
    answers = len(outcome.granted) + outcome.skipped + len(outcome.errors) + outcome.slow
    if answers != attempts:
        report.findings.append(Finding("hang", names[0], f"{answers} answers to {attempts} attempts", 0.0))


def _judge_connections(report: Report, store: Store, connections: int, processes: int = PROCESSES) -> None:
    """``connections``: the most in all trials. A herd may be over before the first count of them."""
    most = processes * store.most_connections
    if connections > most or (store.addresses and not connections):  # 0: they were never counted
        report.findings.append(Finding("connections", "", f"{connections}; 1 to {most} are due", 0.0))
