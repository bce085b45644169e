"""Acquire, run, release: the guard around a task.

:class:`Block` and :class:`AsyncBlock` are twins; all that they share and that neither waits for is in :class:`Guard`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import AsyncGeneratorType, CoroutineType, GeneratorType, TracebackType
from typing import Any, Generic, Never, TypeVar

from shedlock_py._clock import monotonic
from shedlock_py._process import OwningProcess, is_from_signal
from shedlock_py.config import (
    check_provider,
    configured_providers,
    emit,
    is_kept_alive,
    lock_request,
    resolve_async_provider,
    resolve_provider,
)
from shedlock_py.context import ActiveLease, current, find_live, running
from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError, LeaseLostError, ProviderUnreachable, as_exception
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
from shedlock_py.keepalive import OnLost, check_on_lost, check_on_lost_async, kept_alive, kept_alive_async
from shedlock_py.lease import Lease
from shedlock_py.provider import AsyncLockProvider, LockProvider, undo_of
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest, validate_name
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
    return Block(lock, lock_at_most_for, lock_at_least_for, provider, keep_alive, on_lost)


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
    return run_guarded(Block(lock, lock_at_most_for, lock_at_least_for, provider, keep_alive, on_lost), task)


def run_guarded(block: Block, task: Callable[[], T]) -> Executed[T] | Skipped:
    """Run ``task()`` in ``block``."""
    with block as lease:
        if lease is None:
            return block.skip
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
    return AsyncBlock(lock, lock_at_most_for, lock_at_least_for, provider, keep_alive, on_lost)


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
    return await run_guarded_async(
        AsyncBlock(lock, lock_at_most_for, lock_at_least_for, provider, keep_alive, on_lost), task
    )


async def run_guarded_async(block: AsyncBlock, task: Callable[[], Awaitable[T]]) -> Executed[T] | Skipped:
    """:func:`run_guarded` for async tasks."""
    async with block as lease:
        if lease is None:
            return block.skip
        work = task()
        if not inspect.isawaitable(work):
            raise TypeError(f"{task!r} returned a {type(work).__name__}, not something to await: use attempt or hold")
        return Executed(refuse_unfinished(await work), lease)


class Guard:
    """What :class:`Block` and :class:`AsyncBlock` decide alike, in the order in which it happens. For one use.

    ``spec`` is the ``__shedlock__`` of the guarded function, if it has one; the provider was checked with it.
    """

    _store: LockProvider | AsyncLockProvider

    def __init__(
        self,
        lock: str | LockRequest,
        at_most: Duration | None,
        at_least: Duration | None,
        provider: object,
        keep_alive: bool | None = None,
        on_lost: OnLost = "continue",
        spec: Any = None,
    ) -> None:
        self.provider = provider
        self.keep_alive = is_kept_alive(keep_alive)
        self.on_lost = on_lost
        self.spec = spec
        self._at_most = at_most
        self._at_least = at_least
        self._request: LockRequest | None = None
        self._owner: OwningProcess | None = None
        self._asked_at = self._answered_at = 0.0
        self._skip_reason: SkipReason = "held"
        self._lease: Lease | None = None  # from the grant until the block is left
        self._is_unused = False  # granted, but the task will not run
        self._active: ActiveLease | None = None
        if isinstance(lock, LockRequest):
            self.name, self._request, self._template = lock.name, lock, lock.template
        else:
            self.name, self._template = lock, None if spec is None else spec.filled_template
        if spec is None:
            self._check()

    def _check(self) -> None:
        """What cannot work is refused where the block is made, before it is entered."""
        check_provider(self.provider)
        if self._request is not None:
            if (self._at_most, self._at_least) != (None, None):
                raise ConfigurationError(
                    f"lock {self.name!r}: the LockRequest says for how long; give no other durations"
                )
        # Where the code is inside of the lease already, it is not needed, and perhaps nobody said for how long.
        elif self.around() is None:
            self.request()  # made again when the block is entered: for the process and the defaults of then
        else:
            validate_name(self.name)  # None would be inside of any

    def __call__(self, function: object) -> Never:
        raise TypeError("hold(…) and hold_async(…) are no decorators: use @scheduler_lock(…)")

    def begin_use(self) -> None:
        """:raises RuntimeError: the block was entered before."""
        if self._owner is not None:
            raise RuntimeError(f"lock {self.name!r}: a block is for one use; call hold(…) again for the next")
        self._owner = OwningProcess()  # a block may be created before a fork and entered after it

    def around(self) -> ActiveLease | None:
        """The live lease of this very lock that the running code is inside of already."""
        if current.get() is None:
            return None
        providers = configured_providers() if self.provider is None else (self.provider,)
        return find_live(self.name, providers, self.spec)

    @property
    def skip(self) -> Skipped:
        return Skipped(self.name, self._skip_reason)

    def request(self) -> LockRequest:
        """What the store is to be asked for."""
        return self._request or lock_request(self.name, self._at_most, self._at_least, template=self._template)

    def failed(self, operation: str, error: Exception, lease: Lease | None = None) -> None:
        emit(ProviderFailed(self.name, operation, error, lease).filled_from(self._template))

    def _elapsed(self) -> timedelta:
        return timedelta(seconds=self._answered_at - self._asked_at)

    @contextmanager
    def wondering(self) -> Iterator[None]:
        """Around the look-up of why a run is skipped: it is skipped in any case."""
        try:
            yield
        except Exception as error:  # of any kind: a provider of another package may raise what it likes
            logger.debug("lock %r: could not look up why it is skipped: %r", self.name, error)

    def explain_skip(self, fire_time: datetime, record: LockRecord | None) -> None:
        if record and not record.is_held and record.last_fire_time and record.last_fire_time >= fire_time:
            self._skip_reason = "already_ran"

    def skipped(self, reason: SkipReason | None = None) -> None:
        self._skip_reason = reason or self._skip_reason
        emit(LockSkipped(self.name, self._skip_reason, self._elapsed()).filled_from(self._template))

    def begin(self, lease: Lease, store: LockProvider | AsyncLockProvider) -> ActiveLease:
        """The task begins, unless the grant took so long that it may be over.

        :raises ProviderUnreachable: it may.
        """
        self._answered_at = monotonic()
        if not lease.is_trusted():
            error = ProviderUnreachable(
                f"lock {lease.name!r}: the store took {self._elapsed()} to grant a lease of {lease.lock_at_most_for}, "
                f"which may be over already; the task does not run",
                operation="acquire",
                lock_name=lease.name,
            )
            self.failed("acquire", error)
            raise error
        provider = getattr(store, "sync_provider", store)  # as the caller knows it
        assert self._owner is not None
        self._active = active = ActiveLease(lease, provider, self._owner)
        emit(LockAcquired(lease.name, lease, self._elapsed()))
        active.enter()
        return active

    def finish(self, lease: Lease, failure: BaseException | None) -> None:
        """The task has ended."""
        active = self._active
        if active is None:
            return  # granted too late: nobody was told of this lease
        active.leave()
        if self._is_owner():  # in a forked child, the task is its parent's
            duration = timedelta(seconds=(active.ended_at or monotonic()) - self._answered_at)
            emit(TaskFinished(lease.name, lease, duration, _outcome(failure), failure))
        if not lease.is_trusted() and not lease.is_lost() and self.must_release(lease):
            active.is_loss_reported = True
            emit(LeaseLost(lease.name, lease, "overrun"))

    def leave(self) -> None:
        """The lease is released, or will not be: SIGTERM need not wait for it any more."""
        if self._active is not None:
            running.discard(self._active)

    def must_release(self, lease: Lease) -> bool:
        """Not if the task has done it; nor in a forked child that leaves the block: the lease is its parent's."""
        return not lease.has_ended() and self._is_owner()

    def _is_owner(self) -> bool:
        return self._owner is not None and self._owner.is_current()

    @property
    def give_back(self) -> Callable[[Lease], Any]:
        """The provider's operation that ends the lease.

        A lease under which no task ran is undone: free at once, without minimum hold, and its fire time can be granted
        again. A provider without ``undo`` releases it.
        """
        return undo_of(self._store) if self._is_unused else self._store.release

    def released(self, lease: Lease, was_ours: bool) -> None:
        if self._active is None:
            return  # granted too late: nobody was told of this lease
        if was_ours:
            emit(LockReleased(lease.name, lease, timedelta(seconds=monotonic() - self._answered_at)))
        elif not self._active.is_loss_reported:
            emit(LeaseLost(lease.name, lease, "revoked"))


