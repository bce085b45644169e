"""Connection pools: the limit, the time limit, signal handlers that must not lose a connection, and closing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from shedlock_py.providers.kit import (
    AsyncConnectionPool,
    ConnectionPool,
    NotSent,
    PooledConnection,
    TimedOut,
    call_within,
)
from shedlock_py.providers.kit import pool as module
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.threads import WorkerPool
from tests.support.polling import wait_until
from tests.support.signals import Interrupted, TooLong, raised_by
from tests.support.timing import BUSY, Stopwatch

COUNT = 3
FOR_EVER = 30.0
"""Seconds. A thread that waits so long was not woken."""


class Connection:
    was_closed = False

    def is_open(self) -> bool:
        return not self.was_closed


class Server:
    """A server that opens and closes connections. It may be down, or slow to accept."""

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self.error: Exception | None = None
        self.begun = threading.Event()
        self.accepts = threading.Event()
        self.accepts.set()

    def connect(self, until: float) -> Connection:
        self.begun.set()
        self.accepts.wait(30)
        if self.error is not None:
            raise self.error
        self.opened.append(Connection())
        return self.opened[-1]

    def disconnect(self, connection: Connection) -> None:
        connection.was_closed = True
        raise OSError("a broken pipe")

    async def connect_async(self, until: float) -> Connection:
        self.begun.set()
        await asyncio.to_thread(self.accepts.wait, 30)
        return self.connect(until)

    async def disconnect_async(self, connection: Connection) -> None:
        self.disconnect(connection)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.accepts.set()


Pool = ConnectionPool[Connection] | AsyncConnectionPool[Connection]


@pytest.fixture(params=["sync", "async"])
async def pool(request: pytest.FixtureRequest, server: Server) -> Pool:
    if request.param == "sync":
        return ConnectionPool(server.connect, server.disconnect, size=COUNT, reserved=1, name="test")
    return AsyncConnectionPool(server.connect_async, server.disconnect_async, size=COUNT, reserved=1)


@contextmanager
def held(
    pool: ConnectionPool[Connection], seconds: float = 10, *, is_urgent: bool = False
) -> Iterator[PooledConnection[Connection]]:
    lent: Future[PooledConnection[Connection]] = Future()
    is_over = threading.Event()

    def use(pooled: PooledConnection[Connection]) -> None:
        lent.set_result(pooled)
        is_over.wait(60)

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(lambda: pool.use(use, monotonic() + seconds, is_urgent=is_urgent))
        either: list[Future[Any]] = [lent, done]
        wait(either, return_when=FIRST_COMPLETED)
        try:
            if not lent.done():
                done.result()
            yield lent.result()
        finally:
            is_over.set()


@asynccontextmanager
async def connection(
    pool: Pool, seconds: float = 10, *, is_urgent: bool = False
) -> AsyncIterator[PooledConnection[Connection]]:
    if isinstance(pool, ConnectionPool):
        with held(pool, seconds, is_urgent=is_urgent) as lent:
            yield lent
        return
    lent_to: asyncio.Future[PooledConnection[Connection]] = asyncio.get_running_loop().create_future()
    is_over = asyncio.Event()

    async def use(pooled: PooledConnection[Connection]) -> None:
        lent_to.set_result(pooled)
        await is_over.wait()

    async def begin() -> None:
        """The time counts from here, however late the task begins."""
        await pool.use(use, monotonic() + seconds, is_urgent=is_urgent)

    done = asyncio.create_task(begin())
    either: list[asyncio.Future[Any]] = [lent_to, done]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    try:
        if not lent_to.done():
            await done
        yield lent_to.result()
    finally:
        is_over.set()
        await asyncio.wait([done])


async def used(pool: Pool, *, is_good: bool = True) -> Connection:
    async with connection(pool) as lent:
        assert lent.connection.is_open()
        lent.is_good = is_good
        return lent.connection


async def test_a_good_connection_is_used_again_and_a_bad_one_closes_all_that_are_as_old(pool: Pool) -> None:
    async with connection(pool) as lent:
        returned_late = lent.connection
        idle = await used(pool)
        assert await used(pool) is idle
        assert await used(pool, is_good=False) is idle
        lent.is_good = True
    assert not idle.is_open()
    assert not returned_late.is_open()


async def test_a_connection_that_breaks_at_its_second_use_is_not_used_again(pool: Pool) -> None:
    broken = await used(pool)
    with suppress(OSError):
        async with connection(pool) as lent:
            assert lent.connection is broken
            raise OSError("a broken pipe")
    assert await used(pool) is not broken


async def test_a_late_bad_connection_leaves_newer_ones_alone(pool: Pool) -> None:
    async with connection(pool):
        await used(pool, is_good=False)
        newer = await used(pool)
    assert await used(pool) is newer


async def test_connections_are_closed_and_outdated(pool: Pool) -> None:
    outdated = await used(pool)
    pool.outdate()
    assert outdated.is_open()
    async with connection(pool) as lent:
        assert not outdated.is_open()
        idle, in_use = await used(pool), lent.connection
        if isinstance(pool, ConnectionPool):
            pool.close()
        else:
            await pool.close()
        assert in_use.is_open()
        assert not idle.is_open()
        lent.is_good = True
    assert not in_use.is_open()
    assert (await used(pool)).is_open()


async def test_a_connection_opened_while_another_failed_is_not_kept(pool: Pool, server: Server) -> None:
    """Its host name may have been resolved before the server was replaced."""
    server.accepts.clear()
    opening = asyncio.create_task(used(pool)) if isinstance(pool, AsyncConnectionPool) else None
    threads = ThreadPoolExecutor(1)
    waiting = None if opening else threads.submit(lambda: asyncio.run(used(pool)))
    await asyncio.to_thread(server.begun.wait, 30)
    pool.outdate()
    server.accepts.set()
    opened = await opening if opening else await asyncio.wrap_future(waiting or Future())
    threads.shutdown()
    assert not opened.is_open()
    assert await used(pool) is not opened


async def test_i13_nothing_is_opened_when_the_time_is_over(pool: Pool, server: Server) -> None:
    """The threads with a connection gave up at the same moment."""
    with pytest.raises(TimedOut, match="a free connection"):
        async with connection(pool, 0):
            pass
    assert server.opened == []


async def test_an_event_loop_closes_its_connections_at_its_end(server: Server) -> None:
    """Afterwards, drivers could not close anything."""

    async def main() -> None:
        pool = AsyncConnectionPool(server.connect_async, server.disconnect_async, size=COUNT, reserved=1)
        async with connection(pool) as lent:
            await used(pool)
            lent.is_good = True
        assert all(connection.is_open() for connection in server.opened)

    await asyncio.to_thread(asyncio.run, main())
    assert [connection.is_open() for connection in server.opened] == [False, False]


async def test_a_close_that_is_cancelled_closes_all(server: Server) -> None:
    """For example, the application's shutdown has a time limit, and a server does not reply to the end of a TLS
    session."""

    async def end(_: Connection) -> None:
        await asyncio.sleep(60)

    pool = AsyncConnectionPool(server.connect_async, server.disconnect_async, end=end, size=COUNT, reserved=1)
    async with connection(pool) as lent:
        await used(pool)
        lent.is_good = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.close(), 0.05)
    assert [connection.is_open() for connection in server.opened] == [False, False]


async def test_connections_end_together(server: Server) -> None:
    """If the server does not reply, closing each connection may take a whole time limit."""
    together = asyncio.Barrier(2)

    async def end(connection: Connection) -> None:
        await together.wait()
        connection.was_closed = True

    pool = AsyncConnectionPool(server.connect_async, server.disconnect_async, end=end, size=COUNT, reserved=1)
    async with connection(pool) as lent:
        await used(pool)
        lent.is_good = True
    await asyncio.wait_for(pool.close(), 10)
    assert [connection.is_open() for connection in server.opened] == [False, False]


async def test_some_connections_are_for_urgent_requests(pool: Pool) -> None:
    async with connection(pool), connection(pool):
        with pytest.raises(TimedOut, match="a free connection") as caught:
            async with connection(pool, 0.05):
                pass
        assert not caught.value.sent
        async with connection(pool, 0.5, is_urgent=True):
            with pytest.raises(TimedOut, match="a free connection"):
                async with connection(pool, 0.05, is_urgent=True):
                    pass


async def test_a_connection_that_cannot_be_opened(pool: Pool, server: Server) -> None:
    good = await used(pool)
    async with connection(pool) as lent:
        server.error = ConnectionRefusedError("connection refused")
        for _ in range(2 * COUNT):  # no slot is lost
            with pytest.raises(NotSent) as caught:
                await used(pool)
            assert caught.value.__cause__ is server.error
        lent.is_good = True
    assert await used(pool) is good


async def test_i13_a_server_that_does_not_accept(pool: Pool, server: Server) -> None:
    server.accepts.clear()
    with Stopwatch() as watch:
        for _ in range(2 * COUNT):
            with pytest.raises(TimedOut, match="a connection") as caught:
                async with connection(pool, 0.05):
                    pass
            assert not caught.value.sent
    assert watch.seconds < BUSY
    server.accepts.set()
    await used(pool)


# Threads and signals


@pytest.fixture
def threaded() -> ConnectionPool[Connection]:
    return ConnectionPool(lambda _: Connection(), lambda _: None, size=COUNT, reserved=0, name="test")


def all_are_free(pool: ConnectionPool[Connection]) -> bool:
    """Return whether all connections can be used at the same time."""
    together = threading.Barrier(COUNT, timeout=30)

    def take(_: int) -> bool:
        try:
            pool.use(lambda _: together.wait(), monotonic() + 10, is_urgent=False)
        except (TimedOut, threading.BrokenBarrierError):
            return False
        return True

    with ThreadPoolExecutor(COUNT) as threads:
        return all(threads.map(take, range(COUNT)))


@pytest.mark.not_quick("waits for real seconds")
def test_never_more_than_there_are_and_nobody_waits_too_long() -> None:
    pool = ConnectionPool(lambda _: Connection(), lambda _: None, size=COUNT + 1, reserved=1, name="test")
    mutex = threading.Lock()
    active, peak, longest = 0, 0, 0.0
    until = time.monotonic() + 1

    def use(randomness: random.Random, lent: PooledConnection[Connection]) -> None:
        nonlocal active, peak
        with mutex:
            active += 1
            peak = max(peak, active)
        threading.Event().wait(randomness.uniform(0, 0.01))
        lent.is_good = randomness.random() < 0.9
        with mutex:
            active -= 1

    def work(seed: int) -> None:
        nonlocal longest
        randomness = random.Random(seed)
        while time.monotonic() < until:
            seconds, started = randomness.uniform(0.005, 0.1), monotonic()
            try:
                pool.use(partial(use, randomness), started + seconds, is_urgent=seed % 10 == 0)
            except TimedOut:
                with mutex:
                    longest = max(longest, monotonic() - started - seconds)

    with ThreadPoolExecutor(40) as threads:
        list(threads.map(work, range(40)))
    assert peak == COUNT + 1
    assert longest < FOR_EVER
    assert all_are_free(pool)


def test_a_connection_opened_just_after_another_failed_is_kept() -> None:
    newer: list[Connection] = []

    def disconnect(_: Connection) -> None:
        """Another request opens a connection meanwhile."""
        if not newer:
            kept.use(keep, monotonic() + 10, is_urgent=False)

    def keep(lent: PooledConnection[Connection]) -> None:
        newer.append(lent.connection)
        lent.is_good = True

    kept = ConnectionPool(lambda _: Connection(), disconnect, size=COUNT, reserved=0, name="test")
    kept.use(lambda _: None, monotonic() + 10, is_urgent=False)
    with held(kept) as lent:
        assert [lent.connection] == newer


def test_a_returned_connection_wakes_a_thread_that_waits(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_SECONDS", 60)
    pool = ConnectionPool(server.connect, server.disconnect, size=COUNT, reserved=0, name="test")
    with ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        for _ in range(COUNT):
            stack.enter_context(held(pool))
        waiting = threads.submit(take_and_return, pool)
        wait([waiting], 0.1)
        assert not waiting.done()
        stack.close()
        assert waiting.result() < FOR_EVER


async def test_an_idle_connection_is_closed_after_a_while(server: Server) -> None:
    sync = ConnectionPool(server.connect, server.disconnect, size=COUNT, reserved=0, name="test", idle_timeout=0.1)
    for pool in (
        sync,
        AsyncConnectionPool(server.connect_async, server.disconnect_async, size=COUNT, reserved=0, idle_timeout=0.1),
    ):
        idle = await used(pool)
        await asyncio.to_thread(wait_until, partial(getattr, idle, "was_closed"))
        assert await used(pool) is not idle


def take_and_return(pool: ConnectionPool[Connection]) -> float:
    began = monotonic()
    return pool.use(lambda _: monotonic() - began, began + 30, is_urgent=False)


@pytest.fixture
def _alarm() -> Iterator[None]:
    with raised_by(signal.SIGALRM, TooLong):
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.skipif(sys.version_info[:2] == (3, 14), reason="its `with` may keep any lock: python/cpython#148874")
@pytest.mark.usefixtures("_alarm")
def test_exceptions_of_a_signal_handler_lose_none(
    threaded: ConnectionPool[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "call_within", lambda *call: call[3]())  # run it in this thread

    def use() -> None:
        def use_two(one: PooledConnection[Connection]) -> None:
            threaded.use(lambda _: None, until, is_urgent=True)
            one.is_good = True

        while True:
            until = monotonic() + 5
            threaded.use(use_two, until, is_urgent=False)

    randomness = random.Random(1)
    for _ in range(1000):
        # The second alarm comes if Python ignores the first: in a callback of a weak reference. On a busy machine it
        # may come while the first one is handled.
        with suppress(TooLong), suppress(TooLong):
            signal.setitimer(signal.ITIMER_REAL, randomness.uniform(0.00001, 0.0003), 2)
            use()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert all_are_free(threaded)


# Results that nobody waits for are discarded


class Exhausted(WorkerPool):
    """Threads cannot be started, as at a container's limit, or while the interpreter ends."""

    def submit(self, function: Any) -> Future[Any]:
        raise RuntimeError("can't start new thread")


