"""How callers wait for a connection of a client that we open. It costs next to nothing while nobody has to wait.

Of redis-py's pools, the one for threads waits in ``queue.LifoQueue``, which takes two locks and two conditions, and the
one for asyncio sets a time limit for each command. Ours do the same with less.
"""

from __future__ import annotations

import asyncio
from queue import Empty, Full, SimpleQueue
from typing import Any

import redis
import redis.asyncio

from shedlock_py._aio import TimeLimit


class Stack:
    """Where ``redis.BlockingConnectionPool`` keeps its connections, as its ``queue_class``: last in, first out.

    What that asks of one is all that is here. After a fork it makes a new one, in the child.
    """

    def __init__(self, maxsize: int) -> None:
        self.queue: list[Any] = []
        self._turns: SimpleQueue[None] = SimpleQueue()  # one for each of the queue
        self._maxsize = maxsize

    def put_nowait(self, item: Any) -> None:
        if len(self.queue) >= self._maxsize:
            raise Full
        self.queue.append(item)
        self._turns.put(None)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while True:
            has_turn = True
            try:
                self._turns.get(block, timeout)
            except Empty:
                has_turn = False  # look, all the same: a signal handler's exception may have cost a turn
            try:
                return self.queue.pop()
            except IndexError:
                if not has_turn:
                    raise Empty from None
                # It was the turn of a connection that somebody has taken without one.


class AsyncRedis(redis.asyncio.Redis):
    """A client that does for a command what is needed: one connection, one time limit, one try."""

    connection_pool: AsyncPool

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        pool = self.connection_pool
        connection = await pool.get_connection()
        try:
            # If they do not get to their end, be it by this limit, redis-py closes the connection: no reply is left
            # on it for the next one who asks.
            with TimeLimit(pool.answer_seconds):
                await connection.send_command(*args)
                return await self.parse_response(connection, args[0], **options)
        except TimeoutError:
            raise redis.TimeoutError("Timeout reading from socket") from None  # as redis-py says it
        finally:
            await pool.release(connection)


class AsyncPool(redis.asyncio.ConnectionPool):
    """The pool of an :class:`AsyncRedis`: so many callers have a connection, the others wait for their turn.

    The limits are ours: a connection has no ``socket_timeout``, for which redis-py makes a task of each write.
    """

    def __init__(self, *, timeout: float, socket_timeout: float, socket_connect_timeout: float, **options: Any) -> None:
        super().__init__(socket_timeout=None, socket_connect_timeout=socket_connect_timeout, **options)
        self.answer_seconds = socket_timeout
        self._connect_seconds = socket_connect_timeout
        self._wait_seconds = float(timeout)  # text, from a URL and redis-py 5.0
        self._turns = asyncio.Semaphore(self.max_connections)
        self._connections: list[Any] = []
        self._idle: list[Any] = []

    async def get_connection(self, *_: Any, **__: Any) -> Any:
        await self._turn()
        try:
            connection = self._idle.pop() if self._idle else self._new_connection()
        except BaseException:
            self._turns.release()
            raise
        try:
            if connection.is_connected and await _is_spent(connection):
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                await self._connect(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: Any) -> None:
        self._idle.append(connection)
        self._turns.release()

    async def disconnect(self, inuse_connections: bool = True) -> None:
        connections = self._connections if inuse_connections else self._idle
        ends = await asyncio.gather(*(each.disconnect() for each in connections), return_exceptions=True)
        for failure in ends:
            if isinstance(failure, BaseException):
                raise failure

    async def _turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()  # at once
            return
        try:
            with TimeLimit(self._wait_seconds):
                await self._turns.acquire()
        except TimeoutError:
            raise redis.ConnectionError("No connection available.") from None  # as BlockingConnectionPool says it

    def _new_connection(self) -> Any:
        connection = self.make_connection()  # type: ignore[no-untyped-call]  # redis-py's
        self._connections.append(connection)
        return connection

    async def _connect(self, connection: Any) -> None:
        async def introduce(connection: Any) -> None:
            limit.restart(self.answer_seconds)
            await connection.on_connect()

        # Redis-py's own limits know nothing of a loop that was blocked.
        connection.socket_connect_timeout = None
        connection.redis_connect_func = introduce
        try:
            with TimeLimit(self._connect_seconds) as limit:
                await connection.connect()
        except (TimeoutError, redis.TimeoutError):
            raise redis.TimeoutError("Timeout connecting to server") from None  # as redis-py says it
        except BaseException:
            await connection.disconnect(nowait=True)  # it may be connected, and not be the right user yet
            raise
        finally:
            connection.socket_connect_timeout = self._connect_seconds  # for closing it, too
            connection.redis_connect_func = None


async def _is_spent(connection: Any) -> bool:
    """Whether the server has closed it, or nobody has read a reply (which redis-py 6 and 7 do not tell)."""
    try:
        return bool(await getattr(connection, _CAN_READ)())
    except redis.RedisError:
        return True  # it is closed, and hiredis reads for a redis-py before 8


_CAN_READ = "can_read" if hasattr(redis.asyncio.Connection, "can_read") else "can_read_destructive"
"""Redis-py 8 has renamed it."""
