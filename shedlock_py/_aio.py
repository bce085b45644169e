"""What only asyncio needs. Imported late: ``import shedlock_py`` must not load asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from shedlock_py.durations import Duration
from shedlock_py.events import logger
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.rules import Lease, LockRecord, LockRequest

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 10.0
"""Seconds that a cancelled caller waits for the store to end what was begun; after that it ends in the background."""

_unfinished: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references


async def shielded(
    work: Coroutine[Any, Any, T], when_abandoned: Callable[[Lease], Awaitable[object]] | None = None
) -> T:
    """Await ``work`` to its end even if the caller is cancelled meanwhile; then the cancellation goes on.

    ``when_abandoned`` is awaited with the lease, if ``work`` got one, that nobody is there to take any more. After a
    second cancellation, or :data:`PATIENCE`, the rest goes on in the background.
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
        rest = asyncio.create_task(_finish(source, when_abandoned))
        _unfinished.add(rest)
        rest.add_done_callback(_unfinished.discard)
        with suppress(asyncio.CancelledError):
            await asyncio.wait({rest}, timeout=PATIENCE)
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
    """A provider for ordinary functions, asked from asyncio: each call in a worker thread."""

    def __init__(self, provider: LockProvider) -> None:
        self.sync_provider = provider

    async def acquire(self, request: LockRequest) -> Lease | None:
        return await shielded(_in_thread(self.sync_provider.acquire, request), when_abandoned=self.release)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        # To its end even if cancelled: a release that overtook it would be undone by it.
        return await shielded(_in_thread(self.sync_provider.extend, lease, lock_at_most_for))

    async def release(self, lease: Lease) -> bool:
        return await shielded(_in_thread(self.sync_provider.release, lease))

    async def record(self, name: str) -> LockRecord | None:
        return await _in_thread(self.sync_provider.record, name)

    async def records(self, prefix: str = "") -> list[LockRecord]:
        return await _in_thread(self.sync_provider.records, prefix)

    async def force_release(self, name: str) -> bool:
        return await _in_thread(self.sync_provider.force_release, name)

    async def take_over(self, request: LockRequest) -> Lease:
        return await shielded(_in_thread(self.sync_provider.take_over, request), when_abandoned=self.release)

    async def prune(self, unused_for: Duration) -> int:
        return await _in_thread(self.sync_provider.prune, unused_for)

    async def create_schema(self) -> None:
        await _in_thread(self.sync_provider.create_schema)


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    future = asyncio.get_running_loop().run_in_executor(_threads(), lambda: function(*args, **kwargs))
    return await asyncio.shield(future)  # a queued release must not be dropped because its caller was cancelled


_pools: dict[int, ThreadPoolExecutor] = {}  # by process: threads do not survive a fork, the child starts its own


def _threads() -> ThreadPoolExecutor:
    # Not the loop's default pool, which may be full of the very jobs whose locks are to be released.
    pool = _pools.get(os.getpid())
    if pool is None:
        pool = _pools.setdefault(os.getpid(), ThreadPoolExecutor(max_workers=8, thread_name_prefix="shedlock"))
    return pool
