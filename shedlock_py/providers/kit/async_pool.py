"""A pool of connections for asyncio, and the time limit of async clients."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Generic, TypeVar

from shedlock_py.providers.kit.failures import TimedOut
from shedlock_py.providers.kit.pool import CONNECTION, FREE_CONNECTION, Lent, driver_errors, seconds_left

if TYPE_CHECKING:
    import asyncio  # late elsewhere: sync programs do without

C = TypeVar("C")

_READ_SECONDS = 0.02
"""Time that an event loop, after it was blocked, has to read the replies that have arrived."""
_AGAIN_SECONDS = 0.25
"""Time after which a request is cancelled again that the first cancellation has not ended."""


class AsyncConnectionPool(Generic[C]):
    """:class:`ConnectionPool` for one event loop: keep it in a ``kit.PerLoop``. It is closed when its loop ends.

    :param connect: closes the connection itself when it is cancelled.
    :param disconnect: closes a connection, without waiting.
    :param end: closes an idle one when the pool is closed, and may wait; ``disconnect`` by default.
    """

    def __init__(
        self,
        connect: Callable[[float], Awaitable[C]],
        disconnect: Callable[[C], Awaitable[object]],
        *,
        size: int,
        reserved: int,
        end: Callable[[C], Awaitable[object]] | None = None,
    ) -> None:
        import asyncio

        self._connect = connect
        self._disconnect = disconnect
        self._end = end or disconnect
        self._idle: list[Lent[C]] = []
        self._generation = object()
        self._permits = asyncio.Semaphore(size)
        self._permits_for_all = asyncio.Semaphore(max(1, size - reserved))
        self._at_end: AsyncGenerator[None] | None = None

    @asynccontextmanager
    async def connection(self, until: float, *, is_urgent: bool) -> AsyncIterator[Lent[C]]:
        """See :meth:`ConnectionPool.connection`."""
        for_all = nullcontext() if is_urgent else _permit(self._permits_for_all, until)
        async with for_all, _permit(self._permits, until):
            lent = await self._take(until)
            try:
                yield lent
            finally:
                if lent._generation is not self._generation:
                    await self._close([lent], self._disconnect)
                elif lent.is_good:
                    self._idle.append(lent)
                else:
                    self.outdate()
                    idle, self._idle = self._idle, []
                    await self._close([lent, *idle], self._disconnect)

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
        except BaseException:  # a cancellation, while a connection ended slowly
            await self._close(idle, self._disconnect)
            raise

    async def _take(self, until: float) -> Lent[C]:
        if not seconds_left(until):  # the tasks that had the permit until now gave up at the same moment
            raise TimedOut(FREE_CONNECTION, sent=False)
        while self._idle:
            lent = self._idle.pop()
            if lent._generation is self._generation:
                lent.is_good = False
                return lent
            await self._close([lent], self._disconnect)
        if self._at_end is None:
            self._at_end = close_with_loop(self.close)
            await anext(self._at_end)
        generation = self._generation
        with driver_errors(is_connecting=True):
            async with within(seconds_left(until), CONNECTION, sent=False):
                return Lent(connection=await self._connect(until), generation=generation)

    async def _close(self, lent: list[Lent[C]], disconnect: Callable[[C], Awaitable[object]]) -> None:
        for one in lent:
            with driver_errors(is_connecting=False):
                await disconnect(one.connection)


async def close_with_loop(close: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
    """Keep this generator, and start it with ``await anext(…)``: it calls ``close`` when its event loop ends.

    ``asyncio.run`` ends the async generators of its event loop before it closes the loop. Afterwards, drivers could
    close nothing.
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
        await permits.acquire()  # at once
    try:
        yield
    finally:
        permits.release()


@asynccontextmanager
async def within(seconds: float | None, waiting_for: str, *, sent: bool) -> AsyncIterator[None]:
    """A time limit for async clients.

    A reply counts that arrived while something else blocked the event loop: the loop reads it in the
    :data:`_READ_SECONDS` after the limit. ``asyncio.timeout`` alone would cancel the task that the reply has woken.

    A driver may lose a cancellation: ``asyncio.wait_for`` of Python 3.11 does, if what it waits for has just been done.
    ``asyncio.timeout`` cancels once; therefore a second one follows.

    :raises TimedOut: after ``seconds``.
    """
    import asyncio

    limit, second_limit = asyncio.timeout(None), asyncio.timeout(None)
    try:
        async with second_limit, limit:
            if seconds is None:
                yield
                return
            loop = asyncio.get_running_loop()

            def end() -> None:
                at = loop.time() + _READ_SECONDS
                limit.reschedule(at)
                second_limit.reschedule(at + _AGAIN_SECONDS)

            timer = loop.call_later(seconds, end)
            try:
                yield
            finally:
                timer.cancel()
    except TimeoutError:
        if not limit.expired() and not second_limit.expired():
            raise  # the driver's own
        raise TimedOut(waiting_for, sent=sent) from None
