"""A store that cannot write, a process without file descriptors, and an outage with fifty waiters."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from shedlock_py import AsyncLeaderElector, LeaderElector, LockRequest, ProviderError
from shedlock_py.testing.forks import in_child
from tests.faults.checker import Finding, Report, check
from tests.faults.fleet import EVERYBODY, TIMEOUT, Fleet
from tests.faults.history import Logbook, Operation, Reader, monotonic
from tests.faults.recording import AsyncRecordedProvider, RecordedProvider
from tests.faults.registry import Budget, Run, by_trial, scenario
from tests.faults.rules import rules_of
from tests.faults.scenarios.settings import Setting, mysql_user
from tests.faults.small_disks import binary_log, postgres_log, postgres_table, sqlite_file
from tests.faults.worker import Behaviour, reply_of
from tests.support.loop_threads import EventLoopThread
from tests.support.polling import let_pass, wait_until
from tests.support.ports import free_port
from tests.support.stores import ONE_SERVER, SqlServerStore, Store, on_private_server, open_provider

BEHAVIOUR = Behaviour(at_most=0.8, work=(0.0, 0.05), pause=(0.0, 0.05), extends=0.5, keeps_alive=0.2)
LATE = 8.0
"""Seconds for which a commit hangs, and may still be carried out after the caller gave up."""
LONG_TIMEOUT = 120.0
"""Seconds: an attempt with a hanging commit is retried and undone, each up to its time limit."""

# A store that takes no writes for a while

Refuse = Callable[[], AbstractContextManager[None]]
Refusing = Callable[[Store], AbstractContextManager[tuple[Store, Refuse]]]
"""Yields a store for the workers, and a context manager that makes the store refuse writes."""


def _refusing(store: Store, budget: Budget, seed: int, *, how: dict[str, Refusing]) -> Report:
    late = LATE if how[store.name] is binary_log else 0.5

    def trial(own: Store, number: int) -> Report:
        with (
            how[store.name](own) as (changed, refuse),
            Fleet(changed, size=3, names=2, behaviour=BEHAVIOUR, seed=seed + number) as fleet,
        ):
            fleet.wait_for_each_name()
            with fleet.marked("refusing", EVERYBODY), refuse():
                since = monotonic()
                target = fleet.count("acquire", "error") + 6
                fleet.wait(
                    lambda: fleet.count("acquire", "error") >= target, "attempts that fail", timeout=LONG_TIMEOUT
                )
                until = monotonic()
            fleet.wait_for_each_name()
            history = fleet.end()
        report = check(history, rules_of(changed, late=late))
        for lease in history.of("acquire", outcome="granted"):
            if lease.started > since and lease.end < until:
                text = (
                    f"{lease.worker} was granted a lease by a store that took no writes, "
                    f"{lease.started - since:.3f} to {lease.end - since:.3f} s after it began to refuse"
                )
                report.findings.append(Finding("fail closed", lease.name, text, lease.started))
        return report

    with on_private_server(store) as own:
        return budget.total(partial(trial, own))


@contextmanager
def _out_of_memory(store: Store) -> Iterator[tuple[Store, Refuse]]:
    with store.servers[0].client() as client:
        yield store, partial(_for_a_while, partial(client.config_set, "maxmemory"), "1", "0")


@contextmanager
def _replica(store: Store) -> Iterator[tuple[Store, Refuse]]:
    """A replica without its primary, so that the data stay."""
    with store.servers[0].client() as client:
        gone = ("127.0.0.1", free_port())
        yield store, partial(_for_a_while, lambda primary: client.replicaof(*primary), gone, ("NO", "ONE"))


@contextmanager
def _read_only_postgres(store: Store) -> Iterator[tuple[Store, Refuse]]:
    """Make PostgreSQL read-only. Open sessions obey, too: they read the setting before their next statement."""
    server = cast(SqlServerStore, store).server

    def is_set(value: str) -> bool:
        """Whether a new session has the value. The server has told the open sessions before it accepts new sessions."""
        with server.connect() as another:
            return bool(another.exec_driver_sql("SHOW default_transaction_read_only").scalar_one() == value)

    def turn(value: str) -> None:
        with server.connect() as connection:
            connection.exec_driver_sql("SET default_transaction_read_only = off")
            connection.exec_driver_sql(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        wait_until(lambda: is_set(value), timeout=TIMEOUT, what="read-only, or not")

    yield store, partial(_for_a_while, turn, "on", "off")


@contextmanager
def _read_only_mysql(store: Store) -> Iterator[tuple[Store, Refuse]]:
    server = cast(SqlServerStore, store).server

    def turn(value: int) -> None:
        with server.connect() as connection:
            connection.exec_driver_sql(f"SET GLOBAL read_only = {value}")

    with mysql_user(server, Setting("read-only", {}), ("mysql+pymysql", "mysql+asyncmy"), name=store.name) as changed:
        yield changed.like(store), partial(_for_a_while, turn, 1, 0)


@contextmanager
def _for_a_while(turn: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    try:
        turn(value)
        yield
    finally:
        turn(before)


def _refusals(name: str, how: dict[str, Refusing]) -> Run:
    return scenario(13, name, stores=tuple(how))(partial(_refusing, how=how))


# A full tmpfs, where root may mount it; for Redis, "maxmemory" and nothing to evict.
full = _refusals(
    "disk full, out of memory",
    {
        "sqlite": sqlite_file,
        "postgres": postgres_table,
        "mariadb": binary_log,
        "mysql": binary_log,
        "redis": _out_of_memory,
    },
)
# The server ends, and is started when the disk has room again.
full_log = _refusals("disk of the log full", {"postgres": postgres_log})
# Like a primary that has become a standby while connections stay open.
read_only = _refusals(
    "read-only for a while",
    {"postgres": _read_only_postgres, "mariadb": _read_only_mysql, "mysql": _read_only_mysql, "redis": _replica},
)


# Out of file descriptors


@scenario(13, "no file descriptors")
@by_trial
def no_descriptors(store: Store, seed: int, number: int) -> Report:
    """A process without a free descriptor: with open connections, and before the first connection."""
    report = Report(trials=1)
    try:
        in_child(partial(_starve, store))
    except AssertionError as error:
        report.findings.append(Finding("fail closed", "", str(error), 0.0))
    return report


def _starve(store: Store) -> None:
    """An async provider is used through a sync facade. Its event loop gets its descriptors before they run out."""
    name = f"starved-{uuid4().hex[:8]}"
    with store.provider() as warm, store.provider() as cold:
        _must_work(warm, name)
        with _no_descriptor():
            for number in range(3):
                with suppress(ProviderError):
                    raise AssertionError(f"{cold.acquire(_request(f'{name}-{number}'))} without a connection")
                with suppress(ProviderError):  # it has a connection, and may succeed
                    warm.acquire(_request(f"{name}-warm-{number}"))
        for provider in (cold, warm):
            _must_work(provider, f"{name}-after-{id(provider)}")


def _must_work(provider: Any, name: str) -> None:
    lease = provider.acquire(_request(name))
    assert lease is not None, name
    assert provider.release(lease), name


def _request(name: str) -> LockRequest:
    return LockRequest(name, "1m")


@contextmanager
def _no_descriptor() -> Iterator[None]:
    """Use every descriptor of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    try:
        yield
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# An outage with fifty waiters

