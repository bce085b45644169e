"""Keep-alive: extending a lease while its task runs, and saying at once when it is lost.

What to do and when is in :class:`KeepAlivePlan`, which waits for nothing. :func:`kept_alive` carries it out in threads,
:func:`kept_alive_async` on the event loop.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from shedlock_py._clock import monotonic
from shedlock_py._process import OwningProcess, is_from_signal
from shedlock_py._timers import RETRY_SECONDS, timer, worker_pool
from shedlock_py.config import emit
from shedlock_py.context import ActiveLease
from shedlock_py.errors import LeaseLostError, as_exception
from shedlock_py.events import LeaseLost, LockExtended, LostReason, ProviderFailed, logger
from shedlock_py.lease import HeartbeatPlan, Lease
from shedlock_py.options import OnLost
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.request import SLACK, TRUST_MARGIN

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

MOST_PENDING = 3
"""Heartbeats of one lease that wait for a worker or a reply at the same time."""
STOP_SECONDS = 10.0
"""Seconds to wait, at the end of a task, for a heartbeat that the store has not answered."""


class KeepAlivePlan:
    """What is known about the lease of one running task, and what is to be done next."""

    def __init__(self, active: ActiveLease, *, sends: bool) -> None:
        self.lease = lease = active.lease
        self._active = active
        self.pending = 0
        self.is_queued = False
        """Whether a heartbeat waits for a worker. Over a slow link one is enough: more would delay other leases'."""
        self.has_ended = False
        self.lost: LeaseLost | None = None
        self.pauses = 0
        """While the task itself extends the lease, no heartbeat begins: the store must not do the shorter one last."""
        self._sends = sends
        from random import SystemRandom  # late: with what it imports, half a millisecond

        # The module's own random numbers go on alike in all children that C has forked.
        self._plan = HeartbeatPlan(lease.lock_at_most_for, self._believed_since(), SystemRandom().random)

    def wakes_at(self) -> float:
        """When there will be something to do."""
        return min(self._plan.due, self.lease.trusted_until) if self._sends else self.lease.trusted_until

    def must_send(self) -> bool:
        """Whether to send a heartbeat now; if so, it counts as sent."""
        now = monotonic()
        if not self._sends or now < self._plan.due:
            return False
        self._plan.sent(self.lease.lock_at_most_for, now)
        if self.pending >= MOST_PENDING or self.is_queued or self.pauses:
            return False
        self.pending += 1
        return True

    def may_send(self) -> bool:
        """Whether a heartbeat that has waited for a worker is still wanted; if so, it counts as sent now."""
        is_wanted = self.is_queued and not self.pauses and self.is_alive() and self.lease.is_trusted()
        self.is_queued = False
        if is_wanted:
            self._plan.sent(self.lease.lock_at_most_for, monotonic())
        return is_wanted

    def is_alive(self) -> bool:
        """Whether the task runs and its lease is not known to be lost."""
        return not self.has_ended and self.lost is None

    def extended(self) -> None:
        """A heartbeat, or the task itself, has extended the lease; or the task has tried to."""
        self.is_queued = False
        self._plan.extended(self.lease.lock_at_most_for, self._believed_since())
        # While an earlier, shorter extension is in doubt, less is believed than was asked for: not at once again.
        believed = self.lease.trusted_for().total_seconds()
        self._plan.due = max(self._plan.due, monotonic() + believed / HeartbeatPlan.HEARTBEATS / 2)

    def _believed_since(self) -> float:
        """When the question was sent that gave the lease its trust window: an answer may have taken long."""
        return self.lease.trusted_until - self.lease.lock_at_most_for.total_seconds() * (1 - TRUST_MARGIN) + SLACK

    def failed(self) -> None:
        self._plan.failed(self.lease.lock_at_most_for, monotonic())

    def over(self) -> LostReason | None:
        """Why the lease is over, once it cannot be believed any more."""
        if self.lease.is_trusted():
            return None
        if self.lease.is_lost() and not self.pending:
            return "revoked"  # the task itself has asked the store
        return self._why_over()

    def _why_over(self) -> LostReason:
        return "unreachable" if self._plan.failures or self.pending else "overrun"

    def refused(self, believed_until: float) -> LeaseLost | None:
        """The store does not have the lease, which was believed until then."""
        return self.lose("revoked" if monotonic() < believed_until else self._why_over())

    def lose(self, reason: LostReason) -> LeaseLost | None:
        """The lease is lost: the event, once; None if that is known, or the task has ended the lease itself."""
        if self.has_ended or self.lost is not None or self.lease.has_ended():
            return None
        self.lease.lose()
        self._active.is_loss_reported = True
        self.lost = LeaseLost(self.lease.name, self.lease, reason)
        return self.lost


