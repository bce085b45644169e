"""Clients for asyncio drivers that send many requests at the same time over one connection."""

from __future__ import annotations

import asyncio
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import finalize

from shedlock_py.providers.kit.async_pool import close_with_loop
from shedlock_py.providers.kit.failures import ConnectionLost, NotSent, TimedOut
from shedlock_py.providers.kit.options import DEFAULT_TIMEOUT
from shedlock_py.providers.kit.pool import CONNECTION
from shedlock_py.providers.kit.time_limits import ORDER_SECONDS, driver_errors, seconds_left, within
from shedlock_py.runtime.asyncio_tools import start_task
from shedlock_py.runtime.blocking import OnOwnLoop
from shedlock_py.runtime.process import PerLoop, PerProcess, monotonic
from shedlock_py.runtime.threads import EXIT_SECONDS

_SHARE = 0.4
"""The share of the time limit for one reply, so that time is left to try again on another connection."""
_LATE_SECONDS = 1.0
"""How long a thread waits for its event loop after the time limit."""


class SharedConnection(ABC):
    """A connection of an event loop. Its requests overlap. Each request has a key, and a future for its reply."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[Any]] = {}
        self._begun = False
        self._ended = asyncio.Event()

    @abstractmethod
    async def open(self, host: str, seconds: float) -> None:
        """Connect to a server, and then call :meth:`begin`. After ``OSError``, another server is tried."""

    @abstractmethod
    async def carry_out(self, command: Any, until: float) -> Any:
        """Return the reply to ``command``."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Close the driver's connection."""

    @property
    def is_open(self) -> bool:
        """False if the next command needs another connection."""
        return self._begun and not self._ended.is_set()

    def begin(self) -> None:
        """Call it when the connection is open. The end of the event loop, which ends the driver's tasks, ends it."""
        self._begun = True
        start_task(self._live())

    async def _live(self) -> None:
        try:
            await self._ended.wait()
        finally:
            self.end()

    def end(self) -> None:
        """Call it when the connection has ended. Requests that wait for a reply raise :class:`ConnectionLost`."""
        self._ended.set()
        for key in list(self._futures):
            self.resolve(key, ConnectionLost("the connection was closed before the reply"))

    def expect(self, key: str) -> asyncio.Future[Any]:
        """Return the future for the reply to a request that is sent next."""
        future = self._futures[key] = asyncio.get_running_loop().create_future()
        return future

    def resolve(self, key: str, outcome: Any) -> None:
        """Set the reply, or an exception. Ignore it if no request waits for it."""
        future = self._futures.pop(key, None)
        if future is not None and not future.done():
            future.set_result(outcome)

    async def outcomes(self, futures: Collection[asyncio.Future[Any]], until: float) -> list[Any]:
        """Return the replies, in which an exception may be. A task that is cancelled meanwhile waits a moment for them.

        A request that was sent cannot be withdrawn. If its task is cancelled, an undo comes next, and it must find what
        the request has done. A cancellation by the time limit, at ``until``, does not wait.
        """
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError:
            if seconds_left(until):
                await asyncio.wait(futures, timeout=ORDER_SECONDS)
            raise
        return [future.result() for future in futures]

    async def close(self) -> None:
        """End the requests, and wait for the driver. A driver that is cancelled here would not close its socket."""
        self.end()
        await asyncio.wait([start_task(self._disconnected())], timeout=EXIT_SECONDS)

    async def _disconnected(self) -> None:
        with suppress(Exception):
            await self.disconnect()


