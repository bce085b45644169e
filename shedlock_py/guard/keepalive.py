"""Keep-alive: heartbeats extend a lease while its task runs, and a loss is reported at once.

:class:`BaseKeepAlive` makes all decisions and never waits. :class:`ThreadKeepAlive` carries them out in threads,
``async_keepalive.TaskKeepAlive`` on the event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from shedlock_py.errors import ProviderUnreachable, as_exception
from shedlock_py.events import Event, LeaseLost, LockExtended, LostReason, ProviderFailed, logger
from shedlock_py.guard.context import ActiveLease
from shedlock_py.guard.heartbeat_plan import HeartbeatPlan
from shedlock_py.model.lease import Lease
from shedlock_py.model.request import SLACK, TRUST_MARGIN
from shedlock_py.model.waiting import random_share
from shedlock_py.provider import LockProvider, waits_for
from shedlock_py.runtime.process import is_from_signal, monotonic
from shedlock_py.runtime.program import Program, drive
from shedlock_py.runtime.threads import timer, worker_pool
from shedlock_py.settings.emit import emit
from shedlock_py.settings.options import OnLost

MAX_IN_FLIGHT = 3
"""How many heartbeats of one lease may wait for a reply at the same time."""
STOP_SECONDS = 10.0
"""How long the end of a task waits for a heartbeat without a reply."""
_NEVER = float("-inf")


class BaseKeepAlive:
    """The state of a running task's lease, and the decision what to do next."""

    def __init__(
        self,
        active: ActiveLease,
        keep_alive: bool | timedelta,
        on_lost: OnLost,
        *,
        random: Callable[[], float] = random_share,
    ) -> None:
        """:param keep_alive: False only watches for the end of the lease. True sends heartbeats until the task ends. A
            duration is how long heartbeats are sent, from now on.
        :param random: see :class:`HeartbeatPlan`.
        """
        self._active = active
        self._lease = active.lease
        self._clock = active.lease.now
        # When heartbeats end.
        self._keep_until = float("inf") if keep_alive else _NEVER
        if isinstance(keep_alive, timedelta):
            self._keep_until = self._clock() + keep_alive.total_seconds()
        self._on_lost = on_lost
        # A heartbeat extends the lease for as long as the guard, or later the task, has requested.
        self._lock_for = self._lease.lock_at_most_for
        # Guards all that follows. Use `with` on it, not on the condition: see runtime/threads.py.
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._events: list[Event] = []  # for the listeners
        self._in_flight = 0  # sent heartbeats without a reply
        self._waits_since = 0.0  # when the first of them was sent
        # Whether a heartbeat waits for a worker. A second heartbeat would delay the heartbeats of other leases.
        self._is_queued = False
        # While the task itself extends the lease, no heartbeat begins: it might shorten the lease again.
        self._pauses = 0
        self._is_over = False  # the task or its lease has ended
        self._plan = HeartbeatPlan(self._lock_for, self._extended_at(), random)

    def wake(self) -> None:
        """Start whatever is due. Never waits."""
        lease = self._lease
        with self._mutex:
            if not self._is_over and not lease.is_trusted():
                # The task's own extension may have found that the lease is lost.
                is_revoked = lease.is_lost() and not self._in_flight and not self._is_queued
                self._lose("revoked" if is_revoked else self._why_untrusted(lease.trusted_until))
            elif not self._is_over and self._plan.due <= self._clock() < self._keep_until:
                self._plan.sent(lease.lock_at_most_for, self._clock())
                if not self._is_queued and not self._pauses and self._in_flight < MAX_IN_FLIGHT:
                    self._is_queued = True
                    try:
                        self._start_heartbeat()
                    except Exception as error:  # no thread or no memory; retried soon, like an error of the store
                        self._is_queued = False
                        self._failed(error)
            if self._is_over and self._events:
                self._start_report()
            else:
                self._schedule()

    def abandon(self) -> None:
        """Send no more heartbeats. Takes no lock, because the garbage collector calls it, in any thread."""
        self._is_over = True

    def _sleeps_for(self) -> float:
        """Return the seconds until something is due."""
        now, until = self._clock(), self._lease.trusted_until
        if max(self._plan.due, now) < self._keep_until:
            until = min(self._plan.due, until)
        return max(0.0, until - now)

    def _start_heartbeat(self) -> None:
        raise NotImplementedError

    def _schedule(self) -> None:
        """Call :meth:`wake` in :meth:`_sleeps_for` seconds, unless the task or its lease has ended."""
        raise NotImplementedError

    def _start_report(self) -> None:
        """Call :meth:`_report` soon, but not here: listeners may be slow."""
        raise NotImplementedError

    def _must_raise(self, error: BaseException) -> bool:
        """Return whether ``error``, raised by the store, is a cancellation or a signal to the process."""
        raise NotImplementedError

    def _heartbeat(self) -> Program[timedelta, Lease | None, None]:
        """Send one heartbeat, in a worker. The command: extend the lease for so long."""
        with self._mutex:
            is_wanted = self._is_queued and not self._pauses and not self._is_over and self._lease.is_trusted()
            self._is_queued = False
            if not is_wanted or self._clock() >= self._keep_until:
                return
            self._plan.sent(self._lease.lock_at_most_for, self._clock())
            if not self._in_flight:
                self._waits_since = self._clock()
            self._in_flight += 1
            trusted_until = self._lease.trusted_until
        extended: Lease | None = None
        failure: Exception | None = None
        try:
            extended = yield self._lock_for
        except BaseException as error:
            if self._must_raise(error):
                raise
            failure = as_exception(error, "extend", self._lease.name)
        finally:
            with self._mutex:
                self._in_flight -= 1
                self._changed.notify_all()
        with self._mutex:
            if self._is_over:
                return
            if failure is not None:
                self._failed(failure)
            elif extended is not None:
                self._extended()
                self._events.append(LockExtended(self._lease.name, self._lease))
            else:
                self._lose("revoked" if self._clock() < trusted_until else self._why_untrusted(trusted_until))

    def _extended(self) -> None:
        self._is_queued = False
        self._plan.extended(self._lease.lock_at_most_for, self._extended_at())
        # While an earlier, shorter extension is in doubt, the trust window is shorter than the lease. Send no heartbeat
        # early because of that.
        seconds = self._lease.trusted_for().total_seconds()
        self._plan.due = max(self._plan.due, self._clock() + seconds / HeartbeatPlan.HEARTBEATS / 2)

    def _extended_at(self) -> float:
        """Return when the request was sent that the trust window counts from. Its reply may have taken long."""
        lease = self._lease
        return lease.trusted_until - lease.lock_at_most_for.total_seconds() * (1 - TRUST_MARGIN) + SLACK

    def _failed(self, error: Exception) -> None:
        self._plan.failed(self._lease.lock_at_most_for, self._clock())
        self._events.append(ProviderFailed(self._lease.name, "extend", error, self._lease))

    def _why_untrusted(self, trusted_until: float) -> LostReason:
        if _NEVER < self._keep_until <= trusted_until:
            return "kept_too_long"
        return "unreachable" if self._plan.failures or self._in_flight or self._is_queued else "overrun"

    def _lose(self, reason: LostReason) -> None:
        """Give the lease up as lost, unless the task itself releases it."""
        if self._is_over:
            return
        self._is_over = True
        if not self._lease.is_being_released():
            self._lease._lose()
            self._active.is_loss_reported = True
            if self._in_flight and (what := waits_for(self._active.provider)):
                self._events.append(ProviderFailed(self._lease.name, "extend", self._no_reply(what), self._lease))
            self._events.append(LeaseLost(self._lease.name, self._lease, reason))

    def _no_reply(self, what: str) -> ProviderUnreachable:
        name, seconds = self._lease.name, self._clock() - self._waits_since
        message = f"extend of lock {name!r}: no reply for {seconds:.1f} s: it waits for {what}"
        return ProviderUnreachable(message, operation="extend", lock_name=name)

    def _report(self) -> None:
        """Notify the listeners. Carry out ``on_lost`` after a loss."""
        while True:
            with self._mutex:
                if not self._events:
                    return
                event = self._events.pop(0)
            try:
                emit(event)
            finally:  # even after Ctrl-C
                if isinstance(event, LeaseLost):
                    self._react(event)

    def _react(self, lost: LeaseLost) -> object:
        if callable(self._on_lost):
            try:
                return self._on_lost(lost)
            except BaseException as error:  # even sys.exit() must not end a thread or an event loop
                if is_from_signal(error):
                    raise
                logger.exception("on_lost of lock %r failed", lost.lock_name)
        return None

    # For a task that extends its lease itself

    def is_busy(self, *, is_async: bool) -> bool:
        return self._in_flight > 0

    def pause(self) -> None:
        with self._mutex:
            self._pauses += 1

    def resume(self) -> None:
        with self._mutex:
            self._pauses -= 1
            self._lock_for = self._lease.lock_at_most_for
            self._extended()
            self._schedule()

    def report_lost(self) -> None:
        with self._mutex:
            self._lose("revoked")
        self._report()


