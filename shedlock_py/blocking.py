"""Async providers for ordinary code: an event loop carries each call out, and the calling thread waits for its end."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from shedlock_py._aio import finish_tasks, start_task
from shedlock_py._timers import EXIT_SECONDS
from shedlock_py.provider import AsyncLockProvider

T = TypeVar("T")


class OnLoop:
    """An async provider for all threads but that of its event loop. What it can do, this can do."""

    longest_wait: float | None = None
    """Seconds for one call. None: a provider has time limits of its own."""

    def __init__(self, provider: AsyncLockProvider, loop: asyncio.AbstractEventLoop) -> None:
        self.async_provider = provider
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self.async_provider)

    def __getattr__(self, name: str) -> Any:
        if name == "async_provider":  # in the middle of a copy
            raise AttributeError(name)
        found = getattr(self.async_provider, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *arguments, **options: self.run(found(*arguments, **options))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns or raises on the event loop, which sees the context variables of this thread.

        An exception that a signal handler raises meanwhile, such as Ctrl-C, cancels ``work``.
        """
        future = asyncio.run_coroutine_threadsafe(_in_task(work), self._loop)
        try:
            return future.result(self.longest_wait)
        finally:
            future.cancel()  # does nothing if it is done
            del future  # to which its exception refers, through this frame


class OnOwnLoop(OnLoop):
    """An async provider on an event loop of its own, which runs in a daemon thread until :meth:`close`.

    ``make`` is called on the event loop.
    """

    def __init__(self, make: Callable[[], AsyncLockProvider]) -> None:
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def serve() -> None:
            stopped = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), stopped))
            await stopped.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="shedlock-loop", daemon=True)
        self._thread.start()
        self._loop, self._stopped = started.result()
        super().__init__(self.run(_called(make)), self._loop)

    def close(self) -> None:
        """Close the provider, if it can be closed, and end the event loop.

        Before that, calls that were cancelled, and acquisitions that must be undone, have :data:`EXIT_SECONDS`.
        """
        try:
            self.run(_close(self.async_provider))
        finally:
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(self.longest_wait)


async def _in_task(work: Coroutine[Any, Any, T]) -> T:
    return await start_task(work)


async def _called(make: Callable[[], T]) -> T:
    return make()


async def _close(provider: object) -> None:
    await finish_tasks(EXIT_SECONDS)
    closing = getattr(provider, "close", lambda: None)()
    if inspect.isawaitable(closing):
        await closing
