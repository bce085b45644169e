"""One guarded block: acquire, run, release.

:class:`Guard` holds every decision, in the order in which it is made. :class:`Block` and :class:`AsyncBlock` carry
them out, line by line alike. They are not written as one program: Ctrl-C can come between any two steps, and a
generator that is closed there could not release the lease any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never

from shedlock_py._clock import monotonic
from shedlock_py._process import OwningProcess, is_from_signal
from shedlock_py.config import emit, is_kept_alive, lock_request
from shedlock_py.context import ActiveLease, current, find_live, running
from shedlock_py.errors import ConfigurationError, LeaseLostError, ProviderUnreachable, as_exception
from shedlock_py.events import (
    LeaseLost,
    LockAcquired,
    LockReleased,
    LockSkipped,
    Outcome,
    ProviderFailed,
    TaskFinished,
    logger,
)
from shedlock_py.gates import Gate, Skipped, decide_skip, lock_refused, process_gates
from shedlock_py.keepalive import ThreadKeepAlive
from shedlock_py.lease import Lease
from shedlock_py.options import LockOptions
from shedlock_py.provider import AsyncLockProvider, LockProvider, undo_of
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest, validate_name
from shedlock_py.resolve import configured_providers, resolve_async_provider, resolve_provider

if TYPE_CHECKING:
    from shedlock_py.async_keepalive import TaskKeepAlive


class Guard:
    """The decisions of :class:`Block` and :class:`AsyncBlock`, in the order in which they are made. For one use.

    ``spec`` is the ``__shedlock__`` of the guarded function, if there is one.
    """

    skip: Skipped
    """Set when the block is skipped."""

    def __init__(self, lock: str | LockRequest, options: LockOptions, spec: Any = None) -> None:
        self.options = options
        self.spec = spec
        self._request: LockRequest | None = None
        self._owner: OwningProcess | None = None
        self._sent_at = self._replied_at = 0.0
        self._lease: Lease | None = None
        """From the grant until the block is left."""
        self._is_unused = False
        """The lease was granted, but the task will not run."""
        self._active: ActiveLease | None = None
        if isinstance(lock, LockRequest):
            self.name, self._template, self._request = lock.name, lock.template, lock
            if (options.lock_at_most_for, options.lock_at_least_for) != (None, None):
                raise ConfigurationError(f"lock {self.name!r}: the LockRequest has durations; give no others")
            return
        self.name, self._template = lock, None if spec is None else spec.filled_template
        if spec is not None:
            return  # checked when the function was decorated
        # What cannot work is refused here, before the block is entered. Inside its own lease a lock needs no durations.
        if self.enclosing() is None:
            self.request()
        else:
            validate_name(self.name)  # None would match any enclosing lease

    def __call__(self, function: object) -> Never:
        raise TypeError("hold(…) and hold_async(…) are no decorators: use @scheduler_lock(…)")

    def enclosing(self) -> ActiveLease | None:
        """The live lease of this very lock that the running code is inside of already."""
        if current.get() is None:
            return None
        provider = self.options.provider
        return find_live(self.name, configured_providers() if provider is None else (provider,), self.spec)

    def request(self) -> LockRequest:
        """The request to send to the store."""
        if self._request is not None:
            return self._request
        options = self.options
        return lock_request(self.name, options.lock_at_most_for, options.lock_at_least_for, template=self._template)

    def begin_use(self) -> None:
        """:raises RuntimeError: the block was entered before."""
        if self._owner is not None:
            raise RuntimeError(f"lock {self.name!r}: a block is for one use; call hold(…) again for the next")
        self._owner = OwningProcess()  # a block may be created before a fork and entered after it

    def is_skipped(self, gates: list[Gate]) -> bool:
        """Whether a gate refuses the task: then it is skipped, and the listeners are notified."""
        skip = decide_skip(self.name, gates)
        if skip is None:
            return False
        self.skip = skip
        emit(LockSkipped(skip.lock_name, skip.reason, self._elapsed()).filled_from(self._template))
        return True

    def _elapsed(self) -> timedelta:
        return timedelta(seconds=self._replied_at - self._sent_at)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Around the read of the record that explains a skip. Whatever it raises, the task is skipped."""
        try:
            yield
        except Exception as error:  # of any kind: a provider of another package may raise anything
            logger.debug("lock %r: could not read why it is skipped: %r", self.name, error)

    def failed(self, operation: str, error: Exception, lease: Lease | None = None) -> None:
        emit(ProviderFailed(self.name, operation, error, lease).filled_from(self._template))

    def begin(self, lease: Lease, store: LockProvider | AsyncLockProvider) -> ActiveLease:
        """The task begins, unless the grant took so long that its lease may be over.

        :raises ProviderUnreachable: it may be over.
        """
        self._replied_at = monotonic()
        if not lease.is_trusted():
            error = ProviderUnreachable(
                f"lock {lease.name!r}: the store took {self._elapsed()} to grant a lease of {lease.lock_at_most_for}, "
                f"which may be over already; the task does not run",
                operation="acquire",
                lock_name=lease.name,
            )
            self.failed("acquire", error)
            raise error
        provider = getattr(store, "sync_provider", store)  # the object that the caller knows
        assert self._owner is not None
        self._active = active = ActiveLease(lease, provider, self._owner)
        emit(LockAcquired(lease.name, lease, self._elapsed()))
        active.enter()
        return active

    def finish(self, lease: Lease, failure: BaseException | None) -> None:
        """The task has ended."""
        active = self._active
        if active is None:
            return  # granted too late: this lease had no LockAcquired
        active.leave()
        if self._is_owner():  # in a forked child, the task belongs to its parent
            duration = timedelta(seconds=(active.ended_at or monotonic()) - self._replied_at)
            emit(TaskFinished(lease.name, lease, duration, _outcome(failure), failure))
        if not lease.is_trusted() and not lease.is_lost() and self.must_release(lease):
            active.is_loss_reported = True
            emit(LeaseLost(lease.name, lease, "overrun"))

    def must_release(self, lease: Lease) -> bool:
        """Not if the task has released it; nor in a forked child that leaves the block of its parent."""
        return not lease.has_ended() and self._is_owner()

    def _is_owner(self) -> bool:
        return self._owner is not None and self._owner.is_current()

    def release_of(self, store: LockProvider | AsyncLockProvider) -> Callable[[Lease], Any]:
        """The provider's operation that ends the lease.

        A lease under which no task ran is undone: free at once, without minimum hold, and its fire time can be granted
        again. A provider without ``undo`` releases it.
        """
        return undo_of(store) if self._is_unused else store.release

    def released(self, lease: Lease, was_held: bool) -> None:
        """The store has replied to the release."""
        if self._active is None:
            return  # granted too late: this lease had no LockAcquired
        if was_held:
            emit(LockReleased(lease.name, lease, timedelta(seconds=monotonic() - self._replied_at)))
        elif not self._active.is_loss_reported:
            emit(LeaseLost(lease.name, lease, "revoked"))

    def release_failed(self, lease: Lease, error: BaseException) -> None:
        """The release raised. That must not replace what the task returned or raised."""
        if isinstance(error, SystemExit) and is_from_signal(error):
            raise error  # SIGTERM is to end the process
        self.failed("release", as_exception(error, "release", lease.name), lease)

    def leave(self) -> None:
        """The lease is released, or will not be: SIGTERM need not wait for it any more."""
        if self._active is not None:
            running.discard(self._active)