class SharedClient:
    """A client for :class:`AsyncProgramProvider`. All tasks of an event loop share one connection.

    A connection is closed after a request without a reply. Then the other requests on it raise
    :class:`ConnectionLost`, too.

    :param hosts: the servers. A connection leads to a server by chance.
    :param make: makes a connection, which is not open yet.
    :param shown: the place of the records, for people.
    """

    def __init__(self, hosts: Sequence[str], make: Callable[[], SharedConnection], shown: str) -> None:
        self.shown = shown
        self._of_loop = PerLoop(partial(_OfLoop, hosts, make))

    async def execute(self, command: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 (see AsyncStoreClient)
        seconds = DEFAULT_TIMEOUT.total_seconds() if timeout is None else timeout
        until = monotonic() + seconds
        connection = await self._of_loop.get().connection(until)
        end_of_try = min(until, monotonic() + seconds * _SHARE)
        try:
            async with within(seconds_left(end_of_try), "a reply", sent=True):
                return await connection.carry_out(command, end_of_try)
        except TimedOut as error:
            start_task(connection.close())
            if not seconds_left(until):
                raise
            raise ConnectionLost(f"no reply in {seconds * _SHARE:.1f} s") from error

    async def close(self) -> None:
        mine = self._of_loop.pop()
        if mine is not None:
            await mine.close()


class _OfLoop:
    """The connection of an event loop."""

    def __init__(self, hosts: Sequence[str], make: Callable[[], SharedConnection]) -> None:
        self._hosts = hosts
        self._make = make
        self._connection: SharedConnection | None = None
        self._connecting: asyncio.Task[SharedConnection] | None = None
        self._at_end: AsyncGenerator[None] | None = None

    async def connection(self, until: float) -> SharedConnection:
        """Return the open connection. The first task that needs another connection opens it for all tasks."""
        if self._connection is not None:
            if self._connection.is_open:
                return self._connection
            start_task(self._connection.close())  # whoever cancelled its tasks has not closed the driver's socket
            self._connection = None
        if self._at_end is None:
            self._at_end = close_with_loop(self.close)
            await anext(self._at_end)
        connecting = self._connecting
        if connecting is None or connecting.done():
            connecting = self._connecting = start_task(self._open(until))
            # asyncio logs an exception that no task has seen. All tasks may have given up before.
            connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        async with within(seconds_left(until), CONNECTION, sent=False):
            await asyncio.wait([connecting])  # if this task is cancelled, other tasks still wait
        if connecting.cancelled():
            raise NotSent from ConnectionLost("the client was closed")
        return connecting.result()

    async def _open(self, until: float) -> SharedConnection:
        with driver_errors(is_connecting=True):
            async with within(seconds_left(until), CONNECTION, sent=False):
                self._connection = await self._connect(until)
        return self._connection

    async def _connect(self, until: float) -> SharedConnection:
        failed = []
        for number, host in enumerate(random.sample(self._hosts, len(self._hosts))):
            connection, seconds = self._make(), seconds_left(until) / (len(self._hosts) - number)
            try:
                async with within(seconds, CONNECTION, sent=False):
                    await connection.open(host, 0.9 * seconds)  # its own limit ends first, and closes the socket
                return connection
            except (OSError, TimedOut) as error:
                what = str(error) or str(TimedOut(CONNECTION, sent=False))  # a driver's TimeoutError has no text
                failed.append(f"{host}: {what}")
            finally:
                if not connection.is_open:
                    start_task(connection.close())
        raise OSError("; ".join(failed))

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            await self._connection.close()


class BlockingClient:
    """A client for :class:`ProgramProvider` that calls an asyncio client on an event loop in a thread.

    An exception of a signal handler, such as Ctrl-C, cancels the request, and waits until it has ended. Otherwise the
    request might be carried out after its undo.

    :param make: makes the asyncio client, for each process.
    """

    def __init__(self, make: Callable[[], SharedClient], shown: str) -> None:
        self.shown = shown
        self._of_process = PerProcess(partial(_LoopOfProcess, make))
        # For a provider that is never closed. At the end of the process, the system closes the connections.
        finalize(self, _stop, self._of_process).atexit = False

    def execute(self, command: Any, timeout: float | None) -> Any:
        seconds = DEFAULT_TIMEOUT.total_seconds() if timeout is None else timeout
        own = self._of_process.get().started()
        client: Any = own.async_provider
        call = _Call(partial(client.execute, command, timeout))
        try:
            own.loop.call_soon_threadsafe(call.start)
            if not call.ended.acquire(timeout=seconds + _LATE_SECONDS):
                raise TimedOut("its event loop", sent=True)
        except BaseException as error:  # also from a signal handler
            if own.loop.is_closed():  # by the provider's close()
                raise NotSent from error
            with suppress(RuntimeError):  # it was closed meanwhile
                own.loop.call_soon_threadsafe(call.cancel)
                call.ended.acquire(timeout=2 * ORDER_SECONDS)
            raise
        return call.result()

    def close(self) -> None:
        mine = self._of_process.pop()
        if mine is not None:
            mine.close()


class _Call:
    """A request of a thread to its event loop.

    The two share no future: an exception from a signal handler can leave a future locked for ever.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.ended = threading.Lock()
        self.ended.acquire()
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def start(self) -> None:
        """Start the request, on the event loop."""
        if not self._is_cancelled:
            self._task = start_task(self._work())
            self._task.add_done_callback(lambda _: self._end())

    def cancel(self) -> None:
        """Cancel the request, on the event loop, or keep it from starting."""
        self._is_cancelled = True
        if self._task is None or self._task.done():
            self._end()  # again: the exception may have come just after the thread had acquired the lock
        else:
            self._task.cancel()

    def _end(self) -> None:
        with suppress(RuntimeError):  # it is released
            self.ended.release()

    def result(self) -> Any:
        if self._task is None or self._task.cancelled():  # by the end of the event loop
            raise TimedOut("its event loop", sent=True)
        return self._task.result()


class _LoopOfProcess:
    """The event loop of a process, started for the first request."""

    def __init__(self, make: Callable[[], SharedClient]) -> None:
        self._make = make
        self._mutex = threading.Lock()
        self._loop: OnOwnLoop | None = None

    def started(self) -> OnOwnLoop:
        if self._loop is None:
            with self._mutex:
                if self._loop is None:
                    with driver_errors(is_connecting=True):  # no thread or no descriptor is free
                        make: Any = self._make
                        self._loop = OnOwnLoop(make)
        return self._loop

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.stop()


def _stop(of_process: PerProcess[_LoopOfProcess]) -> None:
    mine = of_process.pop()
    if mine is not None:
        mine.stop()
