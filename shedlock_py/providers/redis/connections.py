"""The connections of a managed client: how long a request waits for one, and when they are discarded.

redis-py makes and uses them. Its own pools look up the host name in the caller's thread, without a time limit, and keep
connections whose server has replied that it is not the primary any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import redis

from shedlock_py._timers import WorkerPool
from shedlock_py.providers.kit import NotSent, Permits, TimedOut, call_within, seconds_left, within
from shedlock_py.providers.redis.errors import is_temporary

FREE_CONNECTION = "a free connection"
CONNECTION = "a connection"
REPLY = "a reply"
RESERVED = 2
"""So many connections are kept for urgent requests, so that no lease ends while its heartbeat waits for an acquire."""


class _Connections:
    """Up to ``size`` connections.

    The list of idle connections is replaced when a connection fails: the server is down, or its host name now names
    another server. A connection returns to the list that was current when it was taken, and is closed if that list has
    been replaced. Each step is atomic: a signal handler that raises could leave a lock locked.

    :param make: makes a connection of redis-py, which is not open yet.
    :param reply_seconds: the longest wait for one reply, whatever time the operation has left.
    """

    _semaphore: Any

    def __init__(self, make: Callable[[], Any], size: int, reply_seconds: float) -> None:
        self._make = make
        self._reply_seconds = reply_seconds
        self._idle: list[Any] = []
        self._permits = self._semaphore(size)
        self._permits_for_most = self._semaphore(max(1, size - RESERVED))

    def _outdated(self, idle: list[Any], connection: Any, *, is_good: bool) -> list[Any]:
        """Return ``connection`` to ``idle``, from where it came. The result is to be closed."""
        if is_good:
            idle.append(connection)
            return [] if idle is self._idle else _emptied(idle)
        return [connection, *self._discarded(idle)]

    def _discarded(self, idle: list[Any]) -> list[Any]:
        """Replace ``idle``, if it is still the current list. The result is to be closed."""
        if idle is self._idle:
            self._idle = []
        return _emptied(idle)


class Connections(_Connections):
    """Connections for threads."""

    _semaphore = Permits

    def __init__(self, make: Callable[[], Any], size: int, reply_seconds: float) -> None:
        super().__init__(make, size, reply_seconds)
        self._openers = WorkerPool(size, "shedlock-redis-connect")

    def request(self, words: tuple[Any, ...], until: float, *, is_urgent: bool) -> Any:
        """The reply to one command. Texts are bytes.

        :param is_urgent: the request may use the reserved connections, too.
        """
        first = nullcontext() if is_urgent else self._permits_for_most.one_until(until)
        with first, self._permits.one_until(until):
            idle = self._idle
            connection = _pop(idle) or self._opened(until)
            is_good = False
            try:
                connection.send_command(*words)
                reply = self._reply(connection, until)
                is_good = True
                return reply
            except redis.ResponseError as error:
                is_good = not is_temporary(error)
                raise
            finally:
                for outdated in self._outdated(idle, connection, is_good=is_good):
                    outdated.disconnect()

    def close(self) -> None:
        """Close the idle connections now, and the others when they have been used."""
        for connection in self._discarded(self._idle):
            connection.disconnect()

    def _reply(self, connection: Any, until: float) -> Any:
        seconds = seconds_left(until)
        # redis-py itself reports a shorter socket_timeout of the URL.
        if seconds <= self._reply_seconds and not connection.can_read(seconds):
            raise TimedOut(REPLY, sent=True)
        return connection.read_response(disable_decoding=True)

    def _opened(self, until: float) -> Any:
        def connect() -> Any:
            if not seconds_left(until):
                raise TimedOut(CONNECTION, sent=False)  # the thread came too late: the caller has given up
            connection = self._make()
            connection.connect()
            return connection

        try:
            return call_within(self._openers, seconds_left(until), CONNECTION, connect, lambda late: late.disconnect())
        except (redis.RedisError, OSError) as error:
            raise NotSent from error


class AsyncConnections(_Connections):
    """Connections for one event loop."""

    _semaphore = asyncio.Semaphore

    async def request(self, words: tuple[Any, ...], until: float, *, is_urgent: bool) -> Any:
        """See :meth:`Connections.request`."""
        first = nullcontext() if is_urgent else _one_until(self._permits_for_most, until)
        async with first, _one_until(self._permits, until):
            idle = self._idle
            connection = _pop(idle) or await self._opened(until)
            is_good = False
            try:
                reply = await self._reply(connection, words, until)
                is_good = True
                return reply
            except redis.ResponseError as error:
                is_good = not is_temporary(error)
                raise
            finally:
                for outdated in self._outdated(idle, connection, is_good=is_good):
                    await _disconnect(outdated)

    async def close(self) -> None:
        """See :meth:`Connections.close`."""
        for connection in self._discarded(self._idle):
            await connection.disconnect()

    async def _reply(self, connection: Any, words: tuple[Any, ...], until: float) -> Any:
        seconds = seconds_left(until)
        try:
            async with within(min(seconds, self._reply_seconds), REPLY, sent=True):
                try:
                    await connection.send_command(*words)
                except RuntimeError as error:  # of uvloop: the connection was reset while it was idle
                    raise redis.ConnectionError(str(error)) from error
                return await connection.read_response(disable_decoding=True)
        except TimedOut:
            if seconds <= self._reply_seconds:
                raise
            raise redis.TimeoutError("Timeout reading from socket") from None  # in redis-py's words

    async def _opened(self, until: float) -> Any:
        connection = self._make()
        try:
            async with within(seconds_left(until), CONNECTION, sent=False):
                await connection.connect()
        except BaseException as error:
            await _disconnect(connection)  # it may be connected, and not authenticated yet
            if isinstance(error, redis.RedisError | OSError):
                raise NotSent from error
            raise
        return connection


@asynccontextmanager
async def _one_until(permits: asyncio.Semaphore, until: float) -> AsyncIterator[None]:
    """Hold a permit. :raises TimedOut: there was none until that moment."""
    if permits.locked():
        async with within(seconds_left(until), FREE_CONNECTION, sent=False):
            await permits.acquire()
    else:
        await permits.acquire()  # at once
    try:
        yield
    finally:
        permits.release()


async def _disconnect(connection: Any) -> None:
    """Close without waiting, so that a cancellation cannot interrupt it."""
    await connection.disconnect(nowait=True)


def _pop(connections: list[Any]) -> Any:
    try:
        return connections.pop()
    except IndexError:
        return None


def _emptied(connections: list[Any]) -> list[Any]:
    """What was in the list. Another thread may take connections out of it at the same time."""
    found = []
    while (connection := _pop(connections)) is not None:
        found.append(connection)
    return found
