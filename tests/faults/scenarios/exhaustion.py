"""A store that cannot write, a process without file descriptors, and an outage with fifty waiters."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import tempfile
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from shedlock_py import AsyncLeaderElector, LeaderElector, LockRequest, ProviderError
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.faults.checker import Finding, Report, check
from tests.faults.fleet import EVERYBODY, TIMEOUT, Fleet
from tests.faults.history import Logbook, Operation, Reader, monotonic
from tests.faults.private import on_private_server
from tests.faults.recording import AsyncRecordedProvider, RecordedProvider
from tests.faults.registry import Budget, scenario
from tests.faults.rules import rules_of
from tests.faults.scenarios.settings import Setting, mariadb_user
from tests.faults.small_disks import mariadb_log, postgres_log, postgres_table, sqlite_file
from tests.faults.worker import Behaviour
from tests.support.polling import wait_until
from tests.support.ports import free_port
from tests.support.stores import SqlServerStore, Store, open_provider

BEHAVIOUR = Behaviour(at_most=0.8, work=(0.0, 0.05), pause=(0.0, 0.05), extends=0.5, keeps_alive=0.2)
LATE = 8.0
"""Seconds: a commit hangs for so long, and may still be carried out, whoever has given up."""
LONG_TIMEOUT = 120.0
"""Seconds: an attempt whose commit hangs is asked again and undone, each of them until its time limit."""

# A store that takes no writes for a while


@scenario(13, "disk full, out of memory", stores=("sqlite", "postgres", "mariadb", "redis"))
def full(store: Store, budget: Budget, seed: int) -> Report:
    """A small tmpfs without room, where root may mount one; ``maxmemory`` with nothing to evict (Redis)."""
    how = {"sqlite": sqlite_file, "postgres": postgres_table, "mariadb": mariadb_log, "redis": _out_of_memory}
    late = LATE if store.name == "mariadb" else 0.5
    return _refusing(store, budget, seed, how[store.name], late=late)


@scenario(13, "disk of the log full", stores=("postgres",))
def full_log(store: Store, budget: Budget, seed: int) -> Report:
    """The server ends, and is started when there is room again."""
    return _refusing(store, budget, seed, postgres_log)


@scenario(13, "read-only for a while", stores=("postgres", "mariadb", "redis"))
def read_only(store: Store, budget: Budget, seed: int) -> Report:
    """As a primary is that has become a standby, under connections that stay open."""
    how = {"postgres": _read_only_postgres, "mariadb": _read_only_mariadb, "redis": _replica}
    return _refusing(store, budget, seed, how[store.name])


Refusing = Callable[[Store], AbstractContextManager[tuple[Store, Callable[[], AbstractContextManager[None]]]]]
"""A store for the workers, and what makes it refuse to write for as long as a block lasts."""


def _has_failed(fleet: Fleet, target: int) -> bool:
    return fleet.count("acquire", "error") >= target


def _refusing(store: Store, budget: Budget, seed: int, how: Refusing, *, late: float = 0.5) -> Report:
    """``late``: for how long an attempt that failed may still be carried out, as of ``rules_of``."""
    report = Report()
    with on_private_server(store) as own:
        for trial in budget.trials():
            with (
                how(own) as (changed, refuse),
                Fleet(changed, size=3, names=2, behaviour=BEHAVIOUR, seed=seed + trial) as fleet,
            ):
                fleet.wait_for_each_name()
                with fleet.marked("refusing", EVERYBODY), refuse():
                    since = monotonic()
                    target = fleet.count("acquire", "error") + 6
                    failed = partial(_has_failed, fleet, target)
                    fleet.wait(failed, "attempts that fail", timeout=LONG_TIMEOUT)
                    until = monotonic()
                fleet.wait_for_each_name()
                history = fleet.end()
            part = check(history, rules_of(changed, late=late))
            for lease in history.of("acquire", outcome="granted"):
                if lease.started > since and lease.end < until:
                    text = (
                        f"{lease.worker} was granted a lease by a store that took no writes, "
                        f"{lease.started - since:.3f} to {lease.end - since:.3f} s after it began to refuse"
                    )
                    part.findings.append(Finding("fail closed", lease.name, text, lease.started))
            report.add(part)
    return report


@contextmanager
def _out_of_memory(store: Store) -> Iterator[Any]:
    yield store, partial(_redis_setting, store, "maxmemory", "1", "0")


@contextmanager
def _redis_setting(store: Store, name: str, value: str, before: str) -> Iterator[None]:
    with store.servers[0].client() as client:
        client.config_set(name, value)
        try:
            yield
        finally:
            client.config_set(name, before)


@contextmanager
def _replica(store: Store) -> Iterator[Any]:
    yield store, partial(_as_replica, store)


@contextmanager
def _as_replica(store: Store) -> Iterator[None]:
    """Of a primary that is gone, so that the data stay."""
    with store.servers[0].client() as client:
        client.replicaof("127.0.0.1", free_port())
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@contextmanager
def _read_only_postgres(store: Store) -> Iterator[Any]:
    yield store, partial(_postgres_setting, store, "default_transaction_read_only")


@contextmanager
def _postgres_setting(store: Store, name: str) -> Iterator[None]:
    """For sessions that are open, too: they read it before their next statement."""
    server = cast(SqlServerStore, store).server

    def is_on_in_a_new_session() -> bool:
        """Then those that were there have been told: the server does that before it accepts anybody."""
        with server.connect() as another:
            return bool(another.exec_driver_sql(f"SHOW {name}").scalar_one() == "on")

    with server.connect() as connection:
        try:
            connection.exec_driver_sql(f"ALTER SYSTEM SET {name} = on")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
            wait_until(is_on_in_a_new_session, timeout=TIMEOUT, what=name)
            yield
        finally:
            connection.exec_driver_sql("SET default_transaction_read_only = off")
            connection.exec_driver_sql(f"ALTER SYSTEM RESET {name}")
            connection.exec_driver_sql("SELECT pg_reload_conf()")


@contextmanager
def _read_only_mariadb(store: Store) -> Iterator[Any]:
    server = cast(SqlServerStore, store).server
    with mariadb_user(server, Setting("read-only", {}), ("mysql+pymysql", "mysql+asyncmy")) as changed:
        changed.is_async = store.is_async
        yield changed, partial(_mariadb_read_only, changed)


@contextmanager
def _mariadb_read_only(store: SqlServerStore) -> Iterator[None]:
    with store.server.connect() as connection:
        connection.exec_driver_sql("SET GLOBAL read_only = 1")
        try:
            yield
        finally:
            connection.exec_driver_sql("SET GLOBAL read_only = 0")


# Out of file descriptors


@scenario(13, "no file descriptors")
def no_descriptors(store: Store, budget: Budget, seed: int) -> Report:
    """A process whose every descriptor is in use: with connections open, and before there is any."""
    report = Report()
    for _ in budget.trials():
        report.trials += 1
        complaint = _in_a_child(partial(_starve, store.arguments()))
        if complaint:
            report.findings.append(Finding("fail closed", "", complaint, 0.0))
    return report


def _in_a_child(do: Callable[[], str | None]) -> str | None:
    """What ``do`` returns in a fork of this process; it may spoil whatever it likes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            complaint = do()
        except BaseException as error:
            complaint = f"{type(error).__name__}: {error}"
        os.write(writing, (complaint or "").encode()[:4000])
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        text = file.read().decode()
    _, status = os.waitpid(pid, 0)
    return text or (f"the process ended with {status}" if status else None)


