"""A store that cannot write, a process without file descriptors, and an outage with fifty waiters."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from shedlock_py import AsyncLeaderElector, LeaderElector, LockRecord, LockRequest, ProviderError
from shedlock_py._clock import monotonic
from tests.faults.checker import Finding, Report, check
from tests.faults.fleet import PATIENCE, Fleet, WorkerProcess
from tests.faults.history import Logbook, Operation, Reader
from tests.faults.recording import AsyncRecordedProvider, RecordedProvider
from tests.faults.registry import Budget, scenario
from tests.faults.rules import rules_of
from tests.faults.scenarios.settings import Setting, mariadb_user
from tests.faults.stores import SqliteStore, SqlServerStore, Store, open_provider
from tests.faults.worker import Behaviour
from tests.services.polling import wait_until
from tests.services.ports import free_port

BEHAVIOUR = Behaviour(at_most=0.8, work=(0.0, 0.05), pause=(0.0, 0.05), extends=0.5, keeps_alive=0.2)
EVERYBODY = WorkerProcess("everybody", 0)

# A store that takes no writes for a while


@scenario(13, "disk full, out of memory", stores=("sqlite", "redis"))
def full(store: Store, budget: Budget, seed: int) -> Report:
    """A small tmpfs without room (SQLite, where root may mount one); ``maxmemory`` with nothing to evict (Redis)."""
    return _refusing(store, budget, seed, {"sqlite": _full_disk, "redis": _out_of_memory}[store.name])


@scenario(13, "read-only for a while", stores=("postgres", "mariadb", "redis"))
def read_only(store: Store, budget: Budget, seed: int) -> Report:
    """As a primary is that has become a standby, under connections that stay open."""
    how = {"postgres": _read_only_postgres, "mariadb": _read_only_mariadb, "redis": _replica}
    return _refusing(store, budget, seed, how[store.name])


Refusing = Callable[[Store], AbstractContextManager[tuple[Store, Callable[[], AbstractContextManager[None]]]]]
"""A store for the workers, and what makes it refuse to write for as long as a block lasts."""


def _refusing(store: Store, budget: Budget, seed: int, how: Refusing) -> Report:
    report = Report()
    for trial in budget.trials():
        with (
            how(store) as (changed, refuse),
            Fleet(changed, size=3, names=2, behaviour=BEHAVIOUR, seed=seed + trial) as fleet,
        ):
            fleet.wait_for_each_name()
            with fleet.marked("refusing", EVERYBODY), refuse():
                since = monotonic()
                fleet.wait_for_count("acquire", "error", 6)
                until = monotonic()
            fleet.wait_for_each_name()
            history = fleet.end()
        part = check(history, rules_of(store))
        for lease in history.of("acquire", outcome="granted"):
            if lease.started > since and lease.end < until:
                text = f"{lease.worker} was granted a lease by a store that took no writes"
                part.findings.append(Finding("fail closed", lease.name, text, lease.started))
        report.add(part)
    return report


@contextmanager
def tmpfs(size: str) -> Iterator[Path]:
    """:raises OSError: this user may not mount anything."""
    with tempfile.TemporaryDirectory(prefix="shedlock-tmpfs-") as directory:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory], capture_output=True, text=True
        )
        if done.returncode:
            raise OSError(errno.EPERM, f"no tmpfs: {done.stderr.strip()}")
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)


@contextmanager
def _full_disk(store: Store) -> Iterator[Any]:
    with tmpfs("1m") as directory:
        small = SqliteStore(directory)
        small.is_async = store.is_async
        yield small, partial(_filled, directory)


@contextmanager
def _filled(directory: Path) -> Iterator[None]:
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 512)
    # The write-ahead log may have room of its own, which is used again and again: until it is emptied.
    log = directory / "locks.db-wal"
    assert os.statvfs(directory).f_bavail == 0
    try:
        if log.exists():
            _empty_log(directory / "locks.db")
        with filler.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 512)
        yield
    finally:
        filler.unlink()


def _empty_log(path: Path) -> None:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    wait_until(lambda: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, timeout=PATIENCE)
    connection.close()


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
    """For sessions that are open, too, which take a moment to notice."""
    server = cast(SqlServerStore, store).server
    with server.connect() as connection:
        try:
            connection.exec_driver_sql(f"ALTER SYSTEM SET {name} = on")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
            shown = connection.exec_driver_sql
            wait_until(lambda: shown(f"SHOW {name}").scalar_one() == "on", timeout=PATIENCE, what="read-only")
            time.sleep(0.2)  # sessions that are idle read it with their next statement, others when theirs is over
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
    signal.alarm(int(2 * PATIENCE))  # a hang ends it, and is seen in its status
    if arguments["is_async"]:
        return asyncio.run(_starve_async(arguments))
    providers: list[Any] = [open_provider(**arguments) for _ in range(2)]
    warm, cold = providers
    name = f"starved-{uuid4().hex[:8]}"
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


async def _starve_async(arguments: dict[str, Any]) -> str | None:
    providers: list[Any] = [open_provider(**arguments) for _ in range(2)]
    warm, cold = providers
    name = f"starved-{uuid4().hex[:8]}"
    await _must_work_async(warm, name)
    with _no_descriptor():
        for number in range(3):
            try:
                lease = await cold.acquire(_request(f"{name}-{number}"))
                return f"{lease} without a connection"
            except ProviderError:
                pass
            with suppress(ProviderError):  # it has its connection, and may well succeed
                await warm.acquire(_request(f"{name}-warm-{number}"))
    for provider in (cold, warm):
        await _must_work_async(provider, f"{name}-after-{id(provider)}")
    return None


def _must_work(provider: Any, name: str) -> None:
    lease = provider.acquire(_request(name))
    assert lease is not None, name
    assert provider.release(lease), name


async def _must_work_async(provider: Any, name: str) -> None:
    lease = await provider.acquire(_request(name))
    assert lease is not None, name
    assert await provider.release(lease), name


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


@scenario(13, "outage with 50 waiters", stores=("postgres", "mariadb", "redis", "mongodb"))
def outage(store: Store, budget: Budget, seed: int) -> Report:
    """Fifty electors of one election; the store is gone for 30 s."""
    report = Report()
    for _ in budget.trials():
        report.add(outage_of(store, 30.0))
    return report


def outage_of(store: Store, seconds: float) -> Report:
    """Attempts per second while the store is gone, and the most in 100 ms after its return: no herd.

    A herd would be all fifty in one window; by their own pace there are five.
    """
    report = Report(trials=1)
    with tempfile.TemporaryDirectory(prefix="shedlock-outage-") as directory, ExitStack() as stack:
        logging.disable()  # each attempt that fails is a line
        stack.callback(logging.disable, logging.NOTSET)
        path = Path(directory, "history")
        run = _run_async if store.is_async else _run_sync
        leaders = stack.enter_context(run(store, path, f"outage-{uuid4().hex[:8]}"))
        wait_until(lambda: leaders() == 1, timeout=PATIENCE, what="one leader")
        calm_from = monotonic()
        _let_pass(2 * RETRY)
        store.servers[0].stop()
        gone = monotonic()
        try:
            _let_pass(seconds)
            if seconds > DEADLINE and leaders():
                report.findings.append(Finding("belief", "", "somebody leads long after the store has gone", gone))
        finally:
            back = monotonic()
            store.servers[0].start()
        wait_until(lambda: leaders() == 1, timeout=PATIENCE, what="a leader after the outage")
        _let_pass(2 * RETRY)
        if leaders() != 1:
            report.findings.append(Finding("overlap", "", f"{leaders()} leaders", monotonic()))
        end = monotonic()
        attempts = Reader(path).update().history().of("acquire", "extend", "record")
    _figures(report, attempts, calm_from, gone, back, end)
    return report


def _figures(
    report: Report, attempts: Sequence[Operation], calm_from: float, gone: float, back: float, end: float
) -> None:
    moments = sorted(operation.started for operation in attempts)
    calm = _count(moments, calm_from, gone) / (gone - calm_from)
    during = _count(moments, gone, back) / (back - gone)
    peak = max((_count(moments, at, at + WINDOW) for at in moments if back <= at <= end), default=0)
    report.counts["attempt in outage"] += _count(moments, gone, back)
    report.notes.append(
        f"{WAITERS} electors that look every {RETRY:g} s, store gone for {back - gone:.0f} s: {calm:.0f} attempts per "
        f"second before, {during:.0f} during it; after its return at most {peak} in {WINDOW * 1000:.0f} ms"
    )
    if during > 1.5 * WAITERS / RETRY:
        text = f"{during:.0f} attempts per second while the store was gone"
        report.findings.append(Finding("herd", "", text, gone))
    if peak > WAITERS * 0.8:
        report.findings.append(Finding("herd", "", f"{peak} attempts in {WINDOW * 1000:.0f} ms", back))


def _count(moments: Sequence[float], begin: float, end: float) -> int:
    return bisect_left(moments, end) - bisect_left(moments, begin)


def _let_pass(seconds: float) -> None:
    until = monotonic() + seconds
    wait_until(lambda: monotonic() >= until, timeout=seconds + PATIENCE, what="the time")


_DURATIONS: Any = {"lease_duration": f"{LEASE}s", "renew_deadline": f"{DEADLINE}s", "retry_period": f"{RETRY}s"}


class _Counted(RecordedProvider):
    """Followers look before they attempt."""

    def record(self, name: str) -> LockRecord | None:
        with self._logbook.operation("record", name):
            return super().record(name)


class _AsyncCounted(AsyncRecordedProvider):
    async def record(self, name: str) -> LockRecord | None:
        with self._logbook.operation("record", name):
            return await super().record(name)


@contextmanager
def _run_sync(store: Store, path: Path, name: str) -> Iterator[Callable[[], int]]:
    inner: Any = store.open()
    logbook = Logbook(path, "all")
    electors = [LeaderElector(_Counted(inner, logbook), name, holder=f"n{i}", **_DURATIONS) for i in range(WAITERS)]
    for elector in electors:
        elector.start()
    try:
        yield lambda: sum(elector.is_leader() for elector in electors)
    finally:
        threads = [threading.Thread(target=elector.stop) for elector in electors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        inner.close()
        logbook.close()


@contextmanager
def _run_async(store: Store, path: Path, name: str) -> Iterator[Callable[[], int]]:
    """In an event loop in a thread: servers are started from the main one."""
    logbook = Logbook(path, "all")
    electors: list[AsyncLeaderElector] = []
    ready, over = threading.Event(), threading.Event()

    async def main() -> None:
        inner: Any = open_provider(**store.arguments())
        for i in range(WAITERS):
            electors.append(AsyncLeaderElector(_AsyncCounted(inner, logbook), name, holder=f"n{i}", **_DURATIONS))
        for elector in electors:
            await _maybe(elector.start())
        ready.set()
        await asyncio.to_thread(over.wait)
        await asyncio.gather(*(_maybe(elector.stop()) for elector in electors))
        await inner.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield lambda: sum(elector.is_leader() for elector in electors)
    finally:
        over.set()
        thread.join(PATIENCE)
        logbook.close()


async def _maybe(result: Any) -> None:
    if result is not None:
        await result
