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
    """A client whose commands take turns, as many as its :class:`AsyncPool` may have connections."""

    connection_pool: AsyncPool

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with self.connection_pool.turns:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's


class AsyncPool(redis.asyncio.ConnectionPool):
    """The pool of an :class:`AsyncRedis`. It is never asked for more than it may have, which would be an error."""

    def __init__(self, *, timeout: float, **options: Any) -> None:
        super().__init__(**options)
        self.turns = Turns(self.max_connections, timeout)


class Turns:
    """So many callers at a time; the others wait, and for ``seconds`` at most."""

    def __init__(self, number: int, seconds: float) -> None:
        self._free = asyncio.Semaphore(number)
        self._seconds = seconds

    async def __aenter__(self) -> None:
        if not self._free.locked():
            await self._free.acquire()  # at once
            return
        try:
            async with asyncio.timeout(self._seconds):
                await self._free.acquire()
        except TimeoutError:
            raise redis.ConnectionError("No connection available.") from None  # as BlockingConnectionPool says it

    async def __aexit__(self, *error: object) -> None:
        self._free.release()
