"""Clients for asyncio drivers that send many requests at the same time over one connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Protocol
from weakref import finalize

from shedlock_py.providers.kit.async_pool import close_with_loop
from shedlock_py.providers.kit.failures import NotSent, TimedOut
from shedlock_py.providers.kit.options import DEFAULT_TIMEOUT
from shedlock_py.providers.kit.pool import CONNECTION
from shedlock_py.providers.kit.time_limits import driver_errors, seconds_left, within
from shedlock_py.runtime.asyncio_tools import start_task
from shedlock_py.runtime.blocking import OnOwnLoop
from shedlock_py.runtime.process import PerLoop, PerProcess, monotonic

_SHARE = 0.4
"""The share of the time limit for one reply, so that time is left to try again on another connection."""
_ORDER_SECONDS = 1.0
"""How long a cancelled request waits for its reply, so that its undo cannot overtake it in the store."""
_LATE_SECONDS = 1.0
"""How long a thread waits for its event loop after the time limit."""


class ConnectionLost(Exception):
    """The connection broke, or had no reply in time. The command may have been carried out."""


class SharedConnection(Protocol):
    """An open connection. Its requests may overlap."""

    @property
    def is_open(self) -> bool:
        """False if the next command needs another connection."""

    async def carry_out(self, command: Any, until: float, /) -> Any:
        """Return the reply to ``command``. Await the replies of the store with :func:`replies`."""

    async def close(self) -> None:
        """Close the connection. Requests that wait for a reply raise :class:`ConnectionLost`."""


async def replies(futures: Collection[asyncio.Future[Any]], until: float) -> None:
    """Wait until ``futures`` are done. A task that is cancelled meanwhile does not cancel them.

    A request that was sent cannot be withdrawn. If its task is cancelled, an undo comes next, and it must find what the
    request has done. So a cancellation waits a moment for the reply, unless it comes from the time limit ``until``.
    """
    try:
        await asyncio.wait(futures)
    except asyncio.CancelledError:
        if seconds_left(until):
            await asyncio.wait(futures, timeout=_ORDER_SECONDS)
        raise


class SharedClient:
    """A client for :class:`AsyncProgramProvider`. All tasks of an event loop share one connection.

    A connection is closed after a request without a reply. Then the other requests on it raise
    :class:`ConnectionLost`, too.

    :param connect: opens a connection until that moment. If it is cancelled, it closes the connection itself.
    """

    def __init__(self, connect: Callable[[float], Awaitable[SharedConnection]], shown: str) -> None:
        self.shown = shown
        self._of_loop = PerLoop(partial(_OfLoop, connect))

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

    def __init__(self, connect: Callable[[float], Awaitable[SharedConnection]]) -> None:
        self._connect = connect
        self._connection: SharedConnection | None = None
        self._connecting: asyncio.Task[SharedConnection] | None = None
        self._at_end: AsyncGenerator[None] | None = None

    async def connection(self, until: float) -> SharedConnection:
        """Return the open connection. The first task that needs another connection opens it for all tasks."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._at_end is None:
            self._at_end = close_with_loop(self.close)
            await anext(self._at_end)
        if self._connecting is None or self._connecting.done():
            self._connecting = start_task(self._open(until))
            self._connecting.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # somebody has seen it
        async with within(seconds_left(until), CONNECTION, sent=False):
            return await asyncio.shield(self._connecting)

    async def _open(self, until: float) -> SharedConnection:
        with driver_errors(is_connecting=True):
            async with within(seconds_left(until), CONNECTION, sent=False):
                self._connection = await self._connect(until)
        return self._connection

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
        call = _Call(partial(own.async_provider.execute, command, timeout))
        try:
            own.loop.call_soon_threadsafe(call.start)
            if not call.ended.acquire(timeout=seconds + _LATE_SECONDS):
                raise TimedOut("its event loop", sent=True)
        except BaseException as error:  # also from a signal handler
            if own.loop.is_closed():  # by the provider's close()
                raise NotSent from error
            with suppress(RuntimeError):  # it was closed meanwhile
                own.loop.call_soon_threadsafe(call.cancel)
                call.ended.acquire(timeout=2 * _ORDER_SECONDS)
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
            self._task.add_done_callback(lambda _: self.ended.release())

    def cancel(self) -> None:
        """Cancel the request, on the event loop, or keep it from starting."""
        self._is_cancelled = True
        if self._task is None:
            self.ended.release()
        else:
            self._task.cancel()

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
                        self._loop = OnOwnLoop(self._make)
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