class ThreadKeepAlive(BaseKeepAlive):
    """Keep the lease alive, or only watch it, while a block of ordinary code runs.

    At the end of the block it waits for heartbeats in flight, for STOP_SECONDS at most: in a table without tokens, a
    heartbeat after the release could hold the lock again.
    """

    def __init__(
        self,
        active: ActiveLease,
        store: LockProvider,
        keep_alive: bool | timedelta,
        on_lost: OnLost,
    ) -> None:
        super().__init__(active, keep_alive, on_lost)
        self._store = store

    def __enter__(self) -> None:
        """Start keep-alive.

        :raises RuntimeError: the system refuses a thread, so nothing would watch the lease.
        """
        self._active.keep_alive = self
        try:
            timer().schedule(self.wake, monotonic() + self._sleeps_for())
        except BaseException as error:
            self.__exit__()
            if not isinstance(error, RuntimeError):
                raise
            message = f"lock {self._lease.name!r}: the task does not run, because nothing would watch it: {error}"
            raise RuntimeError(message) from error

    def _start_heartbeat(self) -> None:
        worker_pool(self._store, "heartbeats").submit(self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        try:
            drive(self._heartbeat(), lambda lock_for: self._store.extend(self._lease, lock_for))
            self._schedule()
            self._report()
        except BaseException:
            logger.exception("a heartbeat of lock %r failed unexpectedly", self._lease.name)

    def _must_raise(self, error: BaseException) -> bool:
        return False  # sys.exit() in a driver's hook in a worker thread is a failure, too

    def _schedule(self) -> None:
        with self._mutex, suppress(RuntimeError):  # if no thread starts, the callback stays scheduled
            if not self._is_over:
                timer().schedule(self.wake, monotonic() + self._sleeps_for())

    def _start_report(self) -> None:
        # If no thread starts, the timer logs the error and calls wake() again.
        threading.Thread(target=self._report, name="shedlock-on-lost", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._active.ended_at = monotonic()
        if not self._active.owner.is_current():
            return  # a forked child leaves the block; the lease and its heartbeats are the parent's
        with self._mutex:
            self._is_over = True
            timer().cancel(self.wake)
            self._changed.wait_for(lambda: not self._in_flight, STOP_SECONDS)
        self._report()