class Block(Guard):
    """The guard around ordinary code: what :func:`hold` returns."""

    _store: LockProvider
    _kept_alive: ThreadKeepAlive | None = None

    def __enter__(self) -> Lease | None:
        self.begin_use()
        enclosing = self.enclosing()
        if enclosing is not None:
            return enclosing.lease
        request = self.request()
        if self.is_skipped(process_gates):
            return None
        self._store = store = resolve_provider(self.options.provider, self.name)
        self._sent_at = monotonic()
        try:
            lease = self._lease = store.acquire(request)
        except Exception as error:
            self.failed("acquire", error)
            raise
        if lease is None:
            self._replied_at = monotonic()
            record: LockRecord | None = None
            if request.fire_time is not None:
                with self.explaining():
                    record = store.record(self.name)
            self.is_skipped([lock_refused(request, record)])
            return None
        try:
            active = self.begin(lease, store)
            is_renewed = is_kept_alive(self.options.keep_alive)
            if is_renewed or self.options.on_lost != "continue":
                kept = ThreadKeepAlive(active, store, is_renewed, self.options.on_lost)
                kept.__enter__()
                self._kept_alive = kept
            return lease
        except BaseException as error:
            self._is_unused = True
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return  # skipped, or inside a live lease
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
                self.released(lease, self.release_of(self._store)(lease))
            except (Exception, SystemExit) as error:
                self.release_failed(lease, error)


class AsyncBlock(Guard):
    """:class:`Block` for async code: what :func:`hold_async` returns."""

    _store: AsyncLockProvider
    _kept_alive: TaskKeepAlive | None = None

    async def __aenter__(self) -> Lease | None:
        self.begin_use()
        enclosing = self.enclosing()
        if enclosing is not None:
            return enclosing.lease
        request = self.request()
        if self.is_skipped(process_gates):
            return None
        self._store = store = resolve_async_provider(self.options.provider, self.name)
        self._sent_at = monotonic()
        try:
            lease = self._lease = await store.acquire(request)
        except Exception as error:
            self.failed("acquire", error)
            raise
        if lease is None:
            self._replied_at = monotonic()
            record: LockRecord | None = None
            if request.fire_time is not None:
                with self.explaining():
                    record = await store.record(self.name)
            self.is_skipped([lock_refused(request, record)])
            return None
        try:
            active = self.begin(lease, store)
            is_renewed = is_kept_alive(self.options.keep_alive)
            if is_renewed or self.options.on_lost != "continue":
                from shedlock_py.async_keepalive import TaskKeepAlive  # late: loads asyncio

                kept = TaskKeepAlive(active, store, is_renewed, self.options.on_lost)
                await kept.__aenter__()
                self._kept_alive = kept
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
            return  # skipped, or inside a live lease
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
                    await shielded(self._release(lease))  # with its event
                finally:
                    self.leave()

    async def _release(self, lease: Lease) -> None:
        if self.must_release(lease):
            try:
                self.released(lease, await self.release_of(self._store)(lease))
            except (Exception, SystemExit) as error:
                self.release_failed(lease, error)


def _outcome(failure: BaseException | None) -> Outcome:
    if failure is None:
        return "succeeded"
    # What on_lost="cancel" raises is a cancellation; a TimeoutError, which asyncio makes of one, is not.
    ended_by = failure.__cause__ if isinstance(failure, LeaseLostError) else failure
    # By name: asyncio's class must not be imported here.
    return "cancelled" if type(ended_by).__name__ == "CancelledError" else "failed"
