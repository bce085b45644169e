"""Acquire, run, release: the guard around a task.

``hold`` and ``hold_async`` are twins; all that they share and that neither waits for is in :class:`Guard`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Never, TypeVar

from shedlock_py._clock import monotonic
from shedlock_py.config import (
    check_provider,
    configured_providers,
    emit,
    is_kept_alive,
    is_routine_heard,
    lock_request,
    resolve_async_provider,
    resolve_provider,
)
from shedlock_py.context import Held, find_live, is_inside_any
from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError, LeaseLostError, ProviderError, ProviderUnreachable
from shedlock_py.events import (
    LeaseLost,
    LockAcquired,
    LockReleased,
    LockSkipped,
    Outcome,
    ProviderFailed,
    SkipReason,
    TaskFinished,
    logger,
)
from shedlock_py.keepalive import OnLost, beating, beating_async, check_on_lost, check_on_lost_async
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.rules import Lease, LockRecord, LockRequest, validate_name
from shedlock_py.shutdown import refuses_work

T = TypeVar("T")


@dataclass(frozen=True)
class Executed(Generic[T]):
    """The task ran under ``lease`` and returned ``value``."""

    value: T
    lease: Lease


@dataclass(frozen=True)
class Skipped:
    """The task did not run: the lock is held elsewhere (``"held"``) or its fire time has run (``"already_ran"``)."""

    lock_name: str
    reason: SkipReason = "held"


def hold(
    lock: str | LockRequest,
    *,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    provider: LockProvider | None = None,
    keep_alive: bool | None = None,
    on_lost: OnLost = "continue",
) -> AbstractContextManager[Lease | None]:
    """Hold a lock around a block of code: ``with hold("import", lock_at_most_for="5m") as lease: if lease: …``

    ``lease`` is None when the lock is held elsewhere; the block runs all the same and must look. Inside a live lease
    of the same name the block gets that lease, and the store is not asked.

    :param lock: the lock name, or a whole :class:`LockRequest`.
    :param provider: the store; the configured one by default.
    :param keep_alive: extend the lease, every third of it, until the block ends; by default as :func:`configure` says.
        ``lock_at_most_for`` is then how soon others may go on if this process dies, and can be short.
    :param on_lost: what happens when the lease is lost while the block runs: "continue" (a ``LeaseLost`` event and a
        warning, as always), or a callable that gets the event, in another thread; in async code also "cancel":
        ``LeaseLostError`` out of the block.
    :raises ConfigurationError: a value that cannot work, or no provider.
    :raises ProviderError: the store failed; the block did not run. A failing release is logged, never raised.
    """
    check_on_lost(on_lost)
    return _Block(_hold(Guard(lock, lock_at_most_for, lock_at_least_for, provider, keep_alive, on_lost)))


@contextmanager
def _hold(guard: Guard) -> Iterator[Lease | None]:
    around = guard.around
    if around is not None:
        yield around.lease
        return
    if guard.is_too_late():
        yield None
        return
    store: LockProvider = resolve_provider(guard.provider, lock_name=guard.name)
    guard.ask()
    try:
        lease = store.acquire(guard.request)
    except Exception as error:
        guard.failed("acquire", error)
        raise
    guard.answered()
    if lease is None:
        if guard.request.fire_time is not None:
            with guard.wondering():
                guard.explain_skip(store.record(guard.name))
        guard.skipped()
        yield None
        return
    try:
        held = guard.begin(lease, store)
        try:
            with beating(held, store, guard.keep_alive, guard.on_lost):
                yield lease
        except BaseException as error:
            guard.finish(held, error)
            raise
        guard.finish(held, None)
    finally:
        _release(guard, lease, store)


def _release(guard: Guard, lease: Lease, store: LockProvider) -> None:
    if guard.must_release(lease):
        try:
            guard.released(lease, store.release(lease))
        except Exception as error:  # must not replace what the task returned or raised
            guard.failed("release", error, lease)


def attempt(
    lock: str | LockRequest,
    task: Callable[[], T],
    *,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    provider: LockProvider | None = None,
    keep_alive: bool | None = None,
    on_lost: OnLost = "continue",
) -> Executed[T] | Skipped:
    """Run ``task()`` under a lock, and tell whether it ran: ``Executed(value, lease)`` or ``Skipped``.

    Parameters and errors as for :func:`hold`; what the task raises is raised.
    """
    refuse_unfinished_function(task)
    check_on_lost(on_lost)
    guard = Guard(lock, lock_at_most_for, lock_at_least_for, provider, keep_alive, on_lost)
    return run_guarded(guard, task)


def run_guarded(guard: Guard, task: Callable[[], T]) -> Executed[T] | Skipped:
    """Run ``task()`` under the lock of ``guard``."""
    with _hold(guard) as lease:
        if lease is None:
            return guard.skip
        return Executed(refuse_unfinished(task()), lease)


def hold_async(
    lock: str | LockRequest,
    *,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    provider: AsyncLockProvider | LockProvider | None = None,
    keep_alive: bool | None = None,
    on_lost: OnLost = "continue",
) -> AbstractAsyncContextManager[Lease | None]:
    """:func:`hold` for async code. A provider for ordinary functions is asked in a worker thread."""
    check_on_lost_async(on_lost)
    return _AsyncBlock(_hold_async(Guard(lock, lock_at_most_for, lock_at_least_for, provider, keep_alive, on_lost)))


@asynccontextmanager
async def _hold_async(guard: Guard) -> AsyncIterator[Lease | None]:
    from shedlock_py._aio import shielded  # late: loads asyncio

    around = guard.around
    if around is not None:
        yield around.lease
        return
    if guard.is_too_late():
        yield None
        return
    store: AsyncLockProvider = resolve_async_provider(guard.provider, lock_name=guard.name)
    guard.ask()
    try:
        lease = await store.acquire(guard.request)
    except Exception as error:
        guard.failed("acquire", error)
        raise
    guard.answered()
    if lease is None:
        if guard.request.fire_time is not None:
            with guard.wondering():
                guard.explain_skip(await store.record(guard.name))
        guard.skipped()
        yield None
        return
    try:
        held = guard.begin(lease, store)
        try:
            async with beating_async(held, store, guard.keep_alive, guard.on_lost):
                yield lease
        except BaseException as error:
            guard.finish(held, error)
            raise
        guard.finish(held, None)
    finally:
        await shielded(_release_async(guard, lease, store))  # also what is told of it


async def _release_async(guard: Guard, lease: Lease, store: AsyncLockProvider) -> None:
    if guard.must_release(lease):
        try:
            guard.released(lease, await store.release(lease))
        except Exception as error:  # must not replace what the task returned or raised
            guard.failed("release", error, lease)


async def attempt_async(
    lock: str | LockRequest,
    task: Callable[[], Awaitable[T]],
    *,
    lock_at_most_for: Duration | None = None,
    lock_at_least_for: Duration | None = None,
    provider: AsyncLockProvider | LockProvider | None = None,
    keep_alive: bool | None = None,
    on_lost: OnLost = "continue",
) -> Executed[T] | Skipped:
    """:func:`attempt` for async tasks: ``task()`` is awaited."""
    check_on_lost_async(on_lost)
    guard = Guard(lock, lock_at_most_for, lock_at_least_for, provider, keep_alive, on_lost)
    return await run_guarded_async(guard, task)


async def run_guarded_async(guard: Guard, task: Callable[[], Awaitable[T]]) -> Executed[T] | Skipped:
    """:func:`run_guarded` for async tasks."""
    async with _hold_async(guard) as lease:
        if lease is None:
            return guard.skip
        work = task()
        if not inspect.isawaitable(work):
            raise TypeError(f"{task!r} returned a {type(work).__name__}, not something to await: use attempt or hold")
        return Executed(refuse_unfinished(await work), lease)


class _Block(AbstractContextManager["Lease | None"]):
    """The with block of :func:`hold`, for one use; not a decorator, which would run the function all the same."""

    def __init__(self, entered: AbstractContextManager[Lease | None]) -> None:
        self._entered = entered

    def __enter__(self) -> Lease | None:
        return self._entered.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return self._entered.__exit__(kind, error, tb)

    def __call__(self, function: object) -> Never:
        raise TypeError("hold(…) is not a decorator: use @scheduler_lock(…)")


class _AsyncBlock(AbstractAsyncContextManager["Lease | None"]):
    """The with block of :func:`hold_async`, for one use; not a decorator."""

    def __init__(self, entered: AbstractAsyncContextManager[Lease | None]) -> None:
        self._entered = entered

    async def __aenter__(self) -> Lease | None:
        return await self._entered.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return await self._entered.__aexit__(kind, error, tb)

    def __call__(self, function: object) -> Never:
        raise TypeError("hold_async(…) is not a decorator: use @scheduler_lock(…)")


class Guard:
    """One guarded run: everything around asking the store, in the order in which it happens.

    ``mark`` is the ``__shedlock__`` of the guarded function, if it has one; the provider was checked with it.
    """

    def __init__(
        self,
        lock: str | LockRequest,
        at_most: Duration | None,
        at_least: Duration | None,
        provider: object,
        keep_alive: bool | None = None,
        on_lost: OnLost = "continue",
        mark: object = None,
    ) -> None:
        if mark is None:
            check_provider(provider)
        if isinstance(lock, LockRequest) and (at_most, at_least) != (None, None):
            raise ConfigurationError(f"lock {lock.name!r}: the LockRequest says for how long; give no other durations")
        self.name = lock.name if isinstance(lock, LockRequest) else validate_name(lock)
        self.provider = provider
        self.keep_alive = is_kept_alive(keep_alive)
        self.on_lost = on_lost
        self.mark = mark
        self._skip_reason: SkipReason = "held"
        self._at_most, self._at_least = at_most, at_least
        self._started_at = 0.0
        self._acquired_at = 0.0
        self._process = 0
        self._held: Held | None = None
        self._request = lock if isinstance(lock, LockRequest) else None
        if self.around is None:
            _ = self.request  # what is wrong with it shows here, not at the first line of the with block

    @property
    def request(self) -> LockRequest:
        """Not needed, and perhaps nobody said for how long, where the code is inside of the lease already."""
        if self._request is None:
            self._request = lock_request(self.name, self._at_most, self._at_least)
        return self._request

    @property
    def around(self) -> Held | None:
        """The live lease of this very lock that the running code is inside of already."""
        if not is_inside_any():
            return None
        providers = configured_providers() if self.provider is None else (self.provider,)
        return find_live(self.name, providers, self.mark)

    @property
    def skip(self) -> Skipped:
        return Skipped(self.name, self._skip_reason)

    def is_too_late(self) -> bool:
        """Whether this process is shutting down: the run is skipped."""
        if not refuses_work():
            return False
        self._skip_reason = "shutting_down"
        self.skipped()
        return True

    def ask(self) -> None:
        self._process = os.getpid()  # the one that will hold the lease; the block may have been made before a fork
        self._started_at = monotonic()

    def answered(self) -> None:
        self._acquired_at = monotonic()

    def failed(self, operation: str, error: Exception, lease: Lease | None = None) -> None:
        emit(ProviderFailed(self.name, operation, error, lease))

    def _elapsed(self) -> timedelta:
        return timedelta(seconds=self._acquired_at - self._started_at)

    @contextmanager
    def wondering(self) -> Iterator[None]:
        """Around the look-up of why a run is skipped: it is skipped in any case."""
        try:
            yield
        except ProviderError as error:
            logger.debug("lock %r: could not look up why it is skipped: %s", self.name, error)

    def explain_skip(self, record: LockRecord | None) -> None:
        wanted = self.request.fire_time
        if record and wanted and not record.is_held and record.last_fire_time and record.last_fire_time >= wanted:
            self._skip_reason = "already_ran"

    def skipped(self) -> None:
        if is_routine_heard():
            emit(LockSkipped(self.name, self._skip_reason, self._elapsed()))

    def begin(self, lease: Lease, store: LockProvider | AsyncLockProvider) -> Held:
        """The task begins, unless the grant took so long that it may be over.

        :raises ProviderUnreachable: it may.
        """
        if not lease.is_trusted():
            error = ProviderUnreachable(
                f"lock {lease.name!r}: the store took {self._elapsed()} to grant a lease of {lease.lock_at_most_for}, "
                f"which may be over already; the task does not run",
                operation="acquire",
                lock_name=lease.name,
            )
            self.failed("acquire", error)
            raise error
        self._held = held = Held(lease, getattr(store, "sync_provider", store))  # the provider as the caller knows it
        try:
            if is_routine_heard():
                emit(LockAcquired(lease.name, lease, self._elapsed()))
            held.enter()
        except BaseException as error:
            self.finish(held, error)
            raise
        return held

    def finish(self, held: Held, failure: BaseException | None) -> None:
        """The task has ended."""
        lease = held.lease
        held.leave()
        if is_routine_heard() and self._process == os.getpid():  # in a forked child, the task is its parent's
            duration = timedelta(seconds=(held.ended_at or monotonic()) - self._acquired_at)
            emit(TaskFinished(lease.name, lease, duration, _outcome(failure), failure))
        if self.must_release(lease) and not lease.is_lost() and not lease.is_trusted():
            held.lost_is_told = True
            emit(LeaseLost(lease.name, lease, "overrun"))

    def must_release(self, lease: Lease) -> bool:
        """Not if the task has done it; nor in a forked child that leaves the block: the lease is its parent's."""
        return not lease.has_ended() and self._process == os.getpid()

    def released(self, lease: Lease, was_ours: bool) -> None:
        if self._held is None:
            return  # granted too late: nobody was told of this lease
        if was_ours and is_routine_heard():
            emit(LockReleased(lease.name, lease, timedelta(seconds=monotonic() - self._acquired_at)))
        elif not was_ours and not self._held.lost_is_told:
            emit(LeaseLost(lease.name, lease, "revoked"))