class Block(Guard):
    """The guard around ordinary code: what :func:`hold` returns."""

    _store: LockProvider
    _kept_alive: AbstractContextManager[None] | None = None

    def __enter__(self) -> Lease | None:
        self.begin_use()
        around = self.around()
        if around is not None:
            return around.lease
        request = self.request()
        if refuses_work():
            self.skipped("shutting_down")
            return None
        self._store = store = resolve_provider(self.provider, self.name)
        self._asked_at = monotonic()
        try:
            lease = self._lease = store.acquire(request)
        except Exception as error:
            self.failed("acquire", error)
            raise
        if lease is None:
            self._answered_at = monotonic()
            if request.fire_time is not None:
                with self.wondering():
                    self.explain_skip(request.fire_time, store.record(self.name))
            self.skipped()
            return None
        try:
            active = self.begin(lease, store)
            if self.keep_alive or self.on_lost != "continue":
                keep_alive = kept_alive(active, store, self.keep_alive, self.on_lost)
                keep_alive.__enter__()
                self._kept_alive = keep_alive
            return lease
        except BaseException as error:
            self._is_unused = True
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return  # skipped, or inside of a live lease
        try:
            if self._kept_alive is not None:
                self._kept_alive.__exit__(kind, error, tb)
        except BaseException as raised:
            error = raised
            raise
        finally:
            try:
                self.finish(lease, error)
            finally:
                try:
                    self._release(lease)
                finally:
                    self.leave()

    def _release(self, lease: Lease) -> None:
        if self.must_release(lease):
            try:
                self.released(lease, self.give_back(lease))
            except (Exception, SystemExit) as error:  # must not replace what the task returned or raised
                if isinstance(error, SystemExit) and is_from_signal(error):
                    raise  # SIGTERM is to end the process
                self.failed("release", as_exception(error, "release", lease.name), lease)