# In threads


@contextmanager
def kept_alive(active: ActiveLease, store: LockProvider, keep_alive: bool, on_lost: OnLost) -> Iterator[None]:
    """Keep the lease alive, or only watch it, while the block runs. At its end no heartbeat is under way any more."""
    keeper = ThreadKeepAlive(active, store, keep_alive, on_lost)
    active.keep_alive = keeper
    try:
        keeper.start()
        yield
    finally:
        active.ended_at = monotonic()
        keeper.stop()


class ThreadKeepAlive:
    def __init__(self, active: ActiveLease, store: LockProvider, keep_alive: bool, on_lost: OnLost) -> None:
        self._plan = KeepAlivePlan(active, sends=keep_alive)
        self._store = store
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._owner = OwningProcess()
        self._pool = worker_pool(store, "heartbeats") if keep_alive else None
        self._is_reserved = False
        self._in_flight = 0
        """Heartbeats that a worker has begun and the store has not answered."""
        self._unreported: list[Exception] = []
        """Why heartbeats could not be sent: for the next worker to report."""
        self._untold: LeaseLost | None = None
        """The lease is lost, and nobody was notified yet."""

    def start(self) -> None:
        """:raises RuntimeError: the timer's thread could not be started: nothing would keep the lease alive."""
        if self._pool is not None:
            self._is_reserved = True
            self._pool.reserve()
        try:
            timer().schedule(self.wake, self._plan.wakes_at())
        except RuntimeError as error:
            raise RuntimeError(f"lock {self._plan.lease.name!r}: the task does not run, unwatched: {error}") from error

    def wake(self) -> None:
        """In the timer's thread, which must not wait for anything."""
        with self._changed:
            plan = self._plan
            if plan.is_alive():
                reason = plan.over()
                if reason is None:
                    if plan.must_send():
                        self._submit_heartbeat()
                    timer().schedule(self.wake, plan.wakes_at())
                    return
                self._untold = plan.lose(reason)
            if self._untold is not None:
                self._tell_in_thread()

    def _submit_heartbeat(self) -> None:
        plan = self._plan
        try:
            assert self._pool is not None
            self._pool.submit(self._heartbeat).add_done_callback(_log_unexpected)
            plan.is_queued = True
        except RuntimeError as error:  # no thread could be started: as if the store had failed, so soon again
            plan.pending -= 1
            plan.failed()
            self._unreported.append(error)

    def _tell_in_thread(self) -> None:
        """Listeners and ``on_lost`` may be slow, so they get a thread of their own."""
        try:
            threading.Thread(target=self._tell_untold, name="shedlock-on-lost", daemon=True).start()
        except RuntimeError:
            timer().schedule(self.wake, monotonic() + RETRY_SECONDS)

    def _tell_untold(self) -> None:
        with self._changed:
            lost, self._untold = self._untold, None
        if lost is not None:
            _tell(lost, self._on_lost)

    def _heartbeat(self) -> None:
        """In a worker thread. Whatever it calls may raise anything."""
        plan = self._plan
        with self._changed:
            believed_until = plan.lease.trusted_until
            if not plan.may_send():  # it has waited for a worker
                plan.pending -= 1
                return
            self._in_flight += 1
        lost: LeaseLost | None = None
        error: Exception | None = None
        is_ours: Lease | None = None
        try:
            is_ours = self._store.extend(plan.lease, plan.lease.lock_at_most_for)
        except BaseException as raised:
            error = as_exception(raised, "extend", plan.lease.name)
        with self._changed:
            plan.pending -= 1
            self._in_flight -= 1
            self._changed.notify_all()
            if not plan.is_alive():
                return
            if error is not None:
                plan.failed()
            elif is_ours is not None:
                plan.extended()
            else:
                lost = plan.refused(believed_until)
            self._schedule()
        self._report_unsent()
        _report(plan.lease, error, is_ours)
        if lost:
            _tell(lost, self._on_lost)

    def _schedule(self) -> None:
        with suppress(RuntimeError):  # the timer's thread; it stays scheduled
            timer().schedule(self.wake, self._plan.wakes_at())

    def _report_unsent(self) -> None:
        with self._changed:
            errors, self._unreported = self._unreported, []
        for error in errors:
            _report(self._plan.lease, error, None)

    def is_busy(self, *, is_async: bool) -> bool:
        return self._in_flight > 0 and self._owner.is_current()

    def pause(self) -> None:
        if self._owner.is_current():
            with self._changed:
                self._plan.pauses += 1

    def resume(self) -> None:
        if self._owner.is_current():
            with self._changed:
                self._plan.pauses -= 1
                self._plan.extended()
                self._schedule()

    def report_lost(self) -> None:
        if not self._owner.is_current():
            return
        with self._changed:
            lost = self._plan.lose("revoked")
        if lost:
            _tell(lost, self._on_lost)

    def stop(self) -> None:
        if not self._owner.is_current():
            return  # a forked child that leaves the block: nothing of this runs here
        try:
            with self._changed:
                self._plan.has_ended = True
                timer().cancel(self.wake)
                # A heartbeat that came after the release would prolong a minimum hold.
                self._changed.wait_for(lambda: not self._in_flight, STOP_SECONDS)
        finally:
            if self._pool is not None and self._is_reserved:
                self._is_reserved = False
                self._pool.unreserve()
        self._report_unsent()  # no thread has done it
        self._tell_untold()


