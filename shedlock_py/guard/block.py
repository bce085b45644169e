"""One guarded block: check the gates, acquire, run, release.

:class:`BaseBlock` makes the decisions, in their order. :class:`Block` and :class:`AsyncBlock` carry them out, with the
same lines of code. They are not one program: Ctrl-C can come between any two steps, and a generator that is closed
there could not release the lease any more. The attempts to acquire the lock are a program
(:meth:`BaseBlock.attempts`): the block notes the lease as soon as it is granted.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from sys import is_finalizing
from threading import current_thread, main_thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never
from weakref import WeakSet

from shedlock_py.errors import ConfigurationError, LeaseLostError, ProviderUnreachable, as_exception, hidden_frames
from shedlock_py.events import (
    LeaseLost,
    LockAcquired,
    LockReleased,
    LockSkipped,
    MissReason,
    Outcome,
    ProviderFailed,
    RunMissed,
    RunRecovered,
    TaskFinished,
    logger,
)
from shedlock_py.guard.context import ActiveLease, find_enclosing, is_held_for, running
from shedlock_py.guard.keepalive import BaseKeepAlive, ThreadKeepAlive
from shedlock_py.guard.skips import (
    Gate,
    LostReplies,
    Skipped,
    is_free_for,
    is_held_by_earlier_run,
    lock_refused,
    process_gates,
)
from shedlock_py.guard.steps import LONGEST_SLEEP, Attempt, Read, SkippedNow, Sleep, Step, store_frames
from shedlock_py.model.durations import LONGEST
from shedlock_py.model.lease import Lease
from shedlock_py.model.record import ONCE, LockRecord
from shedlock_py.model.recovery import Acquire, Over, Recover, Wait, Watch
from shedlock_py.model.request import LockRequest
from shedlock_py.model.run import describe_error
from shedlock_py.model.waiting import FIRST_PAUSE, MILLISECOND, Waiting
from shedlock_py.provider import AsyncLockProvider, LockProvider, check_store, undo_of
from shedlock_py.runtime.process import OwningProcess, is_from_signal, monotonic
from shedlock_py.runtime.program import Program, drive, drive_async
from shedlock_py.settings.defaults import check_kept_alive, keep_alive_in_use, lock_request
from shedlock_py.settings.emit import emit
from shedlock_py.settings.lookup import resolve_async_provider, resolve_provider
from shedlock_py.settings.off_switch import is_active
from shedlock_py.settings.options import LockOptions, check_keep_alive_limit

__tracebackhide__ = hidden_frames
LONGEST_CONTEST = timedelta(seconds=2)
"""How long a guard tries again after a fire time was refused although nobody runs it."""
_REPLY_LOST = "an earlier attempt of this replica may have been granted: its reply was lost"

if TYPE_CHECKING:
    from shedlock_py.guard.async_keepalive import TaskKeepAlive


class BaseBlock:
    """The common part of both blocks. For one use.

    :param spec: the ``__shedlock__`` of the guarded function, if any.
    :param gates: the task's gates, checked before those of the process.
    :param fire_time: the fire time of this call, if ``options`` have a function for it.
    :param may_wait: whether the option ``wait`` applies to a lock with this record; by default to every lock.
    :param watches: under ``recover=True``, whether the block itself watches a run on another replica.
    :param expected: the record of a run that never ended, to be claimed in place of an acquire.
    """

    skip: Skipped
    """Set when the block is skipped."""
    record: LockRecord | None = None
    """The lock record after the last refusal, if it was read."""
    enclosing_lease: Lease | None = None
    _store: LockProvider | AsyncLockProvider
    _owner: OwningProcess | None = None
    _sent_at = _replied_at = 0.0
    _lease: Lease | None = None
    """Set from the grant until the block is left."""
    _active: ActiveLease | None = None
    _is_unused = False
    """The lease was granted, but the task will not run."""
    _recovered: LockRecord | None = None
    """The record of the run that never ended, which this block recovers."""
    _releases = 0
    """How many releases were begun. There are two if the end of the event loop has cancelled the first."""
    _is_given_back = False
    """The run was cut short, and another replica shall recover it."""
    _has_warned = False
    """The first failure of the store was logged."""
    _keep_alive: bool | timedelta = False
    """The option, or the default when the block was entered."""
    _kept_alive: BaseKeepAlive | None = None

    def __init__(
        self,
        lock: str | LockRequest,
        options: LockOptions,
        spec: Any = None,
        gates: tuple[Gate, ...] = (),
        fire_time: object = None,
        may_wait: Callable[[LockRecord], bool] | None = None,
        *,
        watches: bool = True,
        expected: LockRecord | None = None,
    ) -> None:
        self._may_wait = may_wait
        self._watches = watches
        self._recovered = expected
        self._lost_replies = LostReplies()
        self.options = options
        self.spec = spec
        self._gates = gates
        self._fire_time = fire_time
        self._request = lock if isinstance(lock, LockRequest) else None
        if isinstance(lock, LockRequest):
            self.name, self._template = lock.name, lock.template
            if (options.lock_at_most_for, options.lock_at_least_for) != (None, None):
                raise ConfigurationError(f"lock {self.name!r}: the LockRequest has durations; give no others")
            if lock.fire_time is not None and options.gives_fire_time:
                raise ConfigurationError(f"lock {self.name!r}: the LockRequest has a fire time; give no other")
        elif spec is not None:  # checked when the function was decorated
            self.name, self._template = lock, spec.filled_template
        else:
            # Refuse wrong options here, before the block is entered.
            self.name, self._template = lock, None
            if find_enclosing(self.name, options.provider) is None:  # inside its own lease a lock needs no durations
                lock_request(self.name, options.lock_at_most_for, options.lock_at_least_for)

    def __del__(self) -> None:
        if self._kept_alive is not None:
            self._kept_alive.abandon()  # without an exit, as after Ctrl-C in it, the lease expires

    def __call__(self, function: object) -> Never:
        raise TypeError("hold(…) and hold_async(…) are not decorators: use @scheduler_lock(…)")

    def __enter__(self) -> Any:
        raise TypeError("hold_async(…) and try_hold_async(…) need 'async with'; for 'with', use hold(…) or try_hold(…)")

    def __exit__(self, *_: Any) -> None: ...

    async def __aenter__(self) -> Any:
        raise TypeError("hold(…) and try_hold(…) need 'with'; for 'async with', use hold_async(…) or try_hold_async(…)")

    async def __aexit__(self, *_: Any) -> None: ...

    def begin(self) -> LockRequest | None:
        """Return the request for the store. None: the task runs inside a live lease of its lock, or is skipped.

        :raises RuntimeError: the block was entered before.
        """
        if self._owner is not None:
            raise RuntimeError(f"lock {self.name!r}: a block is for one use; call hold(…) again for the next")
        self._owner = OwningProcess()  # a block may be created before a fork and entered after it
        options = self.options
        enclosing = find_enclosing(self.name, options.provider, self.spec)
        if enclosing is not None:
            self.enclosing_lease = enclosing.lease
            enclosing.is_alias_used |= enclosing.alias == (self.spec, self.name)
            return None
        request = self._request or lock_request(
            self.name, options.lock_at_most_for, options.lock_at_least_for, template=self._template
        )
        self._keep_alive = keep_alive_in_use(options.keep_alive)
        if self._keep_alive:
            check_keep_alive_limit(self._keep_alive, request.lock_at_most_for)
        self._request = request = options.for_a_run(request, self._fire_time)
        if options.recover:
            self._check_recovery(request)
        return request if self.may_begin() else None

    def _check_recovery(self, request: LockRequest) -> None:
        """Check that ``recover=True`` can work.

        :raises ConfigurationError: no fire time, or no keep-alive.
        """
        if request.fire_time is None:
            raise ConfigurationError(
                f"lock {self.name!r}: recover=True needs a fire time, so that all replicas mean the same run: use "
                f"ShedLockExecutor with APScheduler, elsewhere give once_per='1h' or fire_time=…"
            )
        check_kept_alive(f"lock {self.name!r}", self.options.keep_alive)

    def may_begin(self) -> bool:
        """Check the gates. If a gate refuses the task, mark it as skipped and return False."""
        for gate in (*self._gates, *process_gates):
            reason = gate()
            if reason is not None:
                self.skipped(Skipped(self.name, reason))
                return False
        return True

    # Attempts to acquire the lock

    def attempts(self, request: LockRequest) -> Program[Step, Any, Lease | None]:
        """Try until the lock is granted. Return None if the task is skipped.

        :raises ProviderError: the store failed.
        """
        waiting = Waiting(self.options.wait, self._sent_at, request.fire_time)
        contested: Waiting | None = None
        recovers = self.options.recover and self._watches and is_active()
        if recovers:
            check_store(self._store, "recover=True", "recover")
        try:
            while True:
                try:
                    lease: Lease | None = yield Attempt(request, self._recovered)
                except Exception as error:
                    pause = self._after_failure(error, waiting)
                    if pause is None:
                        self.failed("acquire", error)
                        raise
                else:
                    if lease is not None:
                        return lease
                    self._replied_at = monotonic()
                    record = yield from (self._read() if recovers else self._read_once(request, waiting))
                    has_lost_claim = self._lost_replies.check(request, record)
                    if recovers and record is not None and record.last_fire_time == request.fire_time:
                        if has_lost_claim and record.is_held:  # it is undone soon; or it expires, and is recovered
                            yield from self._slept(min(LONGEST_SLEEP, record.remaining.total_seconds() + MILLISECOND))
                            continue
                        lease = yield from self._watched(request, record)
                        if lease is not None:
                            return lease
                        continue
                    pause = None
                    if is_free_for(request, record) and self._recovered is None:
                        contested = contested or Waiting(LONGEST_CONTEST, monotonic())
                        pause = contested.pause(monotonic())
                    if pause is None:
                        pause = self._after_refusal(request, record, waiting)
                    if pause is None:
                        return None
                yield from self._slept(pause)
        except SkippedNow:
            self._emit_abandoned(request)
            return None
        except Exception:  # the caller gets it, so the run is not lost in silence
            raise
        except BaseException:  # a cancellation or a signal
            self._emit_abandoned(request)
            raise
        finally:
            self._lost_replies.clear()

    def _emit_abandoned(self, request: LockRequest) -> None:
        """Emit ``RunMissed`` if a lost claim may keep this run from other replicas, and none will recover it."""
        if request.fire_time is not None and self._lost_replies.error is not None and not self.options.recover:
            self._missed(request, "cancelled", _REPLY_LOST)

    def _read_once(self, request: LockRequest, waiting: Waiting) -> Program[Step, Any, LockRecord | None]:
        """Read why the lock was refused, if the reason decides anything.

        :raises ProviderUnreachable: under ``recover=True``, where the caller needs the record to watch the run.
        """
        try:
            return (yield Read()) if request.fire_time is not None or waiting.is_on else None
        except Exception as error:  # a provider of another package may raise anything
            if self.options.recover and isinstance(error, ProviderUnreachable):
                self.failed("acquire", error)
                raise
            self.failed("record", error)
            return None

    def _after_refusal(self, request: LockRequest, record: LockRecord | None, waiting: Waiting) -> float | None:
        """Return how long to wait after a refusal, before the next attempt. None: the task is skipped.

        :raises ProviderUnreachable: the reply to an earlier attempt was lost, so this replica cannot run the fire time.
        """
        self.record = record
        lost = self._lost_replies.error
        skip = lock_refused(request, record)
        may_wait = self._may_wait is None or (record is not None and self._may_wait(record))
        pause = None
        if skip.reason == "held" and may_wait:
            # Without the record, pause() does not end the wait at a granted fire time: nobody runs a lost claim.
            pause = waiting.pause(monotonic(), record if lost is None else None)
        if pause is None and lost is not None:
            self.failed("acquire", lost)
            raise lost
        if pause is None:
            self.skipped(skip)
            if record is not None and is_held_by_earlier_run(request, record):
                self._missed(request, "held", f"{record.holder} has it since {record.locked_at}")
            elif is_free_for(request, record) and self._recovered is None:
                self._missed(request, "contested")
        return pause

    def _missed(self, request: LockRequest, reason: MissReason, details: str = "") -> None:
        emit(RunMissed(self.name, request.fire_time, reason, details).filled_from(self._template))

    def _after_failure(self, error: Exception, waiting: Waiting) -> float | None:
        """Return how long to wait after an error, before the next attempt. None: raise the error."""
        if not isinstance(error, ProviderUnreachable) or not waiting.is_on or self._may_wait is not None:
            return None
        pause = waiting.pause(monotonic())
        if pause is not None:
            self._lost_replies.add(error)
            self._warn_once(error)
        return pause

    def _slept(self, seconds: float) -> Program[Step, Any, None]:
        """Sleep, and check the gates.

        :raises SkippedNow: a gate has refused the task meanwhile.
        """
        while seconds > 0:
            yield Sleep(min(seconds, LONGEST_SLEEP))
            seconds -= LONGEST_SLEEP
            if not self.may_begin():
                raise SkippedNow

    def _warn_once(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("lock %r: the store is unreachable, it is tried again: %s", self.name, error)

    # Recovery

    def _watched(self, request: LockRequest, record: LockRecord | None) -> Program[Step, Any, Lease | None]:
        """Watch the run of this fire time on another replica, and recover it if it never ends.

        Return None if the fire time was given back before that run began: acquire it.

        :raises SkippedNow: there is nothing to recover.
        """
        watch = Watch(request.fire_time, self.options.max_recoveries)
        while True:
            pause = FIRST_PAUSE
            match watch.decide(record):
                case Acquire():
                    return None
                case Over(_, lost):
                    if lost is not None:
                        self._missed(request, lost)
                    self.skipped(lock_refused(request, record))
                    raise SkippedNow
                case Wait(seconds):
                    pause = seconds
                case Recover(expected):
                    lease = yield from self._recover(request, expected)
                    if lease is not None:
                        return lease
            yield from self._slept(pause)
            record = yield from self._read()
            self._replied_at = monotonic()

    def _recover(self, request: LockRequest, expected: LockRecord) -> Program[Step, Any, Lease | None]:
        """Claim the run that never ended. Return None if another replica was faster, or if the outcome is unknown."""
        self._recovered = expected
        try:
            lease: Lease | None = yield Attempt(request, expected)
        except ProviderUnreachable as error:
            self._warn_once(error)
            lease = None
        except Exception as error:
            self.failed("acquire", error)
            raise
        if lease is None:
            self._recovered = None
        return lease

    def _read(self) -> Program[Step, Any, LockRecord | None]:
        """Read the record. Repeat while the store is unreachable."""
        waiting = Waiting(LONGEST, monotonic())
        while True:
            try:
                record: LockRecord | None = yield Read()
                return record
            except ProviderUnreachable as error:
                self._warn_once(error)
            except Exception as error:
                self.failed("acquire", error)
                raise
            yield from self._slept(waiting.pause(monotonic()) or LONGEST_SLEEP)

    def skipped(self, skip: Skipped) -> None:
        self.skip = skip
        if skip.reason == "held" and self.spec is not None and is_held_for(self.spec, self.name):
            self.spec.warn_of_executor(self.name)
        elapsed = timedelta(seconds=self._replied_at - self._sent_at)
        emit(LockSkipped(skip.lock_name, skip.reason, elapsed).filled_from(self._template))

    def failed(self, operation: str, error: BaseException, lease: Lease | None = None) -> None:
        """Notify the listeners of a failure. A failed release must not replace the task's result or exception.

        A failed acquire is not logged here, because the caller gets the exception.
        """
        if is_from_signal(error):
            raise error  # SIGTERM must end the process, and a time limit its task
        failure = as_exception(error, operation, self.name)
        event = ProviderFailed(self.name, operation, failure, lease)
        emit(event.filled_from(self._template), is_raised=operation == "acquire")

    def start(self, lease: Lease, store: LockProvider | AsyncLockProvider) -> ActiveLease:
        """Begin the task.

        :raises ProviderUnreachable: the grant took so long that the lease may be over.
        """
        self._replied_at = monotonic()
        elapsed = timedelta(seconds=self._replied_at - self._sent_at)
        if not lease.is_trusted():
            error = ProviderUnreachable(
                f"lock {lease.name!r}: the store took {elapsed} to grant a lease of {lease.lock_at_most_for}, "
                f"which may be over already; the task does not run",
                operation="acquire",
                lock_name=lease.name,
            )
            error.locked_by = lease.locked_by
            self.failed("acquire", error)
            raise error
        assert self._owner is not None
        # The caller's provider, not the adapter.
        self._active = active = ActiveLease(lease, getattr(store, "sync_provider", store), self._owner)
        active.recovers = self.options.recover
        emit(LockAcquired(lease.name, lease, elapsed))
        if (former := self._recovered) is not None:
            fire_time = None if former.last_fire_time == ONCE else former.last_fire_time
            emit(RunRecovered(lease.name, lease, fire_time, former.holder, former.recoveries + 1))
        active.enter()
        if current_thread() is main_thread():
            _of_main_thread.add(self)
        return active

    def finish(self, lease: Lease, failure: BaseException | None) -> None:
        active = self._active
        if active is None:
            return  # granted too late: this lease had no LockAcquired
        active.leave()
        if not active.owner.is_current():
            return  # a forked child leaves the block; the task belongs to its parent
        outcome: Outcome = "succeeded"
        is_cut_short = isinstance(failure, SystemExit | KeyboardInterrupt) and is_from_signal(failure)
        if isinstance(failure, SystemExit) and not failure.code:
            failure = None  # sys.exit() means success
        if failure is not None:
            # on_lost="cancel" raises a LeaseLostError, and its cause is a cancellation. A TimeoutError of asyncio also
            # has such a cause, but is not a cancellation.
            ended_by = failure.__cause__ if isinstance(failure, LeaseLostError) else failure
            # By name, because this module must not import asyncio.
            outcome = "cancelled" if type(ended_by).__name__ == "CancelledError" else "failed"
        duration = timedelta(seconds=(active.ended_at or monotonic()) - self._replied_at)
        if not lease.has_ended():
            lease.outcome = "lost" if not lease.is_trusted() else "ok" if outcome == "succeeded" else outcome
        lease.error = None if failure is None else describe_error(failure)
        emit(TaskFinished(lease.name, lease, duration, outcome, failure))
        is_of_loss = outcome == "cancelled" and isinstance(failure, LeaseLostError)
        is_cut_short = is_cut_short or (outcome == "cancelled" and not is_of_loss)
        if is_cut_short and not lease.has_ended():
            self.cut_short(lease)
        # The store may still have a lease that is not trusted. If it were released, the run would count as ended.
        self._is_given_back |= self.options.recover and is_of_loss
        if not (lease.is_trusted() or lease.is_lost() or lease.has_ended()):
            active.is_loss_reported = True
            emit(LeaseLost(lease.name, lease, "overrun"))

    def cut_short(self, lease: Lease) -> None:
        """React to a task that was cancelled or ended by a signal. Under ``recover=True``, give its run back."""
        fire_time = self._request.fire_time if self._request is not None else None
        if fire_time is None:
            return
        if self.options.recover:
            self._is_given_back = True
            if lease.is_trusted():  # otherwise it is reported as lost, and may be recovered already
                message = "lock %r: the run of %s was cut short, and is given back for another replica"
                logger.warning(message, lease.name, fire_time.isoformat())
        else:
            emit(RunMissed(lease.name, fire_time, "cancelled").filled_from(self._template))

    def release_of(self, lease: Lease, store: LockProvider | AsyncLockProvider) -> Callable[[Lease], Any] | None:
        """Return the operation that ends the lease. None: the task has ended it, or this is a forked child.

        If no task ran, the lease is undone: no minimum hold, and the fire time can be granted again. If the run was
        given back, the lease expires soon without a release, so that another replica recovers the run.
        """
        if lease.has_ended() or self._owner is None or not self._owner.is_current():
            return None
        self._releases += 1
        if self._is_unused:
            return undo_of(store)
        if self._is_given_back:
            soon = max(lease.remaining_minimum(), timedelta(seconds=MILLISECOND))
            return partial(store.extend, lock_at_most_for=soon)
        return store.release

    def released(self, lease: Lease, was_held: bool) -> None:
        if self._is_given_back:
            lease._begin_release()  # never trust it again
        if self._active is None:
            return  # granted too late: this lease had no LockAcquired
        if was_held or self._releases > 1:  # the store may have executed the first release
            emit(LockReleased(lease.name, lease, timedelta(seconds=monotonic() - self._replied_at)))
        elif not self._active.is_loss_reported:
            emit(LeaseLost(lease.name, lease, "revoked"))


class Block(BaseBlock):
    """The guard around ordinary code, returned by :func:`try_hold`."""

    _store: LockProvider
    _kept_alive: ThreadKeepAlive | None = None

    def __enter__(self) -> Lease | None:
        request = self.begin()
        if request is None:
            return self.enclosing_lease
        self._store = store = resolve_provider(self.options.provider, self.name)
        self._sent_at = monotonic()
        try:
            lease = drive(self.attempts(request), self._execute)
            if lease is None:
                return None
            active = self.start(lease, store)
            if self._keep_alive or (self.options.on_lost != "continue" and is_active()):
                kept = ThreadKeepAlive(active, store, self._keep_alive, self.options.on_lost)
                kept.__enter__()
                self._kept_alive = kept
            return lease
        except BaseException as error:
            self._is_unused = True
            self.__exit__(type(error), error, error.__traceback__)
            frames = store_frames(error, type(self)._execute)
            if frames is not None:
                raise error.with_traceback(frames)  # noqa: B904 (the same, without the frames of the program)
            raise

    def _execute(self, step: Step) -> Any:
        match step:
            case Attempt():
                self._lease = step.sent_to(self._store)
                return self._lease
            case Sleep(seconds):
                return time.sleep(seconds)
        return self._store.record(self.name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return  # skipped, or inside a live lease
        try:
            if self._kept_alive is not None and not is_finalizing():
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
                    if self._active is not None:
                        running.discard(self._active)  # SIGTERM need not wait for it any more

    def _release(self, lease: Lease) -> None:
        release = self.release_of(lease, self._store)
        if release is not None:
            try:
                self.released(lease, bool(release(lease)))
            except (Exception, SystemExit) as error:
                self.failed("release", error, lease)
        elif self._releases:  # the provider has carried out the first one after all
            self.released(lease, was_held=True)


class AsyncBlock(BaseBlock):
    """The guard around async code, returned by :func:`try_hold_async`."""

    _store: AsyncLockProvider
    _kept_alive: TaskKeepAlive | None = None

    async def __aenter__(self) -> Lease | None:
        from shedlock_py.guard.async_keepalive import TaskKeepAlive  # late: loads asyncio

        request = self.begin()
        if request is None:
            return self.enclosing_lease
        self._store = store = resolve_async_provider(self.options.provider, self.name)
        self._sent_at = monotonic()
        try:
            lease = await drive_async(self.attempts(request), self._execute)
            if lease is None:
                return None
            active = self.start(lease, store)
            if self._keep_alive or (self.options.on_lost != "continue" and is_active()):
                kept = TaskKeepAlive(active, store, self._keep_alive, self.options.on_lost)
                await kept.__aenter__()
                self._kept_alive = kept
            return lease
        except BaseException as error:
            self._is_unused = True
            await self.__aexit__(type(error), error, error.__traceback__)
            frames = store_frames(error, type(self)._execute)
            if frames is not None:
                raise error.with_traceback(frames)  # noqa: B904 (the same, without the frames of the program)
            raise

    async def _execute(self, step: Step) -> Any:
        import asyncio

        match step:
            case Attempt():
                self._lease = await step.sent_to(self._store)
                return self._lease
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
        return await self._store.record(self.name)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        from shedlock_py.runtime.asyncio_tools import shielded  # late: loads asyncio

        lease, self._lease = self._lease, None
        if lease is None:
            return  # skipped, or inside a live lease
        try:
            if self._kept_alive is not None and not is_finalizing():
                await self._kept_alive.__aexit__(kind, error, tb)
        except BaseException as raised:
            error = raised
            raise
        finally:
            try:
                self.finish(lease, error)
            finally:
                try:
                    await shielded(self._release(lease), once_more=partial(self._release, lease))
                finally:
                    if self._active is not None:
                        running.discard(self._active)  # SIGTERM need not wait for it any more

    async def _release(self, lease: Lease) -> None:
        release = self.release_of(lease, self._store)
        if release is not None:
            try:
                self.released(lease, bool(await release(lease)))
            except (Exception, SystemExit) as error:
                self.failed("release", error, lease)
        elif self._releases:  # the provider has carried out the first one after all
            self.released(lease, was_held=True)


_of_main_thread: WeakSet[BaseBlock] = WeakSet()
"""The blocks that the main thread has entered. Weak references: keep-alive ends with a forgotten block."""


@atexit.register
def _stop_heartbeats() -> None:
    """Stop the heartbeats of generators that nobody has closed, after the main thread has ended.

    Python closes the generators later, when daemon threads have stopped. A stopped thread may hold a lock of
    keep-alive.
    """
    for block in list(_of_main_thread):
        if isinstance(block, Block) and block._kept_alive is not None and not block._kept_alive.is_busy(is_async=False):
            kept, block._kept_alive = block._kept_alive, None
            with suppress(Exception):
                kept.__exit__()