class AsyncBlock(Guard):
    """:class:`Block` for async code: what :func:`hold_async` returns."""

    _store: AsyncLockProvider
    _kept_alive: AbstractAsyncContextManager[None] | None = None

    async def __aenter__(self) -> Lease | None:
        self.begin_use()
        around = self.around()
        if around is not None:
            return around.lease
        request = self.request()
        if refuses_work():
            self.skipped("shutting_down")
            return None
        self._store = store = resolve_async_provider(self.provider, self.name)
        self._asked_at = monotonic()
        try:
            lease = self._lease = await store.acquire(request)
        except Exception as error:
            self.failed("acquire", error)
            raise
        if lease is None:
            self._answered_at = monotonic()
            if request.fire_time is not None:
                with self.wondering():
                    self.explain_skip(request.fire_time, await store.record(self.name))
            self.skipped()
            return None
        try:
            active = self.begin(lease, store)
            if self.keep_alive or self.on_lost != "continue":
                keep_alive = kept_alive_async(active, store, self.keep_alive, self.on_lost)
                await keep_alive.__aenter__()
                self._kept_alive = keep_alive
            return lease
        except BaseException as error:
            self._is_unused = True
            await self.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        from shedlock_py._aio import shielded  # late: loads asyncio

        lease, self._lease = self._lease, None
        if lease is None:
            return  # skipped, or inside of a live lease
        try:
            if self._kept_alive is not None:
                await self._kept_alive.__aexit__(kind, error, tb)
        except BaseException as raised:
            error = raised
            raise
        finally:
            try:
                self.finish(lease, error)
            finally:
                try:
                    await shielded(self._release(lease))  # also what is told of it
                finally:
                    self.leave()

    async def _release(self, lease: Lease) -> None:
        if self.must_release(lease):
            try:
                self.released(lease, await self.give_back(lease))
            except (Exception, SystemExit) as error:  # must not replace what the task returned or raised
                if isinstance(error, SystemExit) and is_from_signal(error):
                    raise  # SIGTERM is to end the process
                self.failed("release", as_exception(error, "release", lease.name), lease)


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


_UNFINISHED = (CoroutineType, GeneratorType, AsyncGeneratorType)


def refuse_unfinished(value: T) -> T:
    """``value``, if the task's work is done.

    :raises TypeError: the task returned a coroutine or generator, whose body would run after the release; or a Task or
        Future, whose work may end after it.
    """
    if hasattr(type(value), "add_done_callback"):  # as futures of all libraries have; the type, for mocks have anything
        raise TypeError(
            f"the guarded task returned a {type(value).__name__}, whose work may end after the lock was released. Make "
            f"it an 'async def' that awaits the work, or wait for its result before returning"
        )
    if not isinstance(value, _UNFINISHED):
        return value
    if isinstance(value, CoroutineType):
        value.close()  # or Python warns that nobody has awaited it
    raise TypeError(
        f"the guarded task returned a {type(value).__name__} that has not run yet; the lock would be released before "
        f"it does. Guard the function that does the work ('async def' tasks are awaited under the lock)"
    )
