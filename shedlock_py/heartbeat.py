"""What keep-alive decides: when to extend the lease of a running task, and what follows from the reply.

Nothing here does I/O or waits. ``keepalive.py`` carries it out in threads, ``async_keepalive.py`` on the event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from shedlock_py._clock import monotonic
from shedlock_py._process import OwningProcess, is_from_signal
from shedlock_py._program import Program
from shedlock_py.config import emit
from shedlock_py.context import ActiveLease
from shedlock_py.events import Event, LeaseLost, LockExtended, LostReason, ProviderFailed, logger
from shedlock_py.lease import Lease
from shedlock_py.options import OnLost
from shedlock_py.request import SLACK, TRUST_MARGIN

MAX_IN_FLIGHT = 3
"""Heartbeats of one lease that may wait for a reply at the same time."""
STOP_SECONDS = 10.0
"""The longest time for which the end of a task waits for a heartbeat without a reply."""


class HeartbeatPlan:
    """When to extend a lease that is kept alive. Moments are monotonic seconds and always given.

    A heartbeat is due every third of the lease. One that fails is repeated after a growing, jittered pause, and one
    without a reply within a sixth of the lease is not waited for: several attempts fit in before the trust window ends.
    """

    HEARTBEATS = 3
    REPLY = 6

    def __init__(self, lock_at_most_for: timedelta, now: float, random: Callable[[], float]) -> None:
        """:param random: returns a number from 0 to 1, so that replicas do not retry at the same moment."""
        self._random = random
        self.failures = 0
        """In a row."""
        self.extended(lock_at_most_for, now)

    def sent(self, lock_at_most_for: timedelta, now: float) -> None:
        """A heartbeat was sent: without a reply, the next is due soon."""
        self.due = now + lock_at_most_for.total_seconds() / self.REPLY

    def extended(self, lock_at_most_for: timedelta, now: float) -> None:
        """The lease was extended by a request that was sent at ``now``."""
        self.failures = 0
        self.due = now + lock_at_most_for.total_seconds() / self.HEARTBEATS

    def failed(self, lock_at_most_for: timedelta, now: float) -> None:
        """The store failed, at ``now``."""
        self.failures += 1
        lease = lock_at_most_for.total_seconds()
        pause = min(lease / 48 * 2 ** min(self.failures, 10), lease / self.REPLY)
        self.due = now + pause * (0.5 + self._random() / 2)


class KeepAlivePlan:
    """What is known about the lease of a running task, and what to do next.

    ``changed`` guards the plan. ``events`` collects what listeners are to be notified of.
    """

    def __init__(self, active: ActiveLease, *, sends: bool) -> None:
        """:param sends: whether to send heartbeats, or only to watch for the end of the lease."""
        from random import SystemRandom  # late: half a millisecond

        self.lease = lease = active.lease
        self._lock_for = lease.lock_at_most_for
        """How long a heartbeat extends the lease: as long as the guard, or later the task, has requested."""
        self.changed = threading.Condition()
        self.events: list[Event] = []
        self.in_flight = 0
        """Heartbeats that were sent and have no reply yet."""
        self.is_queued = False
        """Whether a heartbeat waits for a worker. One is enough: more would delay those of other leases."""
        self.pauses = 0
        """While the task itself extends the lease, no heartbeat begins: it might shorten the lease again."""
        self.is_over = False
        """The task has ended, or its lease."""
        self._active = active
        self._sends = sends
        # SystemRandom, because the module's generator is in the same state in all children that C code forks.
        self._heartbeats = HeartbeatPlan(lease.lock_at_most_for, self._extended_at(), SystemRandom().random)

    def wakes_at(self) -> float:
        """When to call :meth:`wake`."""
        return min(self._heartbeats.due, self.lease.trusted_until) if self._sends else self.lease.trusted_until

    def wake(self) -> bool:
        """Whether to start a heartbeat, which counts as queued then. Notices that the lease is not trusted any more."""
        now = monotonic()
        if self.is_over:
            return False
        if not self.lease.is_trusted():
            # The task itself may have tried to extend the lease.
            is_revoked = self.lease.is_lost() and not self.in_flight and not self.is_queued
            self.lose("revoked" if is_revoked else self._why_untrusted())
            return False
        if not self._sends or now < self._heartbeats.due:
            return False
        self._heartbeats.sent(self.lease.lock_at_most_for, now)
        if self.is_queued or self.pauses or self.in_flight >= MAX_IN_FLIGHT:
            return False
        self.is_queued = True
        return True

    def heartbeat(self) -> Program[timedelta, Lease | None, None]:
        """One heartbeat, once a worker has time for it. The command: extend the lease for so long."""
        with self.changed:
            is_wanted = self.is_queued and not self.pauses and not self.is_over and self.lease.is_trusted()
            self.is_queued = False
            if not is_wanted:
                return
            self._heartbeats.sent(self.lease.lock_at_most_for, monotonic())
            self.in_flight += 1
            trusted_until = self.lease.trusted_until
        extended: Lease | None = None
        failure: Exception | None = None
        try:
            extended = yield self._lock_for
        except Exception as error:
            failure = error
        finally:
            with self.changed:
                self.in_flight -= 1
                self.changed.notify_all()
        with self.changed:
            if self.is_over:
                return
            if failure is not None:
                self.failed(failure)
            elif extended is not None:
                self.extended()
                self.events.append(LockExtended(self.lease.name, self.lease))
            else:
                self.lose("revoked" if monotonic() < trusted_until else self._why_untrusted())

    def extended_by_task(self) -> None:
        """The task itself has extended the lease, or has tried to."""
        self._lock_for = self.lease.lock_at_most_for
        self.extended()

    def extended(self) -> None:
        """The lease was extended."""
        self.is_queued = False
        self._heartbeats.extended(self.lease.lock_at_most_for, self._extended_at())
        # While an earlier, shorter extension is in doubt, the trust window is shorter than the lease: do not hurry.
        seconds = self.lease.trusted_for().total_seconds()
        self._heartbeats.due = max(self._heartbeats.due, monotonic() + seconds / HeartbeatPlan.HEARTBEATS / 2)

    def _extended_at(self) -> float:
        """When the request was sent from which the trust window counts; its reply may have taken long."""
        return self.lease.trusted_until - self.lease.lock_at_most_for.total_seconds() * (1 - TRUST_MARGIN) + SLACK

    def failed(self, error: Exception) -> None:
        """A heartbeat failed, or could not be sent."""
        self._heartbeats.failed(self.lease.lock_at_most_for, monotonic())
        self.events.append(ProviderFailed(self.lease.name, "extend", error, self.lease))

    def _why_untrusted(self) -> LostReason:
        return "unreachable" if self._heartbeats.failures or self.in_flight or self.is_queued else "overrun"

    def lose(self, reason: LostReason) -> None:
        """The lease is lost, unless the task has released it."""
        if self.is_over:
            return
        self.is_over = True
        if not self.lease.has_ended():
            self.lease.lose()
            self._active.is_loss_reported = True
            self.events.append(LeaseLost(self.lease.name, self.lease, reason))


class BaseKeepAlive:
    """What the facades for threads and for event loops share."""

    def __init__(self, active: ActiveLease, keep_alive: bool, on_lost: OnLost) -> None:
        self._plan = KeepAlivePlan(active, sends=keep_alive)
        self._on_lost = on_lost
        self._owner = OwningProcess()

    def wake(self) -> None:
        """Do what is due, and wait for nothing."""
        plan = self._plan
        with plan.changed:
            if plan.wake():
                try:
                    self._start_heartbeat()
                except Exception as error:  # no thread or no memory; retried soon, as after an error of the store
                    plan.is_queued = False
                    plan.failed(error)
            if plan.is_over and plan.events:
                self._start_report()
            else:
                self._schedule()

    def _start_heartbeat(self) -> None:
        raise NotImplementedError

    def _schedule(self) -> None:
        """Let :meth:`wake` be called at the time that the plan gives."""
        raise NotImplementedError

    def _start_report(self) -> None:
        """Let :meth:`_report` be called soon: listeners may be slow."""
        raise NotImplementedError

    def _report(self) -> None:
        """Notify the listeners, and ``on_lost`` of a loss."""
        while True:
            with self._plan.changed:
                if not self._plan.events:
                    return
                event = self._plan.events.pop(0)
            try:
                emit(event)
            finally:  # also after Ctrl-C
                if isinstance(event, LeaseLost):
                    self._react(event)

    def _react(self, lost: LeaseLost) -> None:
        """Carry out ``on_lost``."""
        raise NotImplementedError

    def _call_on_lost(self, lost: LeaseLost) -> object:
        if callable(self._on_lost):
            try:
                return self._on_lost(lost)
            except BaseException as error:  # sys.exit() too: it must end neither a thread nor an event loop
                if is_from_signal(error):
                    raise
                logger.exception("on_lost of lock %r failed", lost.lock_name)
        return None

    # What the task needs that extends its lease itself

    def is_busy(self, *, is_async: bool) -> bool:
        return self._plan.in_flight > 0

    def pause(self) -> None:
        with self._plan.changed:
            self._plan.pauses += 1

    def resume(self) -> None:
        with self._plan.changed:
            self._plan.pauses -= 1
            self._plan.extended_by_task()
            self._schedule()

    def report_lost(self) -> None:
        with self._plan.changed:
            self._plan.lose("revoked")
        self._report()
