"""What only asyncio needs. Imported late: ``import shedlock_py`` must not load asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from shedlock_py._timers import Lane, finish_at_exit, worker_pool
from shedlock_py.durations import Duration
from shedlock_py.errors import ProviderError, ProviderUnreachable, as_exception
from shedlock_py.events import logger
from shedlock_py.lease import Lease
from shedlock_py.provider import AsyncLockProvider, LockProvider, undo_of
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", Lease, Lease | None)

ABANDON_SECONDS = 10.0
"""Seconds that a cancelled caller waits for the store to end what was begun; after that it ends in the background."""

_tasks: set[asyncio.Task[Any]] = set()  # the event loop itself keeps only weak references


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task that goes on to its end even if no code refers to it."""
    task = asyncio.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def shielded(
    work: Coroutine[Any, Any, T], when_abandoned: Callable[[Lease], Awaitable[object]] | None = None
) -> T:
    """Await ``work`` to its end even if the caller is cancelled meanwhile; then the cancellation goes on.

    ``when_abandoned`` is awaited with the lease, if ``work`` got one, that nobody is there to take any more. After a
    second cancellation, or :data:`ABANDON_SECONDS`, the rest goes on in the background.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    task = loop.create_task(_tell(outcome, work))

    def never_begun(task: asyncio.Task[object]) -> None:
        work.close()
        outcome.cancel()

    task.add_done_callback(never_begun)  # if it was cancelled before its first step; else there is nothing to do
    try:
        return await outcome
    except asyncio.CancelledError:
        # Cancelled while it waited, so the task keeps what comes of it; or when it was to wake up, having been told.
        source: asyncio.Future[Any] = task if outcome.cancel() or outcome.cancelled() else outcome
        with suppress(asyncio.CancelledError):
            await asyncio.wait({start_task(_finish(source, when_abandoned))}, timeout=ABANDON_SECONDS)
        raise


async def _tell(outcome: asyncio.Future[T], work: Coroutine[Any, Any, T]) -> object:
    """Carry ``work`` out and tell whoever awaits ``outcome``; if it was cancelled, return or raise what comes of it.

    What ``asyncio.shield`` does, with one turn of the event loop less for each operation.
    """
    try:
        result = await work
    except BaseException as error:
        if outcome.cancelled() or isinstance(error, asyncio.CancelledError):
            raise
        outcome.set_exception(error)
        return None
    if not outcome.cancelled():
        outcome.set_result(result)
    return result


async def _finish(source: asyncio.Future[Any], when_abandoned: Callable[[Lease], Awaitable[object]] | None) -> None:
    try:
        lease = await source
        if when_abandoned is not None and lease is not None:
            await when_abandoned(lease)
    except Exception as error:
        # Nobody is left to raise it to; the lease ends by itself after lock_at_most_for.
        logger.warning("after a cancellation: %s", error)


class ThreadedProvider(AsyncLockProvider):
    """A provider for ordinary functions, called from asyncio: each call in a worker thread.

    Each provider has threads of its own, and those for extending and releasing do nothing else: a store that does not
    answer delays neither another store nor, however many acquires wait for it, a heartbeat.
    """

    def __init__(self, provider: LockProvider) -> None:
        self.sync_provider = provider

    async def acquire(self, request: LockRequest) -> Lease | None:
        return await shielded(self._granting_in_thread(self.sync_provider.acquire, request), when_abandoned=self.undo)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        # To its end even if cancelled: a release that overtook it would be undone by it.
        return await shielded(self._urgent_in_thread(self.sync_provider.extend, lease, lock_at_most_for))

    async def release(self, lease: Lease) -> bool:
        return await shielded(self._ending_in_thread(self.sync_provider.release, lease))

    async def undo(self, lease: Lease) -> bool:
        """Give an acquisition back that nobody will use; release it, if the provider cannot undo."""
        return await shielded(self._ending_in_thread(_undo, self.sync_provider, lease))

    async def record(self, name: str) -> LockRecord | None:
        return await self._in_thread(self.sync_provider.record, name)

    async def records(self, prefix: str = "") -> list[LockRecord]:
        return await self._in_thread(self.sync_provider.records, prefix)

    async def force_release(self, name: str) -> bool:
        return await self._in_thread(self.sync_provider.force_release, name)

    async def take_over(self, request: LockRequest) -> Lease:
        return await shielded(self._granting_in_thread(self.sync_provider.take_over, request), when_abandoned=self.undo)

    async def prune(self, unused_for: Duration) -> int:
        return await self._in_thread(self.sync_provider.prune, unused_for)

    async def create_schema(self) -> None:
        await self._in_thread(self.sync_provider.create_schema)

    # In which threads

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await _outcome(self._submit("requests", partial(function, *args, **kwargs)))

    async def _urgent_in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await _outcome(self._submit("heartbeats", partial(function, *args, **kwargs)))

    async def _ending_in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ends a lease goes on after the event loop, and the end of the interpreter waits for it for a moment."""
        future = self._submit("heartbeats", partial(function, *args, **kwargs))
        finish_at_exit(future)
        return await _outcome(future)

    async def _granting_in_thread(self, function: Callable[[LockRequest], L], request: LockRequest) -> L:
        """What grants a lease: if the event loop ends meanwhile, the lease is given back without it."""
        future = self._submit("requests", partial(function, request))
        try:
            return await _outcome(future)
        except asyncio.CancelledError:
            if not future.cancel():
                future.add_done_callback(self._undo_without_loop)
            raise

    def _undo_without_loop(self, granting: Future[L]) -> None:
        if granting.cancelled() or granting.exception() is not None:
            return
        lease = granting.result()
        if lease is not None:
            try:
                undoing = self._submit("heartbeats", partial(_undo, self.sync_provider, lease))
            except ProviderError as error:
                _log_undo(error)
            else:
                undoing.add_done_callback(lambda undoing: _log_undo(undoing.exception()))
                finish_at_exit(undoing)

    def _submit(self, lane: Lane, work: partial[T]) -> Future[T]:
        try:
            return worker_pool(self.sync_provider, lane).submit(partial(_call, work))
        except RuntimeError as error:
            operation, lock_name = _names_of(work)
            raise ProviderUnreachable(
                f"no thread could be started to call the store: {error}", operation=operation, lock_name=lock_name
            ) from error


def _undo(provider: LockProvider, lease: Lease) -> bool:
    undone: bool = undo_of(provider)(lease)
    return undone


def _log_undo(error: BaseException | None) -> None:
    if error is not None:
        logger.warning("after a cancellation: %s", error)


def _call(work: partial[T]) -> T:
    try:
        return work()
    except Exception:
        raise
    except BaseException as error:  # sys.exit() in a driver's hook must not end the event loop
        raise as_exception(error, *_names_of(work)) from error


def _names_of(work: partial[Any]) -> tuple[str, str | None]:
    """The operation and the lock name, for an error."""
    names = (getattr(argument, "name", None) for argument in work.args)
    return getattr(work.func, "__name__", "call").strip("_"), next((name for name in names if name), None)


async def _outcome(future: Future[T]) -> T:
    """The result of ``future``. A caller that is cancelled while it waits does not cancel the future."""
    loop = asyncio.get_running_loop()
    is_done = loop.create_future()

    def wake() -> None:
        if not is_done.done():
            is_done.set_result(None)

    def tell(_: Future[T]) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so nobody waits
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(tell)
    await is_done
    try:
        return future.result()
    finally:
        del future  # which its exception would refer to, through this frame