WAITERS = 50
RETRY, DEADLINE, LEASE = 0.5, 2.0, 3.0
WINDOW = 0.1
FAILURES = 2
"""Of each elector, in a short outage."""
SOONEST, ROUNDING = 0.5, 0.001
"""Parts of the longest pause that is due. An elector waits for a random time between a half and the whole pause."""


@scenario(
    13,
    "outage with 50 waiters",
    stores=ONE_SERVER,
)
def outage(store: Store, budget: Budget, seed: int) -> Report:
    """Fifty electors of one election; the store is unreachable for 30 s."""
    with on_private_server(store) as own:
        return budget.total(lambda trial: outage_of(own, 30.0))


def outage_of(store: Store, seconds: float) -> Report:
    """Make the store unreachable for ``seconds``, and until each elector has failed a few times.

    The judge checks how soon each elector tries again. Attempts per second meanwhile, and the most in 100 ms after the
    return, are only reported: on a slow machine many electors may go on at once. (tests/election checks in virtual time
    that their pauses differ.)
    """
    report = Report(trials=1)
    with tempfile.TemporaryDirectory(prefix="shedlock-outage-") as directory, ExitStack() as stack:
        logging.disable()  # each failed attempt logs a line
        stack.callback(logging.disable, logging.NOTSET)
        path = Path(directory, "history")
        leaders = stack.enter_context(_electors(store, path, f"outage-{uuid4().hex[:8]}"))
        wait_until(lambda: leaders() == 1, timeout=TIMEOUT, what="one leader")
        calm_from = monotonic()
        let_pass(2 * RETRY)
        reader = Reader(path)
        store.servers[0].stop()
        gone = monotonic()
        try:
            before = _failures(reader)
            let_pass(seconds)
            wait_until(
                lambda: min((_failures(reader) - before).get(f"n{i}", 0) for i in range(WAITERS)) >= FAILURES,
                timeout=TIMEOUT * 2,
                what=f"{FAILURES} failures of each elector",
            )
            # By now every renewal from before the outage has ended.
            if monotonic() > gone + DEADLINE and leaders():
                report.findings.append(Finding("trust", "", "a node leads long after the store has gone", gone))
        finally:
            back = monotonic()
            store.servers[0].start()
        wait_until(lambda: leaders() == 1, timeout=TIMEOUT, what="a leader after the outage")
        let_pass(2 * RETRY)
        if leaders() > 1:
            report.findings.append(Finding("overlap", "", f"{leaders()} leaders", monotonic()))
        end = monotonic()
        attempts = reader.update().history().of("acquire", "extend", "record")

    def count(begin: float, end: float) -> int:
        return sum(begin <= attempt.started < end for attempt in attempts)

    calm, during = count(calm_from, gone) / (gone - calm_from), count(gone, back)
    peak = max((count(o.started, o.started + WINDOW) for o in attempts if back <= o.started <= end), default=0)
    report.counts["attempt in outage"] += during
    report.notes.append(
        f"{WAITERS} electors that look every {RETRY:g} s, store gone for {back - gone:.0f} s: {calm:.0f} attempts per "
        f"second before, {during / (back - gone):.0f} during it, {during / WAITERS:.0f} of each elector; after its "
        f"return at most {peak} in {WINDOW * 1000:.0f} ms"
    )
    judge(report, attempts)
    return report