def _log_unexpected(beat: Future[None]) -> None:
    error = beat.exception()
    if error is not None:
        logger.error("a heartbeat failed unexpectedly", exc_info=error)


def _tell(lost: LeaseLost, on_lost: OnLost) -> None:
    """Notify the listeners and ``on_lost``."""
    try:
        emit(lost)
    finally:  # also after Ctrl-C
        _call(on_lost, lost)


def _call(on_lost: OnLost, lost: LeaseLost) -> object:
    if callable(on_lost):
        try:
            return on_lost(lost)
        except BaseException as error:  # sys.exit() too: it ends neither a thread of ours nor an event loop
            if is_from_signal(error):
                raise
            logger.exception("on_lost of lock %r failed", lost.lock_name)
    return None


def _report(lease: Lease, error: Exception | None, extended: Lease | None) -> None:
    if error is not None:
        emit(ProviderFailed(lease.name, "extend", error, lease))
    elif extended is not None:
        emit(LockExtended(lease.name, lease))


# On the event loop


@asynccontextmanager
async def kept_alive_async(
    active: ActiveLease, store: AsyncLockProvider, keep_alive: bool, on_lost: OnLost
) -> AsyncIterator[None]:
    """:func:`kept_alive` for async tasks. With "cancel", a lost lease becomes a ``LeaseLostError`` out of the block."""
    import asyncio  # late: must not be loaded for others

    keeper = TaskKeepAlive(active, store, keep_alive, on_lost)
    active.keep_alive = keeper
    keeper.start()
    try:
        yield
    except asyncio.CancelledError as error:
        if keeper.takes_back_its_cancellation():
            raise LeaseLostError(f"lock {active.lease.name!r} was lost while its task ran") from error
        raise
    finally:
        active.ended_at = monotonic()
        await keeper.stop()


