"""The connections of a managed client: which of them are idle, how long is waited for them, and when they are given up.

redis-py makes and uses them. Its own pools open a connection in the caller's thread, where nothing limits the lookup of
a host name, and keep those on which a server has replied that it is not the primary any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import redis

from shedlock_py._timers import WorkerPool
from shedlock_py.providers.kit import NotSent, Permits, TimedOut, call_within, seconds_left, within
from shedlock_py.providers.redis.errors import is_temporary

FREE_CONNECTION = "a free connection"
CONNECTION = "a connection"
REPLY = "a reply"
RESERVED = 2
"""So many connections are kept for urgent requests, so that no lease ends while its heartbeat waits for an acquire."""


class _Session(NamedTuple):
    connection: Any
    generation: object


class _Idle:
    """The connections that no request uses, last in, first out.

    A connection that has failed takes all of its time with it: the server has gone, or the name of the host stands for
    another server now. Nothing locks: a signal handler that raises could leave a lock held. Each step is atomic.
    """

    def __init__(self) -> None:
        self._sessions: list[_Session] = []
        self.generation = object()

    def pop(self) -> _Session | None:
        try:
            return self._sessions.pop()
        except IndexError:
            return None

    def push(self, session: _Session) -> bool:
        """False: it is of a former time, and not kept."""
        self._sessions.append(session)
        if session.generation is not self.generation:  # looked at last, as give_up() changes it first
            with suppress(ValueError):  # somebody has taken it out already
                self._sessions.remove(session)
                return False
        return True

    def give_up(self, generation: object) -> list[_Session]:
        """Those that are to be closed, when a connection of that generation has failed."""
        if generation is not self.generation:
            return []
        self.generation = object()
        sessions: list[_Session] = []
        while (session := self.pop()) is not None:
            sessions.append(session)
        return sessions


def _for_most(size: int) -> int:
    """How many of ``size`` connections requests may have that are not urgent: at least one."""
    return max(1, size - RESERVED)


class Connections:
    """Up to ``size`` connections for threads, made by ``pool``.

    :param reply_seconds: no reply is waited for longer, whatever time is left.
    """

    def __init__(self, pool: redis.ConnectionPool, size: int, reply_seconds: float | None) -> None:
        self._pool = pool
        self._permits = Permits(size)
        self._permits_for_most = Permits(_for_most(size))
        self._openers = WorkerPool(size, "shedlock-redis-connect")
        self._reply_seconds = reply_seconds
        self._idle = _Idle()

    def request(self, words: tuple[Any, ...], until: float, *, is_urgent: bool) -> Any:
        """The reply to one command. Texts are bytes.

        :param is_urgent: it has the reserved connections, too.
        """
        first = nullcontext() if is_urgent else self._permits_for_most.one_until(until)
        with first, self._permits.one_until(until):
            session = self._ready() or self._opened(until)
            is_good = False
            try:
                session.connection.send_command(*words)
                reply = self._reply(session.connection, until)
                is_good = True
                return reply
            except redis.ResponseError as error:
                is_good = not is_temporary(error)
                raise
            finally:
                if is_good:
                    if not self._idle.push(session):
                        session.connection.disconnect()
                else:
                    session.connection.disconnect()
                    self._close(self._idle.give_up(session.generation))

    def close(self) -> None:
        """Close the idle ones now, and the others when they have been used."""
        self._close(self._idle.give_up(self._idle.generation))

    def _reply(self, connection: Any, until: float) -> Any:
        seconds = seconds_left(until)
        if self._reply_seconds is not None and self._reply_seconds < seconds:
            if not connection.can_read(self._reply_seconds):
                raise redis.TimeoutError("Timeout reading from socket")
        elif not connection.can_read(seconds):
            raise TimedOut(REPLY, sent=True)
        return connection.read_response(disable_decoding=True)

    def _ready(self) -> _Session | None:
        """An idle connection that the server has not closed meanwhile."""
        while (session := self._idle.pop()) is not None:
            try:
                if not session.connection.can_read():
                    return session
            except (redis.RedisError, OSError):
                pass  # closed by the server
            session.connection.disconnect()
        return None

    def _opened(self, until: float) -> _Session:
        generation = self._idle.generation

        def connect() -> Any:
            if not seconds_left(until):
                raise TimedOut(CONNECTION, sent=False)  # the thread came too late: nobody waits for it
            connection: Any = self._pool.make_connection()
            connection.connect()
            return connection

        try:
            connection = call_within(
                self._openers, seconds_left(until), CONNECTION, connect, lambda connection: connection.disconnect()
            )
        except (redis.RedisError, OSError) as error:
            raise NotSent from error
        return _Session(connection, generation)

    def _close(self, sessions: list[_Session]) -> None:
        for session in sessions:
            session.connection.disconnect()


class AsyncConnections:
    """:class:`Connections` for one event loop."""

    def __init__(self, pool: redis.asyncio.ConnectionPool, size: int, reply_seconds: float | None) -> None:
        self._pool = pool
        self._permits = asyncio.Semaphore(size)
        self._permits_for_most = asyncio.Semaphore(_for_most(size))
        self._reply_seconds = reply_seconds
        self._idle = _Idle()

    async def request(self, words: tuple[Any, ...], until: float, *, is_urgent: bool) -> Any:
        """See :meth:`Connections.request`."""
        first = nullcontext() if is_urgent else _one_until(self._permits_for_most, until)
        async with first, _one_until(self._permits, until):
            session = await self._ready() or await self._opened(until)
            is_good = False
            try:
                reply = await self._reply(session.connection, words, until)
                is_good = True
                return reply
            except redis.ResponseError as error:
                is_good = not is_temporary(error)
                raise
            finally:
                if is_good:
                    if not self._idle.push(session):
                        await _disconnect(session.connection)
                else:
                    await _disconnect(session.connection)
                    await self._close(self._idle.give_up(session.generation))

    async def close(self) -> None:
        """Close the idle ones now, and the others when they have been used."""
        for session in self._idle.give_up(self._idle.generation):
            await session.connection.disconnect()

    async def _reply(self, connection: Any, words: tuple[Any, ...], until: float) -> Any:
        seconds = seconds_left(until)
        is_short = self._reply_seconds is not None and self._reply_seconds < seconds
        try:
            async with within(self._reply_seconds if is_short else seconds, REPLY, sent=True):
                await connection.send_command(*words)
                return await connection.read_response(disable_decoding=True)
        except TimedOut:
            if is_short:
                raise redis.TimeoutError("Timeout reading from socket") from None
            raise

    async def _ready(self) -> _Session | None:
        while (session := self._idle.pop()) is not None:
            try:
                if not await getattr(session.connection, _CAN_READ)():
                    return session
            except (redis.RedisError, OSError):
                pass  # closed by the server, as hiredis finds out
            except BaseException:
                await _disconnect(session.connection)
                raise
            await _disconnect(session.connection)
        return None

    async def _opened(self, until: float) -> _Session:
        generation = self._idle.generation
        connection: Any = self._pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py's
        try:
            async with within(seconds_left(until), CONNECTION, sent=False):
                await connection.connect()
        except (redis.RedisError, OSError) as error:
            await _disconnect(connection)
            raise NotSent from error
        except BaseException:
            await _disconnect(connection)  # it may be connected, and not be the right user yet
            raise
        return _Session(connection, generation)

    async def _close(self, sessions: list[_Session]) -> None:
        for session in sessions:
            await _disconnect(session.connection)


@asynccontextmanager
async def _one_until(permits: asyncio.Semaphore, until: float) -> AsyncIterator[None]:
    """:raises TimedOut: none was free until that moment."""
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
    """Waits for nothing, so that it cannot be cancelled half-way."""
    await connection.disconnect(nowait=True)


_CAN_READ = "can_read" if hasattr(redis.asyncio.Connection, "can_read") else "can_read_destructive"
"""redis-py 8 has renamed it."""
