"""Async providers for ordinary code. An event loop carries out each call, and the calling thread waits for its end."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from shedlock_py.errors import ConfigurationError
from shedlock_py.provider import AsyncLockProvider
from shedlock_py.runtime.asyncio_tools import finish_tasks, start_task
from shedlock_py.runtime.threads import EXIT_SECONDS, WorkerPool

T = TypeVar("T")

POOL_SIZE = 5
"""How many threads asyncio may use for blocking work."""


class OnLoop:
    """An async provider that any thread except its event loop's may call. It passes on all other attributes."""

    longest_wait: float | None = None
    """Seconds for one call. None, because providers have their own time limits."""

    def __init__(self, provider: AsyncLockProvider, loop: asyncio.AbstractEventLoop) -> None:
        self.async_provider = provider
        self.loop = loop

    def __repr__(self) -> str:
        return repr(self.async_provider)

    def __getattr__(self, name: str) -> Any:
        if name == "async_provider":  # in the middle of a copy
            raise AttributeError(name)
        found = getattr(self.async_provider, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            return self._on_loop(partial(found, *arguments, **options))

        return call

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return or raise the outcome of ``work`` on the event loop. It sees the context variables of this thread.

        An exception that a signal handler raises meanwhile, such as Ctrl-C, cancels ``work``.

        :raises ConfigurationError: the event loop is closed.
        """
        if self.loop.is_closed():
            work.close()
        result: T = self._on_loop(lambda: work)
        return result

    def _on_loop(self, call: Callable[[], Any]) -> Any:
        """Carry out ``call`` on the event loop, and the coroutine that it may return.

        This thread creates no coroutine: an exception of a signal handler would leave the coroutine without an owner.
        """
        if self.loop.is_closed():
            raise ConfigurationError(f"{self!r} is closed")
        outcome: Future[Any] = Future()
        try:
            self.loop.call_soon_threadsafe(_start, call, outcome)
            return outcome.result(self.longest_wait)
        finally:
            outcome.cancel()  # no effect if it is done
            del outcome  # its exception would refer to it through this frame


class OnOwnLoop(OnLoop):
    """An async provider on its own event loop, which runs in a daemon thread until :meth:`close`.

    ``make`` is called on the event loop.
    """

    def __init__(self, make: Callable[[], AsyncLockProvider]) -> None:
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def serve() -> None:
            stopped, loop = asyncio.Event(), asyncio.get_running_loop()
            loop.set_default_executor(_DaemonExecutor())
            started.set_result((loop, stopped))
            await stopped.wait()

        def work() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)  # no event loop: for example, no free file descriptors

        self._thread = threading.Thread(target=work, name="shedlock-loop", daemon=True)
        self._thread.start()
        self.loop, self._stopped = started.result()
        try:
            super().__init__(self.run(_called(make)), self.loop)
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Close the provider, if it can be closed, and end the event loop. A second call does nothing.

        Before that, cancelled calls and acquisitions that must be undone have :data:`EXIT_SECONDS`.
        """
        if self.loop.is_closed():
            return
        try:
            self.run(_close(self.async_provider))
        finally:
            self._end()

    def stop(self) -> None:
        """End the event loop soon, without waiting. For a provider that is never closed."""
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self._stopped.set)

    def _end(self) -> None:
        self.stop()
        self._thread.join(self.longest_wait or EXIT_SECONDS)


class _DaemonExecutor(ThreadPoolExecutor):
    """Threads for asyncio's blocking work, such as the lookup of a host name. No exit waits for a thread that hangs."""

    def __init__(self) -> None:
        super().__init__()
        self._workers = WorkerPool(POOL_SIZE, "shedlock-loop-worker")

    def submit(self, function: Callable[..., T], /, *arguments: Any, **options: Any) -> Future[T]:
        return self._workers.submit(partial(function, *arguments, **options))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing, because the threads are daemons."""


def _start(call: Callable[[], Any], outcome: Future[Any]) -> None:
    """Start ``call`` on the running event loop, unless its caller has given up. Cancel it when the caller gives up."""
    if outcome.cancelled():
        return
    loop, task = asyncio.get_running_loop(), start_task(_carry_out(call, outcome))

    def cancel(_: Future[Any]) -> None:
        if outcome.cancelled() and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)

    outcome.add_done_callback(cancel)
    task.add_done_callback(lambda _: outcome.cancel())  # if the task was cancelled; otherwise no effect


async def _carry_out(call: Callable[[], Any], outcome: Future[Any]) -> None:
    try:
        result = call()
        if inspect.iscoroutine(result):  # a plain function may return a coroutine, too
            result = await result
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # SystemExit would end the event loop, past the caller
        if outcome.set_running_or_notify_cancel():
            outcome.set_exception(error)
    else:
        if outcome.set_running_or_notify_cancel():  # otherwise the caller has given up
            outcome.set_result(result)


async def _called(make: Callable[[], T]) -> T:
    return make()


async def _close(provider: object) -> None:
    await finish_tasks(EXIT_SECONDS)
    closing = getattr(provider, "close", lambda: None)()
    if inspect.isawaitable(closing):
        await closing