class TaskKeepAlive:
    def __init__(self, active: ActiveLease, store: AsyncLockProvider, keep_alive: bool, on_lost: OnLost) -> None:
        import asyncio

        self._plan = KeepAlivePlan(active, sends=keep_alive)
        self._store = store
        self._on_lost = on_lost
        self._owner = OwningProcess()
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._body = asyncio.current_task()
        self._cancels_before = self._body.cancelling() if self._body else 0
        self._has_cancelled = False
        self._patient_until = 0.0
        self._heartbeats: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        import asyncio

        self._watch = asyncio.create_task(self._run())
        self._watch.add_done_callback(self._watch_ended)

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        """Code that shuts down by cancelling all tasks has cancelled this one, while the guarded task goes on."""
        if watch.cancelled() and self._plan.is_alive() and self._owner.is_current():
            self.start()

    async def _run(self) -> None:
        import asyncio

        plan = self._plan
        while (reason := plan.over()) is None and plan.lost is None:
            if plan.must_send():
                heartbeat = asyncio.create_task(self._heartbeat())
                self._heartbeats.add(heartbeat)
                heartbeat.add_done_callback(self._heartbeats.discard)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, plan.wakes_at() - monotonic())):
                    await self._changed.wait()
            self._changed.clear()
        if reason is not None:
            self._tell(plan.lose(reason))

    async def _heartbeat(self) -> None:
        import asyncio

        plan, believed_until = self._plan, self._plan.lease.trusted_until
        self._patient_until = monotonic() + plan.lease.lock_at_most_for.total_seconds() / HeartbeatPlan.REPLY
        lost: LeaseLost | None = None
        error: Exception | None = None
        is_ours: Lease | None = None
        try:
            is_ours = await self._store.extend(plan.lease, plan.lease.lock_at_most_for)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as raised:
            if is_from_signal(raised):
                raise
            error = as_exception(raised, "extend", plan.lease.name)
        finally:
            plan.pending -= 1
        if not plan.is_alive():
            return
        if error is not None:
            plan.failed()
        elif is_ours is not None:
            plan.extended()
        else:
            lost = plan.refused(believed_until)
        self._changed.set()
        _report(plan.lease, error, is_ours)
        self._tell(lost)

    def _tell(self, lost: LeaseLost | None) -> None:
        if lost is not None:
            try:
                emit(lost)
            finally:  # also after Ctrl-C
                self._react(lost)

    def _react(self, lost: LeaseLost) -> None:
        import asyncio

        if self._on_lost == "cancel" and self._body is not None and not self._plan.has_ended:
            self._has_cancelled = True
            self._body.cancel(f"lock {lost.lock_name!r} was lost")
        answer = _call(self._on_lost, lost)
        if inspect.isawaitable(answer):
            task = asyncio.ensure_future(_finish(lost, answer))
            _unfinished.add(task)
            task.add_done_callback(_unfinished.discard)

    def takes_back_its_cancellation(self) -> bool:
        """Whether the body was cancelled by us and by nobody else; as ``asyncio.timeout`` does it."""
        if not self._has_cancelled or self._body is None:
            return False
        self._has_cancelled = False
        return self._body.uncancel() <= self._cancels_before

    def is_busy(self, *, is_async: bool) -> bool:
        if not self._owner.is_current():
            return False
        if is_async or not self._plan.pending:
            return self._plan.pending > 0
        # A blocking call on this event loop, which waits until the heartbeat's own thread is done, or for so long.
        return self._plan.lease.is_being_extended() and monotonic() < self._patient_until

    def pause(self) -> None:
        if self._owner.is_current():
            self._plan.pauses += 1

    def resume(self) -> None:
        if self._owner.is_current():
            self._plan.pauses -= 1
            self._plan.extended()
            self._loop.call_soon_threadsafe(self._changed.set)  # the task may extend in a worker thread

    def report_lost(self) -> None:
        if not self._owner.is_current():
            return
        lost = self._plan.lose("revoked")
        if lost:
            emit(lost)  # at once: the task is about to end because of it
            self._loop.call_soon_threadsafe(self._react, lost)

    async def stop(self) -> None:
        import asyncio

        if not self._owner.is_current():
            return  # as in its twin
        self._plan.has_ended = True
        if self._watch is not None:
            self._watch.cancel()
        # A heartbeat that came after the release would prolong a minimum hold.
        if self._heartbeats:
            await asyncio.wait(self._heartbeats, timeout=STOP_SECONDS)
        if self._has_cancelled and self._body is not None:
            self._body.uncancel()  # the body ended before it could be cancelled


_unfinished: set[Any] = set()  # the event loop itself keeps only weak references


async def _finish(lost: LeaseLost, answer: Awaitable[object]) -> None:
    import asyncio

    try:
        await answer
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # asyncio would let sys.exit() out of the event loop, past all tasks
        if is_from_signal(error):
            raise
        logger.exception("on_lost of lock %r failed", lost.lock_name)
