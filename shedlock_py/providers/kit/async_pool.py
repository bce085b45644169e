"""A pool of connections for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Generic, TypeVar

from shedlock_py.providers.kit.failures import TimedOut
from shedlock_py.providers.kit.pool import CONNECTION, FREE_CONNECTION, PooledConnection
from shedlock_py.providers.kit.time_limits import driver_errors, seconds_left, within
from shedlock_py.runtime.process import monotonic

if TYPE_CHECKING:
    import asyncio  # imported late elsewhere: sync programs do not need asyncio

C = TypeVar("C")
T = TypeVar("T")


class AsyncConnectionPool(Generic[C]):
    """A :class:`ConnectionPool` for one event loop. Keep it in a ``kit.PerLoop``.

    The pool is closed when its event loop ends.

    :param connect: opens a connection. If it is cancelled, it closes the connection itself.
    :param disconnect: closes a connection without waiting.
    :param end: closes an idle connection when the pool is closed, and may wait; ``disconnect`` by default.
    """

    def __init__(
        self,
        connect: Callable[[float], Awaitable[C]],
        disconnect: Callable[[C], Awaitable[object]],
        *,
        size: int,
        reserved: int,
        end: Callable[[C], Awaitable[object]] | None = None,
        idle_timeout: float | None = None,
    ) -> None:
        import asyncio

        self._connect = connect
        self._disconnect = disconnect
        self._end = end or disconnect
        self._idle_timeout = idle_timeout
        self._closes_later = False
        self._idle: list[PooledConnection[C]] = []
        self._generation = object()
        self._permits = asyncio.Semaphore(size)
        self._permits_for_all = asyncio.Semaphore(max(1, size - reserved))
        self._at_end: AsyncGenerator[None] | None = None

    async def use(self, function: Callable[[PooledConnection[C]], Awaitable[T]], until: float, *, is_urgent: bool) -> T:
        """See :meth:`ConnectionPool.use`."""
        for_all = nullcontext() if is_urgent else _permit(self._permits_for_all, until)
        async with for_all, _permit(self._permits, until):
            pooled = await self._take(until)
            try:
                return await function(pooled)
            finally:
                await self._return(pooled)

    def outdate(self) -> None:
        """See :meth:`ConnectionPool.outdate`."""
        self._generation = object()

    async def close(self) -> None:
        """See :meth:`ConnectionPool.close`."""
        import asyncio

        self.outdate()
        idle, self._idle = self._idle, []
        try:
            await asyncio.gather(*(self._close([one], self._end) for one in idle))
        except BaseException:  # cancelled while a connection closed slowly
            await self._close(idle, self._disconnect)
            raise

    async def _take(self, until: float) -> PooledConnection[C]:
        if not seconds_left(until):  # the tasks that had the permits gave up at this moment
            raise TimedOut(FREE_CONNECTION, sent=False)
        while self._idle:
            pooled = self._idle.pop()
            if pooled.generation is self._generation:
                pooled.is_good = False
                return pooled
            await self._close([pooled], self._disconnect)
        if self._at_end is None:
            self._at_end = close_with_loop(self.close)
            await anext(self._at_end)
        generation = self._generation
        with driver_errors(is_connecting=True):
            async with within(seconds_left(until), CONNECTION, sent=False):
                return PooledConnection(await self._connect(until), generation)

    async def _return(self, pooled: PooledConnection[C]) -> None:
        if pooled.generation is not self._generation:
            await self._close([pooled], self._disconnect)
        elif pooled.is_good:
            pooled.idle_since = monotonic()
            self._idle.append(pooled)
            self._close_later()
        else:
            self.outdate()
            idle, self._idle = self._idle, []
            await self._close([pooled, *idle], self._disconnect)

    def _close_later(self) -> None:
        """Close the returned connection if no task takes it in time."""
        import asyncio

        if self._idle_timeout is not None and self._idle and not self._closes_later:
            self._closes_later = True
            seconds = min(pooled.idle_since for pooled in self._idle) + self._idle_timeout - monotonic()
            asyncio.get_running_loop().call_later(max(0.0, seconds), self._close_idle_for_long)

    def _close_idle_for_long(self) -> None:
        from shedlock_py.runtime.asyncio_tools import start_task

        self._closes_later = False
        before = monotonic() - (self._idle_timeout or 0)
        old = [pooled for pooled in self._idle if pooled.idle_since <= before]
        self._idle = [pooled for pooled in self._idle if pooled.idle_since > before]
        if old:
            start_task(self._close(old, self._disconnect))
        self._close_later()

    async def _close(self, pooled: list[PooledConnection[C]], disconnect: Callable[[C], Awaitable[object]]) -> None:
        for one in pooled:
            with driver_errors(is_connecting=False):
                await disconnect(one.connection)


async def close_with_loop(close: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
    """Call ``close`` when the event loop ends: keep this generator, and start it with ``await anext(…)``.

    ``asyncio.run`` ends async generators before it closes the loop. After that, drivers cannot close anything.
    """
    try:
        yield
    finally:
        await close()


@asynccontextmanager
async def _permit(permits: asyncio.Semaphore, until: float) -> AsyncIterator[None]:
    if permits.locked():
        async with within(seconds_left(until), FREE_CONNECTION, sent=False):
            await permits.acquire()
    else:
        await permits.acquire()  # does not wait
    try:
        yield
    finally:
        permits.release()