def _outcome(failure: BaseException | None) -> Outcome:
    if failure is None:
        return "succeeded"
    # What on_lost="cancel" raises is a cancellation; a TimeoutError, which asyncio makes of one, is not.
    ended_by = failure.__cause__ if isinstance(failure, LeaseLostError) else failure
    # By name: asyncio's class must not be imported here.
    return "cancelled" if type(ended_by).__name__ == "CancelledError" else "failed"


def refuse_unfinished_function(task: Callable[..., Any]) -> None:
    """:raises TypeError: ``task`` is a coroutine or generator function, whose body would run after the release."""
    if inspect.iscoroutinefunction(task):
        raise TypeError(f"{task!r} is a coroutine function: use attempt_async or hold_async")
    if inspect.isgeneratorfunction(task) or inspect.isasyncgenfunction(task):
        raise TypeError(
            f"{task!r} is a generator function: its body would run after the lock was released. Guard the function "
            f"that does the work, with @scheduler_lock directly above its 'def'"
        )


def refuse_unfinished(value: T) -> T:
    """``value``, if the task's work is done.

    :raises TypeError: the task returned a coroutine or generator, whose body would run after the release.
    """
    if inspect.iscoroutine(value):
        value.close()
    elif not (inspect.isgenerator(value) or inspect.isasyncgen(value)):
        return value
    raise TypeError(
        f"the guarded task returned a {type(value).__name__} that has not run yet; the lock would be released before "
        f"it does. Guard the function that does the work ('async def' tasks are awaited under the lock)"
    )
