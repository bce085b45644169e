"""Clients carry out the commands of a store, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from shedlock_py.providers.kit.failures import NotSent, TimedOut
from shedlock_py.providers.kit.time_limits import seconds_left
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.threads import WorkerPool

T = TypeVar("T")

_THREADS = 16


class StoreClient(Protocol):
    """Carries out a command for :class:`ProgramProvider`.

    It may also have ``close()``, and ``shown``, which the provider's ``repr`` shows.
    """

    def execute(self, command: Any, timeout: float | None, /) -> Any:
        """Return the reply.

        :param timeout: in seconds. If None, the user's client sets the limit.
        :raises TimedOut: the store did not reply in time.
        """


class AsyncStoreClient(Protocol):
    """Carries out a command for :class:`AsyncProgramProvider`, on any event loop.

    Its ``close()`` is a coroutine. Cancelling a caller does not cancel ``execute``, but the end of the event loop does.
    """

    async def execute(self, command: Any, timeout: float | None, /) -> Any:  # noqa: ASYNC109 (the operation's time left)
        """See :class:`StoreClient`."""


class ThreadedClient:
    """A client for :class:`AsyncProgramProvider` that calls a blocking client in a worker thread.

    It has its own threads: the application's jobs may keep all threads of ``asyncio.to_thread`` busy.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._workers = WorkerPool(_THREADS, "shedlock-client")

    @property
    def shown(self) -> Any:
        return getattr(self._client, "shown", None)

    async def execute(self, command: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 (see AsyncStoreClient)
        until = None if timeout is None else monotonic() + timeout

        def work() -> Any:
            return self._client.execute(command, None if until is None else seconds_left(until))

        return await self._call(work, timeout)

    async def close(self) -> None:
        close = getattr(self._client, "close", None)
        if close is not None:
            await self._call(close, None)

    async def _call(self, work: Callable[[], T], seconds: float | None) -> T:
        """:raises TimedOut: no thread was free. The client limits the time of ``work`` itself."""
        import asyncio  # imported late: sync programs do not need asyncio

        try:
            future = self._workers.submit(work)
        except RuntimeError as error:  # no thread can be started
            raise NotSent from error
        outcome = asyncio.wrap_future(future)
        try:
            await asyncio.wait([outcome], timeout=seconds)
            if future.cancel():
                raise TimedOut("a free thread", sent=False)
            return await outcome
        finally:
            outcome.cancel()  # no effect if it is done; otherwise a work that has not begun never begins
