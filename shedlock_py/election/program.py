"""The election program: decides what one node requests from the store, and when. It neither waits nor does I/O.

A leader renews its lease every ``retry_period``. It trusts the lease until ``renew_deadline`` after it *sent* the last
renewal that the store has confirmed; the store keeps the lease for ``lease_duration``. Followers read the record as
often, and try to acquire the lease when it can have ended. :class:`~shedlock_py.LeaderElector` describes the settings.

The clock and the random numbers are arguments, so that tests can simulate an election.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shedlock_py._program import Program
from shedlock_py.election.commands import PENDING, Command, Do, Intent, Wait
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
from shedlock_py.lease import Clock, Lease
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest, default_holder


@dataclass(slots=True)
class _Term:
    """The time for which a node has the lease."""

    lease: Lease
    trusted_until: float
    renews_at: float
    leads_from: float
    """When the former leader, if it was not seen to release its lease, has stopped trusting it."""
    is_leading: bool = False


class Election:
    """The state of one node in an election, and its program: :meth:`run`.

    Other methods may be called from any thread.

    :param random: returns random numbers from 0 to 1.
    :param notify: gets the events.
    :param renewed: called after each renewal of a leader.
    :param changed: called when a lease is lost.
    :param is_busy: whether callbacks of the leadership are still running.
    """

    def __init__(
        self,
        settings: ElectionSettings,
        clock: Clock,
        random: Callable[[], float],
        notify: Callable[[Event], None],
        renewed: Callable[[], None],
        changed: Callable[[], None],
        is_busy: Callable[[], bool],
    ) -> None:
        self.settings = settings
        self.holder = settings.holder or default_holder()
        self.observation = Observation(settings, clock)
        self.intents: set[Intent] = set()
        self.is_over = False
        """Whether the program has ended, for any reason. The node cannot lead any more."""
        self._clock = clock
        self._random = random
        self._notify = notify
        self._renewed = renewed
        self._changed = changed
        self._is_busy = is_busy
        self._lease_seconds = settings.lease_duration.total_seconds()
        self._retry = settings.retry_period.total_seconds()
        self._deadline = settings.renew_deadline.total_seconds()
        self._reply_timeout = max(self._lease_seconds / 6, 0.001)
        self._term: _Term | None = None
        self._failures = 0
        self._rests_until = float("-inf")
        self._leader: str | None = None

    def is_leader(self) -> bool:
        """Whether this node leads, computed from the clock: a stalled thread cannot leave an outdated flag behind.

        False as soon as the node is to resign or to stop, although it still keeps its lease for a while.
        """
        term = self._term
        return (
            term is not None
            and term.is_leading
            and not self.intents & {"stop", "resign"}
            and self._clock() < term.trusted_until
        )

    def may_lead(self) -> bool:
        """Whether this node can still become the leader."""
        return not self.is_over and "stop" not in self.intents

    def is_taking_over(self) -> bool:
        """Whether this node may yet lead because of a ``take_over()``."""
        term = self._term
        return "take_over" in self.intents or (term is not None and not term.is_leading)

    @property
    def lease(self) -> Lease | None:
        """The lease of this node, which may lead or be about to."""
        term = self._term
        return None if term is None else term.lease

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of the leadership; None while this node does not lead."""
        lease = self.lease
        return lease.fencing_token if lease is not None and self.is_leader() else None

    def run(self) -> Program[Command, Any, None]:
        """Take part in the election until the node is to stop."""
        while True:
            if self._term is not None:
                yield from self._keep(self._term)
            elif "stop" in self.intents:
                return
            else:
                self.intents.discard("resign")
                yield from self._follow()

    def give_up(self) -> None:
        """End the leadership of a program that has failed. The lease is left to expire."""
        if self._term is not None:
            self._end(self._term, "unreachable")

    def abandon(self) -> None:
        """End the leadership without an event, because the event loop that carried the program out was closed."""
        term, self._term = self._term, None
        if term is not None:
            term.lease.lose()

    # Leading

    def _keep(self, term: _Term) -> Program[Command, Any, None]:
        """One step of a node that has the lease: renew it, begin to lead, or resign."""
        if self.intents & {"stop", "resign"}:
            yield from self._resign(term)
            return
        now = self._clock()
        if now >= term.trusted_until:
            self._end(term, "unreachable")
            return
        if now >= term.leads_from and not term.is_leading:
            term.is_leading = True
            self._notify(LeadershipStarted(self.settings.name, self.holder, term.lease.fencing_token))
            self._notice(self.holder)
        if term.is_leading:
            self.intents.discard("take_over")
        due = min(term.renews_at, term.trusted_until)
        yield Wait(due if term.is_leading else min(due, term.leads_from))
        if not self.intents & {"stop", "resign"}:
            yield from self._renew_if_due(term)

    def _renew_if_due(self, term: _Term) -> Program[Command, Any, None]:
        requested_at = self._clock()
        if not term.renews_at <= requested_at < term.trusted_until:
            return
        term.renews_at = requested_at + self._retry
        seconds = min(self._reply_timeout, term.trusted_until - requested_at)
        try:
            extended = yield Do("extend", (term.lease, self.settings.lease_duration), seconds)
        except Exception as error:  # of any kind: it must not end the election
            self._notify(ProviderFailed(self.settings.name, "extend", error))
            return
        if extended is None:
            self._end(term, "revoked")
        elif extended is not PENDING:
            term.trusted_until = requested_at + self._deadline
            if term.is_leading:
                self._renewed()

    def _end(self, term: _Term, reason: StopReason) -> None:
        """Stop leading without a release: the lease is lost, or is left to expire."""
        self._term = None
        term.lease.lose()
        self._changed()
        if term.is_leading:
            self._notify(LeadershipStopped(self.settings.name, self.holder, term.lease.fencing_token, reason))

    def _resign(self, term: _Term) -> Program[Command, Any, None]:
        """Release the lease, but only when the callbacks have returned: two leaders must not work at once."""
        if term.is_leading:
            term.is_leading = False
            self._notify(LeadershipStopped(self.settings.name, self.holder, term.lease.fencing_token, "resigned"))
        while self._is_busy() and self._clock() < term.trusted_until:
            yield Wait(min(term.renews_at, term.trusted_until))
            yield from self._renew_if_due(term)
            if self._term is None:
                return
        self._term = None
        self._rests_until = self._clock() + 2 * self._retry  # so that another node can lead
        if self._is_busy():  # the store was away for too long, so the lease expires
            term.lease.lose()
            return
        try:
            yield Do("release", (term.lease,), self._lease_seconds)
        except Exception as error:
            self._notify(ProviderFailed(self.settings.name, "release", error))

    # Following

    def _follow(self) -> Program[Command, Any, None]:
        """One step of a follower: read the record, and acquire the lease if it is free."""
        try:
            if "take_over" in self.intents:
                yield from self._take_over()
                return
            if self._is_resting():
                yield Wait(self._rests_until)
                return
            yield from self._observe()
            self._failures = 0
            if self._may_acquire():
                yield from self._acquire()
            elif self.observation.is_overdue():
                # The store's clock was set back, so it would keep the lease of the dead leader for too long.
                yield from self._take_by_force(self._lease_seconds)
            if self._term is None:
                yield Wait(self._clock() + self._pause())
        except Exception as error:
            operation = error.operation if isinstance(error, ProviderError) else "acquire"
            self._notify(ProviderFailed(self.settings.name, operation, error))
            self._failures += 1
            longest = min(self._retry * 2.0 ** min(self._failures, 20), self._lease_seconds)
            yield Wait(self._clock() + longest * self._between(0.5, 1))

    def _take_over(self) -> Program[Command, Any, None]:
        """Acquire the lease, by force if another node leads."""
        yield from self._observe()
        if self._may_acquire():
            yield from self._acquire()
        if self._term is None:
            yield from self._take_by_force(self._deadline)
        self.intents.discard("take_over")  # try once: two nodes that keep taking over would leave no leader

    def _observe(self) -> Program[Command, Any, None]:
        """Read the record, and react to a new leader or a demotion."""
        requested_at = self._clock()
        before = self.observation.record
        record: LockRecord | None = yield Do("record", (self.settings.name,))
        self.observation.update(record, requested_at)
        if record is None or not record.is_held:
            return
        demotion = Demotion.from_record(record)
        if demotion is None:
            self._notice(record.holder)
        elif before is None or before.locked_by != record.locked_by:
            self._rests_until = self._clock() + demotion.cooldown_of(self.holder).total_seconds()

    def _is_resting(self) -> bool:
        return self._clock() < self._rests_until

    def _may_acquire(self) -> bool:
        return self.observation.is_free() and not self._is_resting()

    def _acquire(self) -> Program[Command, Any, None]:
        """Try to acquire the lease that was observed to be free."""
        requested_at = self._clock()
        lease: Lease | None = yield Do("acquire", (self._request(),))
        if lease is None:
            return
        if self.settings.takeover == "expired":
            self._begin(lease, requested_at, leads_from=requested_at)
            return
        # Another node may have acquired the lease since the last read, and a jump of the store's clock have ended it.
        term = self._begin(lease, requested_at, leads_from=self._clock() + self._deadline * DRIFT_FACTOR)
        if (yield from self._has_replaced_observed(lease)):
            term.leads_from = requested_at

    def _has_replaced_observed(self, lease: Lease) -> Program[Command, Any, bool]:
        """Whether ``lease`` followed the observed one too soon, by both clocks, for another lease in between."""
        if not self.observation.is_recent():
            return False
        try:
            record = yield Do("record", (self.settings.name,), min(self._reply_timeout, self._retry))
        except Exception as error:  # treated like no reply: the node has a lease, which it must renew
            self._notify(ProviderFailed(self.settings.name, "record", error))
            return False
        return record is not PENDING and self.observation.precedes(lease, record)

    def _take_by_force(self, seconds: float) -> Program[Command, Any, None]:
        """Take the lease, and lead ``seconds`` later, when the former leader has stopped trusting it."""
        requested_at = self._clock()
        lease: Lease = yield Do("take_over", (self._request(),))
        # The former leader may have renewed until the take-over itself, so its trust counts from now.
        self._begin(lease, requested_at, leads_from=self._clock() + seconds * DRIFT_FACTOR)

    def _begin(self, lease: Lease, requested_at: float, leads_from: float) -> _Term:
        self._term = term = _Term(lease, requested_at + self._deadline, requested_at + self._retry, leads_from)
        return term

    def _request(self) -> LockRequest:
        return LockRequest(self.settings.name, self.settings.lease_duration, holder=self.holder)

    def _pause(self) -> float:
        """Seconds until the next read: soon after a clean exit, and right after the lease has ended."""
        pause = self._retry * self._between(1, JITTER)
        record = self.observation.record
        if record is not None and record.is_held and self.settings.takeover == "expired":
            pause = min(pause, record.remaining.total_seconds() + self._between(0, JITTER - 1) * self._retry)
        return pause

    def _between(self, low: float, high: float) -> float:
        return low + (high - low) * self._random()

    def _notice(self, holder: str) -> None:
        if holder != self._leader:
            self._leader = holder
            self._notify(LeaderChanged(self.settings.name, holder))
