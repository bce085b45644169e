"""Tools for asyncio. Imported late: ``import shedlock_py`` must not load asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from shedlock_py.errors import ConfigurationError, ProviderUnreachable, as_exception, hidden_frames
from shedlock_py.events import logger
from shedlock_py.model.durations import Duration
from shedlock_py.model.lease import Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.provider import AsyncLockProvider, LockProvider, recover_of, undo_of
from shedlock_py.runtime.threads import Lane, finish_at_exit, worker_pool

__tracebackhide__ = hidden_frames
T = TypeVar("T")
L = TypeVar("L", Lease, Lease | None)

ABANDON_SECONDS = 10.0
"""How long a cancelled caller waits for the store. After that, the operation continues in the background."""

_tasks: set[asyncio.Task[Any]] = set()  # event loops keep only weak references


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task that continues to its end even if no code refers to it."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def finish_tasks(seconds: float) -> None:
    """Wait until the tasks of :func:`start_task` on this event loop are done, ``seconds`` at most."""
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    tasks = {task for task in list(_tasks) if task.get_loop() is loop and task is not this}
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


async def shielded(
    work: Coroutine[Any, Any, T],
    when_abandoned: Callable[[Lease], Awaitable[object]] | None = None,
    once_more: Callable[[], Coroutine[Any, Any, T]] | None = None,
) -> T:
    """Await ``work`` to its end even if the caller is cancelled meanwhile; then the cancellation continues.

    If the cancelled caller will not get the lease that ``work`` returns, ``when_abandoned`` is awaited with the lease.
    After a second cancellation, or :data:`ABANDON_SECONDS`, the work continues in the background. The end of
    ``asyncio.run()`` cancels all tasks, including ``work``: then ``once_more`` is awaited.

    :raises ConfigurationError: another library than asyncio runs this code.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        work.close()
        message = "no event loop of asyncio is running; trio is not supported: call the sync functions in a thread"
        raise ConfigurationError(message) from None
    task = asyncio.create_task(_outcome(work))
    task.add_done_callback(lambda _: work.close())  # if the task was cancelled before its first step
    try:
        outcome = await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(asyncio.CancelledError):
            await asyncio.wait({start_task(_finish(task, when_abandoned))}, timeout=ABANDON_SECONDS)
            if once_more is not None and task.cancelled():
                await asyncio.wait({start_task(once_more())}, timeout=ABANDON_SECONDS)
        raise
    return outcome.result()


async def _outcome(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Return the outcome of ``work``. A SystemExit out of a task would end the event loop, past the caller."""
    outcome: Future[T] = Future()
    try:
        outcome.set_result(await work)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        outcome.set_exception(error)
    return outcome


async def _finish(task: asyncio.Task[Future[Any]], when_abandoned: Callable[[Lease], Awaitable[object]] | None) -> None:
    try:
        lease = (await task).result()
        if when_abandoned is not None and lease is not None:
            await when_abandoned(lease)
    except Exception as error:
        _log_failure(error)


class ThreadedProvider(AsyncLockProvider):
    """A sync provider for asyncio. It carries out each call in a worker thread: see :func:`worker_pool`."""

    def __init__(self, provider: LockProvider) -> None:
        self.sync_provider = provider

    async def acquire(self, request: LockRequest) -> Lease | None:
        return await shielded(self._grant(self.sync_provider.acquire, request), when_abandoned=self.undo)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        # Shielded: if a release overtook the extension, the extension would hold the lock again.
        return await shielded(self._call("heartbeats", self.sync_provider.extend, lease, lock_at_most_for))

    async def release(self, lease: Lease) -> bool:
        return await shielded(self._end(self.sync_provider.release, lease))

    async def undo(self, lease: Lease) -> bool:
        """Undo an acquisition if no task will run; release it if the provider cannot undo."""
        return await shielded(self._end(undo_of(self.sync_provider), lease))

    async def record(self, name: str) -> LockRecord | None:
        return await self._call("requests", self.sync_provider.record, name)

    async def records(self, prefix: str = "") -> list[LockRecord]:
        return await self._call("requests", self.sync_provider.records, prefix)

    async def force_release(self, name: str, expected: LockRecord | None = None) -> bool:
        return await self._call("requests", self.sync_provider.force_release, name, expected)

    async def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease:
        # If the caller is cancelled, the lease is left to expire: the former holder may still trust its own lease.
        return await shielded(self._call("requests", self.sync_provider.take_over, request, expected))

    async def recover(self, request: LockRequest, expected: LockRecord) -> Lease | None:
        # As for take_over. The lease of a cancelled caller expires, and then its run can be recovered again.
        operation: Callable[..., Lease | None] = recover_of(self.sync_provider)
        return await shielded(self._call("requests", operation, request, expected))

    async def prune(self, unused_for: Duration, prefix: str = "") -> int:
        return await self._call("requests", self.sync_provider.prune, unused_for, prefix)

    async def create_schema(self) -> None:
        await self._call("requests", self.sync_provider.create_schema)

    async def _call(self, lane: Lane, operation: Callable[..., T], *args: Any) -> T:
        return await _result(self._submit(lane, operation, *args))

    async def _end(self, operation: Callable[[Lease], bool], lease: Lease) -> bool:
        """Release or undo. This continues if the event loop ends, and the interpreter's exit waits a moment for it."""
        future = self._submit("heartbeats", operation, lease)
        finish_at_exit(future)
        return await _result(future)

    async def _grant(self, operation: Callable[[LockRequest], L], request: LockRequest) -> L:
        """Acquire. If the event loop ends meanwhile, the lease is undone without it."""
        future = self._submit("requests", operation, request)
        try:
            return await _result(future)
        except asyncio.CancelledError:
            if not future.cancel():
                future.add_done_callback(self._undo_without_loop)
            raise

    def _undo_without_loop(self, granting: Future[L]) -> None:
        lease = None if granting.cancelled() or granting.exception() is not None else granting.result()
        if lease is not None:
            try:
                undoing = self._submit("heartbeats", undo_of(self.sync_provider), lease)
            except ProviderUnreachable as error:
                _log_failure(error)
            else:
                undoing.add_done_callback(lambda _: _log_failure(undoing.exception()))
                finish_at_exit(undoing)

    def _submit(self, lane: Lane, operation: Callable[..., T], *args: Any) -> Future[T]:
        name = getattr(operation, "__name__", "call")
        lock_name = next((lock_name for arg in args if (lock_name := getattr(arg, "name", None))), None)

        def call() -> T:
            try:
                return operation(*args)
            except Exception:
                raise
            except BaseException as error:  # sys.exit() in a driver's hook must not end the event loop
                raise as_exception(error, name, lock_name) from error

        try:
            return worker_pool(self.sync_provider, lane).submit(call)
        except RuntimeError as error:
            message = f"no thread could be started to call the store: {error}"
            raise ProviderUnreachable(message, operation=name, lock_name=lock_name) from error


def _log_failure(error: BaseException | None) -> None:
    """Log an error that no caller gets any more. The lease expires by itself."""
    if error is not None:
        logger.warning("after a cancellation: %s", error)


async def _result(future: Future[T]) -> T:
    """Return the result of ``future``. The cancellation of a waiting caller does not cancel the future."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def notify(_: Future[T]) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so nothing waits
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(notify)
    await done.wait()
    try:
        return future.result()
    finally:
        del future  # the future's exception would refer to it through this frame