def _starve(arguments: dict[str, Any]) -> str | None:
    signal.alarm(int(2 * TIMEOUT))  # a hang ends it, and is seen in its status
    name = f"starved-{uuid4().hex[:8]}"
    with _opened(arguments) as warm, _opened(arguments) as cold:
        _must_work(warm, name)
        with _no_descriptor():
            for number in range(3):
                try:
                    lease = cold.acquire(_request(f"{name}-{number}"))
                    return f"{lease} without a connection"
                except ProviderError:
                    pass
                with suppress(ProviderError):  # it has its connection, and may well succeed
                    warm.acquire(_request(f"{name}-warm-{number}"))
        for provider in (cold, warm):
            _must_work(provider, f"{name}-after-{id(provider)}")
    return None


def _opened(arguments: dict[str, Any]) -> AbstractContextManager[Any]:
    """An async provider has a sync facade, whose event loop has its descriptors before they run out."""
    make: Any = partial(open_provider, **arguments)
    return BlockingLockProvider(make) if arguments["is_async"] else closing(make())


def _must_work(provider: Any, name: str) -> None:
    lease = provider.acquire(_request(name))
    assert lease is not None, name
    assert provider.release(lease), name


def _request(name: str) -> LockRequest:
    return LockRequest(name, "1m")


@contextmanager
def _no_descriptor() -> Iterator[None]:
    """Every descriptor of this process is in use."""
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
"""Parts of the longest pause that is due: an elector takes any between a half and the whole of it."""


@scenario(13, "outage with 50 waiters", stores=("postgres", "mariadb", "redis", "mongodb"))
def outage(store: Store, budget: Budget, seed: int) -> Report:
    """Fifty electors of one election; the store is gone for 30 s."""
    report = Report()
    with on_private_server(store) as own:
        for _ in budget.trials():
            report.add(outage_of(own, 30.0))
    return report