def _failures(reader: Reader) -> Counter[str]:
    """Count looks and attempts that ended in an error, by elector."""
    failures: Counter[str] = Counter()
    for (worker, kind, outcome), number in reader.update().counts.items():
        failures[worker] += number * (kind in ("record", "acquire") and outcome == "error")
    return failures


def judge(report: Report, attempts: Sequence[Operation]) -> None:
    """Check that no elector tries again too soon."""
    parts = [part for i in range(WAITERS) for part in _parts([o for o in attempts if o.worker == f"n{i}"])]
    if min(parts, default=1.0) < SOONEST - ROUNDING:
        text = f"an elector tried again after {min(parts):.2f} of the pause that was due; {SOONEST} is the least"
        report.findings.append(Finding("pace", "", text, 0.0))


def _parts(operations: Sequence[Operation]) -> Iterator[float]:
    """Yield each pause of one elector after a failed look or attempt, as a part of the longest pause that was due.

    The longest pause doubles with each failure, from twice the retry period up to the whole lease.
    """
    failures = 0
    followed = [operation for operation in operations if operation.kind in ("record", "acquire")]
    for operation, following in pairwise(followed):
        if operation.outcome == "error":
            failures += 1
            due = min(RETRY * 2**failures, LEASE)
            yield (following.started - operation.end) / due
        elif operation.kind == "record":
            failures = 0


_DURATIONS: Any = {"lease_duration": f"{LEASE}s", "renew_deadline": f"{DEADLINE}s", "retry_period": f"{RETRY}s"}


@contextmanager
def _electors(store: Store, path: Path, name: str) -> Iterator[Callable[[], int]]:
    """Run electors on an event loop in a thread. The result counts the electors that lead at one moment."""
    logbooks = [Logbook(path, f"n{i}") for i in range(WAITERS)]
    kinds = (AsyncLeaderElector, AsyncRecordedProvider) if store.is_async else (LeaderElector, RecordedProvider)
    make, record = cast(Any, kinds)

    async def begin() -> tuple[Any, list[Any]]:
        inner = open_provider(**store.arguments())
        electors = [make(record(inner, book), name, holder=book.worker, **_DURATIONS) for book in logbooks]
        for elector in electors:
            await reply_of(elector.start())
        return inner, electors

    async def end() -> None:
        await asyncio.gather(*(e.stop() if store.is_async else asyncio.to_thread(e.stop) for e in electors))
        await reply_of(inner.close())

    def leaders() -> int:
        """Count electors that say twice that they lead. The second look is in reverse order."""
        first = [elector for elector in electors if elector.is_leader()]
        return sum(elector.is_leader() for elector in reversed(first))

    with closing(EventLoopThread()) as loop:
        inner, electors = loop.run(begin())
        yield leaders
        loop.run(end())
    for book in logbooks:
        book.close()