def test_without_a_thread_it_is_called_without_the_limit() -> None:
    discarded: list[int] = []
    thread = call_within(Exhausted(1, "none"), 1, "a connection", threading.get_ident, discarded.append)
    assert (thread, discarded) == (threading.get_ident(), [])


@pytest.mark.parametrize("end", ["time limit", "signal"])
@pytest.mark.usefixtures("_alarm")
def test_a_late_result_is_discarded(end: str) -> None:
    pool, begun, done, raised = WorkerPool(1, "test"), threading.Event(), threading.Event(), threading.Event()
    discarded: list[str] = []

    def open_late() -> str:
        begun.set()
        done.wait(30)
        return "a connection"

    def raise_once(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise TooLong

    def interrupt() -> None:
        begun.wait(30)
        # If a signal arrives just before a thread waits for a lock, Python handles it when the wait ends: send another.
        while not raised.wait(0.2):
            os.kill(os.getpid(), signal.SIGALRM)

    interrupting = threading.Thread(target=interrupt)
    if end == "signal":
        signal.signal(signal.SIGALRM, raise_once)
        interrupting.start()
    started = time.monotonic()
    with pytest.raises(TooLong if end == "signal" else TimedOut):
        call_within(pool, 30 if end == "signal" else 0.05, "a connection", open_late, discard=discarded.append)
    assert time.monotonic() - started < 20
    raised.set()
    if end == "signal":
        interrupting.join()
    done.set()
    wait_until(lambda: discarded == ["a connection"], what="the late result discarded")


class Interrupting(WorkerPool):
    """Ctrl-C arrives when the thread has finished, before its result is taken."""

    def submit(self, function: Any) -> Future[Any]:
        function()
        raise Interrupted


def test_a_late_connection_that_cannot_be_closed_hides_no_error(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shedlock_py.providers.kit.pool.WorkerPool", Interrupting)
    pool = ConnectionPool(server.connect, server.disconnect, size=1, reserved=0, name="test")
    with pytest.raises(Interrupted):
        pool.use(lambda _: None, monotonic() + 10, is_urgent=False)
    assert [connection.is_open() for connection in server.opened] == [False]