def outage_of(store: Store, seconds: float) -> Report:
    """The store is gone for so long at least, and until each of the electors has failed a few times.

    Attempts per second meanwhile, and the most in 100 ms after its return, are figures: a machine may be slow, and let
    many go on at once. What is judged is how soon each elector tries again. (That they do not all wait equally long is
    tested in virtual time, in tests/election.)
    """
    report = Report(trials=1)
    with tempfile.TemporaryDirectory(prefix="shedlock-outage-") as directory, ExitStack() as stack:
        logging.disable()  # each attempt that fails is a line
        stack.callback(logging.disable, logging.NOTSET)
        path = Path(directory, "history")
        leaders = stack.enter_context(_electors(store, path, f"outage-{uuid4().hex[:8]}"))
        wait_until(lambda: leaders() == 1, timeout=TIMEOUT, what="one leader")
        calm_from = monotonic()
        _let_pass(2 * RETRY)
        reader = Reader(path)
        store.servers[0].stop()
        gone = monotonic()
        try:
            before = _failures(reader)
            _let_pass(seconds)
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
        _let_pass(2 * RETRY)
        if leaders() > 1:
            report.findings.append(Finding("overlap", "", f"{leaders()} leaders", monotonic()))
        end = monotonic()
        attempts = reader.update().history().of("acquire", "extend", "record")
    _figures(report, attempts, calm_from, gone, back, end)
    judge(report, attempts)
    return report


def _failures(reader: Reader) -> Counter[str]:
    """By elector: looks and attempts that ended in an error."""
    failures: Counter[str] = Counter()
    for (worker, kind, outcome), number in reader.update().counts.items():
        if kind in ("record", "acquire") and outcome == "error":
            failures[worker] += number
    return failures


def _figures(
    report: Report, attempts: Sequence[Operation], calm_from: float, gone: float, back: float, end: float
) -> None:
    moments = sorted(operation.started for operation in attempts)
    calm = _count(moments, calm_from, gone) / (gone - calm_from)
    during = _count(moments, gone, back)
    peak = max((_count(moments, at, at + WINDOW) for at in moments if back <= at <= end), default=0)
    report.counts["attempt in outage"] += during
    report.notes.append(
        f"{WAITERS} electors that look every {RETRY:g} s, store gone for {back - gone:.0f} s: {calm:.0f} attempts per "
        f"second before, {during / (back - gone):.0f} during it, {during / WAITERS:.0f} of each elector; after its "
        f"return at most {peak} in {WINDOW * 1000:.0f} ms"
    )


def judge(report: Report, attempts: Sequence[Operation]) -> None:
    """No elector tries again sooner than it is to."""
    parts = [part for i in range(WAITERS) for part in _parts([o for o in attempts if o.worker == f"n{i}"])]
    if min(parts, default=1.0) < SOONEST - ROUNDING:
        text = f"an elector tried again after {min(parts):.2f} of the pause that was due; {SOONEST} is the least"
        report.findings.append(Finding("pace", "", text, 0.0))


def _parts(operations: Sequence[Operation]) -> Iterator[float]:
    """Of one elector: each pause after a failed look or attempt, as a part of the longest that was due then.

    That doubles with each failure, from twice the retry period to the whole lease.
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


def _count(moments: Sequence[float], begin: float, end: float) -> int:
    return bisect_left(moments, end) - bisect_left(moments, begin)


def _let_pass(seconds: float) -> None:
    until = monotonic() + seconds
    wait_until(lambda: monotonic() >= until, timeout=seconds + TIMEOUT, what="the time")


_DURATIONS: Any = {"lease_duration": f"{LEASE}s", "renew_deadline": f"{DEADLINE}s", "retry_period": f"{RETRY}s"}


@contextmanager
def _electors(store: Store, path: Path, name: str) -> Iterator[Callable[[], int]]:
    """Electors that take part, on an event loop in a thread; the result counts those that lead at one moment."""
    logbooks = [Logbook(path, f"n{i}") for i in range(WAITERS)]
    electors: list[Any] = []
    ready, over = threading.Event(), threading.Event()

    async def main() -> None:
        inner: Any = open_provider(**store.arguments())
        kinds = (AsyncLeaderElector, AsyncRecordedProvider) if store.is_async else (LeaderElector, RecordedProvider)
        make, record = cast(Any, kinds)
        for book in logbooks:
            electors.append(make(record(inner, book), name, holder=book.worker, **_DURATIONS))
        for elector in electors:
            await _maybe(elector.start())
        ready.set()
        await asyncio.to_thread(over.wait)
        stop = [elector.stop() if store.is_async else asyncio.to_thread(elector.stop) for elector in electors]
        await asyncio.gather(*stop)
        await _maybe(inner.close())

    def leaders() -> int:
        """Those that said so are read once more, the last of them first."""
        first = [elector for elector in electors if elector.is_leader()]
        return sum(elector.is_leader() for elector in reversed(first))

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(TIMEOUT)
        yield leaders
    finally:
        over.set()
        thread.join(2 * TIMEOUT)
        for book in logbooks:
            book.close()


async def _maybe(result: Any) -> None:
    if result is not None:
        await result
