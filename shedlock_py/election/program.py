"""The election program: decides when one node sends which request to the store. It does not wait or do I/O.

A leader renews its lease every ``retry_period``. It trusts the lease until ``renew_deadline`` after it *sent* the last
renewal that the store has confirmed. The store keeps the lease for ``lease_duration``. Followers read the record as
often, and try to acquire the lease when it can have ended. :class:`~shedlock_py.LeaderElector` describes the settings.

The clock and the random numbers are arguments, so that tests can simulate an election.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from shedlock_py.election.demotion import Demotion
from shedlock_py.election.observation import Observation
from shedlock_py.election.settings import DRIFT_FACTOR, JITTER, ElectionSettings
from shedlock_py.errors import ProviderError
from shedlock_py.events import (
    Event,
    LeaderChanged,
    LeadershipStarted,
    LeadershipStopped,
    ProviderFailed,
    StopReason,
)
from shedlock_py.model.lease import Clock, Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest, default_holder
from shedlock_py.model.run import describe_error
from shedlock_py.runtime.program import Program

Intent = Literal["stop", "resign", "take_over"]
"""The user's requests to a node."""


@dataclass(frozen=True, slots=True)
class Do:
    """A command: call an operation of the provider. The reply is its result, or PENDING after ``seconds``."""

    operation: str
    args: tuple[Any, ...]
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A command: wait until that moment, until the user requests something, or until a callback returns."""

    until: float


Command = Do | Wait
PENDING: Any = object()
"""Stands for a reply that has not arrived yet."""


@dataclass(slots=True)
class Term:
    """The time for which a node has the lease."""

    lease: Lease
    trusted_until: float
    renews_at: float
    leads_from: float
    """When the previous leader has stopped trusting its lease, unless it was seen to release the lease."""
    is_leading: bool = False
    has_failed: bool = False
    """Whether ``on_started_leading`` raised in this term. The node resigns."""


@dataclass(eq=False)
class Election:
    """The state of one node in an election, and its program: :meth:`run`.

    Other methods may be called from any thread. Between two commands, anything about the node may have changed.

    :ivar random: returns random numbers from 0 to 1.
    :ivar notify: gets the events.
    :ivar renewed: called after each renewal of a leader.
    :ivar is_busy: whether callbacks of the leadership are still running.
    """

    settings: ElectionSettings
    clock: Clock
    random: Callable[[], float]
    notify: Callable[[Event], None]
    renewed: Callable[[], None]
    is_busy: Callable[[], bool]

    def __post_init__(self) -> None:
        self.holder = self.settings.holder or default_holder()
        self.observation = Observation(self.settings, self.clock)
        self.intents: set[Intent] = set()
        self.is_over = False
        """Whether the program has ended, for any reason. The node cannot lead any more."""
        self.term: Term | None = None
        """None while this node does not have the lease."""
        self._name = self.settings.name
        durations = self.settings.durations
        self._request = LockRequest(self._name, durations.lease_duration, holder=self.holder)
        self._lease_seconds = durations.lease_duration.total_seconds()
        self._retry = durations.retry_period.total_seconds()
        self._deadline = durations.renew_deadline.total_seconds()
        self._reply_timeout = max(self._lease_seconds / 6, 0.001)
        self._lost: Lease | None = None
        """The lease of a term that ended without a release, until its run in the history is ended as lost."""
        self._failures = 0
        self._rests_until = float("-inf")
        self._leader: str | None = None

    def is_leader(self) -> bool:
        """Return whether this node leads, by the clock: a stalled thread cannot leave an outdated flag behind.

        False as soon as the node is to resign or to stop, although it still keeps its lease for a while.
        """
        term = self.term
        is_leading = term is not None and term.is_leading and self.clock() < term.trusted_until
        return is_leading and self.may_lead() and not self.is_resigning()

    def may_lead(self) -> bool:
        """Return whether this node can still become the leader."""
        return not self.is_over and "stop" not in self.intents

    def is_resigning(self) -> bool:
        """Return whether this node is to end its term: the user has requested it, or its work has failed."""
        term = self.term
        return "resign" in self.intents or (term is not None and term.has_failed)

    def is_taking_over(self) -> bool:
        """Return whether this node may yet lead because of a ``take_over()``."""
        term = self.term
        return "take_over" in self.intents or (term is not None and not term.is_leading)

    @property
    def lease(self) -> Lease | None:
        """The lease of this node, which may lead or be about to."""
        term = self.term
        return None if term is None else term.lease

    def run(self) -> Program[Command, Any, None]:
        """Take part in the election until the node is to stop."""
        while True:
            if self.term is not None:
                yield from self._keep(self.term)
            elif "stop" in self.intents:
                return
            else:
                self.intents.discard("resign")
                yield from self._follow()

    def is_at_work(self, term: Term | None) -> bool:
        """Return whether ``term`` is this node's leadership and continues. Ignores the clock: a renewal may be in
        flight.
        """
        is_current = term is not None and term is self.term and term.is_leading
        return is_current and self.may_lead() and not self.is_resigning()

    def fail(self, term: Term | None, error: BaseException) -> bool:
        """Resign, because ``on_started_leading`` raised ``error`` in ``term``: a leader without its work is useless.

        Return False if that term has ended or is ending, so that nothing changes. A later term has its own work.
        """
        if term is None or not self.is_at_work(term):
            return False
        term.lease.outcome, term.lease.error = "failed", describe_error(error)
        term.has_failed = True
        return True

    def give_up(self) -> None:
        """End the leadership of a program that has failed. The lease is left to expire."""
        if self.term is not None:
            self._end(self.term, "unreachable")

    # Leading

    def _keep(self, term: Term) -> Program[Command, Any, None]:
        """Do one step of a node that has the lease: renew it, begin to lead, or resign."""
        if "stop" in self.intents or self.is_resigning():
            yield from self._resign(term)
            return
        now = self.clock()
        if now >= term.trusted_until:
            self._end(term, "unreachable")
            return
        if now >= term.leads_from and not term.is_leading:
            term.is_leading = True
            self.notify(LeadershipStarted(self._name, self.holder, term.lease.fencing_token))
            self._notice(self.holder)
        if term.is_leading:
            self.intents.discard("take_over")
        due = min(term.renews_at, term.trusted_until)
        yield Wait(due if term.is_leading else min(due, term.leads_from))
        if "stop" not in self.intents and not self.is_resigning():
            yield from self._renew_if_due(term)

    def _renew_if_due(self, term: Term) -> Program[Command, Any, None]:
        requested_at = self.clock()
        if not term.renews_at <= requested_at < term.trusted_until:
            return
        term.renews_at = requested_at + self._retry
        seconds = min(self._reply_timeout, term.trusted_until - requested_at)
        try:
            extended = yield Do("extend", (term.lease, self.settings.durations.lease_duration), seconds)
        except Exception as error:  # of any kind, because it must not end the election
            self.notify(ProviderFailed(self._name, "extend", error))
            return
        if extended is None:
            self._end(term, "revoked")
        elif extended is not PENDING:
            term.trusted_until = requested_at + self._deadline
            if term.is_leading:
                self.renewed()

    def _end(self, term: Term, reason: StopReason) -> None:
        """Stop leading without a release: the lease is lost, or is left to expire."""
        self.term, self._lost = None, term.lease
        term.lease._lose()
        if term.is_leading:
            self.notify(LeadershipStopped(self._name, self.holder, term.lease.fencing_token, reason))

    def _resign(self, term: Term) -> Program[Command, Any, None]:
        """Release the lease, but only when the callbacks have returned: two leaders must not work at once."""
        if term.is_leading:
            term.is_leading = False
            self.notify(LeadershipStopped(self._name, self.holder, term.lease.fencing_token, "resigned"))
        while self.is_busy() and self.clock() < term.trusted_until:
            yield Wait(min(term.renews_at, term.trusted_until))
            yield from self._renew_if_due(term)
            if self.term is None:
                return
        self.term = None
        self._rest_from(self.clock())
        # The store was unreachable for too long. Or this node has never led, and the previous leader may still trust
        # its lease.
        if self.is_busy() or self.clock() < term.leads_from:
            term.lease._lose()  # so it expires
            self._rest_from(self._expires_at(term))
            return
        try:
            released = yield Do("release", (term.lease,), self._lease_seconds)
        except Exception as error:
            self.notify(ProviderFailed(self._name, "release", error))
            self._rest_from(self._expires_at(term))
        else:
            if released is PENDING:
                self._rest_from(self._expires_at(term))

    def _rest_from(self, moment: float) -> None:
        """Be no candidate for two retry periods after the lease has become free, so that another node can lead."""
        self._rests_until = max(self._rests_until, moment + 2 * self._retry)

    def _expires_at(self, term: Term) -> float:
        """Return when the lease of ``term`` ends if it is not released, by this node's clock."""
        return term.trusted_until - self._deadline + self._lease_seconds

    # Following

    def _follow(self) -> Program[Command, Any, None]:
        """Do one step of a follower: read the record, and acquire the lease if it is free."""
        try:
            if "take_over" in self.intents:
                yield from self._observe()
                if self._may_acquire():
                    yield from self._acquire()
                if self.term is None:
                    yield from self._take_by_force(self._deadline)
                self.intents.discard("take_over")  # try once: two nodes that keep taking over would leave no leader
                return
            yield from self._observe()  # even while it rests: it may have been demoted while it resigned
            self._failures = 0
            if self.clock() < self._rests_until:
                yield Wait(min(self.clock() + self._pause(), self._rests_until))
                return
            if self._may_acquire():
                yield from self._acquire()
            elif self.observation.is_overdue():
                # The store's clock was set back, so it would keep the lease of the dead leader for too long.
                yield from self._take_by_force(self._lease_seconds)
            if self.term is None:
                yield Wait(self.clock() + self._pause())
        except Exception as error:
            operation = error.operation if isinstance(error, ProviderError) else "acquire"
            self.notify(ProviderFailed(self._name, operation, error))
            self._failures += 1
            longest = min(self._retry * 2.0 ** min(self._failures, 20), self._lease_seconds)
            yield Wait(self.clock() + longest * self._between(0.5, 1))

    def _observe(self) -> Program[Command, Any, None]:
        """Read the record, and react to a new leader or a demotion."""
        requested_at = self.clock()
        before = self.observation.record
        record: LockRecord | None = yield Do("record", (self._name,))
        self.observation.update(record, requested_at)
        lost = self._lost
        if lost is not None and not (record is not None and record.is_held and record.locked_by == lost.locked_by):
            self._lost = None
            with suppress(Exception):  # the store does not have this lease any more: this ends its run in history
                yield Do("release", (lost,), self._reply_timeout)
        if record is None or not record.is_held or record.is_paused:
            return
        demotion = Demotion.from_record(record)
        if demotion is None:
            self._notice(record.holder)
        elif before is None or before.locked_by != record.locked_by:
            cooldown = demotion.cooldown_of(self.holder).total_seconds()
            self._rests_until = max(self._rests_until, self.clock() + cooldown)

    def _may_acquire(self) -> bool:
        return self.observation.is_free() and self.clock() >= self._rests_until

    def _acquire(self) -> Program[Command, Any, None]:
        """Try to acquire the lease that was observed to be free."""
        requested_at = self.clock()
        lease: Lease | None = yield Do("acquire", (self._request,))
        if lease is None:
            return
        if self.settings.takeover == "expired":
            self._begin(lease, requested_at, leads_from=requested_at)
            return
        # Another node may have acquired the lease since the last read, and a jump of the store's clock may have ended
        # it. So wait for that node's trust to end. The wait is not needed if, by both clocks, this lease followed the
        # observed lease too soon for another lease in between.
        term = self._begin(lease, requested_at, leads_from=self.clock() + self._deadline * DRIFT_FACTOR)
        if not self.observation.is_recent():
            return
        try:
            record = yield Do("record", (self._name,), min(self._reply_timeout, self._retry))
        except Exception as error:  # treated like no reply: the node has a lease, which it must renew
            self.notify(ProviderFailed(self._name, "record", error))
            return
        if record is not PENDING and self.observation.precedes(lease, record):
            term.leads_from = max(requested_at, self.observation.former_trust_ends())

    def _take_by_force(self, seconds: float) -> Program[Command, Any, None]:
        """Take the lease, and lead ``seconds`` later, when the previous leader has stopped trusting it."""
        requested_at = self.clock()
        lease: Lease = yield Do("take_over", (self._request,))
        # The previous leader may have renewed until the take-over itself, so its trust counts from now.
        self._begin(lease, requested_at, leads_from=self.clock() + seconds * DRIFT_FACTOR)

    def _begin(self, lease: Lease, requested_at: float, leads_from: float) -> Term:
        self.term = term = Term(lease, requested_at + self._deadline, requested_at + self._retry, leads_from)
        return term

    def _pause(self) -> float:
        """Return the seconds until the next read: soon after a clean exit, and right after the lease has ended."""
        pause = self._retry * self._between(1, JITTER)
        record = self.observation.record
        if record is not None and record.is_held and self.settings.takeover == "expired":
            pause = min(pause, record.remaining.total_seconds() + self._between(0, JITTER - 1) * self._retry)
        return pause

    def _between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def _notice(self, holder: str) -> None:
        if holder != self._leader:
            self._leader = holder
            self.notify(LeaderChanged(self._name, holder))
