"""The one algorithm of leader election: a program that says what to ask the store, and when.

On the same lock record and with the same operations as everything else. It holds every decision and neither waits nor
does I/O; ``leader.py`` carries it out in threads and on the event loop.

Who leads renews its lease every ``retry_period``, and believes in it until ``renew_deadline`` after it *sent* the last
renewal that the store has confirmed; the store keeps it for ``lease_duration``. Followers look as often, and try when
the lease can have ended. ``LeaderElector`` describes the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from shedlock_py._program import Program
from shedlock_py.durations import Duration, in_milliseconds, parse_duration
from shedlock_py.errors import ConfigurationError, ProviderError
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
from shedlock_py.request import LONGEST_HOLDER, SLACK, LockRequest, default_holder, validate_holder, validate_name

Takeover = Literal["expired", "observed"]
Wish = Literal["stop", "resign", "take_over"]

LEADER_TRUST_MARGIN = 0.1
"""The part of a lease that a leader does not believe: more than elsewhere, for what it does in the name of all."""
CAUTION = 1 + LEADER_TRUST_MARGIN / 10
"""Who has to wait until another cannot believe any more waits this much longer: clocks do not run quite alike."""
JITTER = 1.2
"""Followers wait up to this much longer, so that they do not all ask at once."""
NOBODY = "demoted"
"""What the holder of a record begins with that keeps a name free of leaders for a while."""


@dataclass(frozen=True, slots=True)
class Do:
    """A command: carry out an operation of the provider. The reply is its result, or PENDING after ``seconds``."""

    operation: str
    args: tuple[Any, ...]
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A command: wait until that moment, until something is wished, or until a callback has ended."""

    until: float


class Pending:
    """The store has not answered yet."""


PENDING = Pending()
Command = Do | Wait


@dataclass(frozen=True)
class ElectionSettings:
    """The durations of one election, which must be the same on every node.

    :raises ConfigurationError: a leader could overlap its successor; the inequality that is broken is named.
    """

    name: str
    lease_duration: timedelta
    renew_deadline: timedelta
    retry_period: timedelta
    holder: str | None
    takeover: Takeover

    @classmethod
    def parsed(
        cls,
        name: str,
        lease_duration: Duration,
        renew_deadline: Duration,
        retry_period: Duration,
        holder: str | None,
        takeover: str,
    ) -> ElectionSettings:
        lease = parse_duration(lease_duration, "lease_duration")
        deadline = parse_duration(renew_deadline, "renew_deadline")
        retry = parse_duration(retry_period, "retry_period")
        believed = lease * (1 - LEADER_TRUST_MARGIN) - timedelta(seconds=SLACK)
        if deadline > believed:
            raise ConfigurationError(
                f"unsafe: renew_deadline ({deadline}) must not be longer than lease_duration × "
                f"{1 - LEADER_TRUST_MARGIN:.0%} - {SLACK * 1000:g} ms ({believed}), or a leader could still "
                "trust its lease when another is elected"
            )
        if retry * JITTER >= deadline:
            raise ConfigurationError(
                f"retry_period × {JITTER} ({retry * JITTER}) must be shorter than renew_deadline ({deadline}), or one "
                f"renewal that fails ends the leadership"
            )
        if takeover not in ("expired", "observed"):
            raise ConfigurationError(f"takeover must be 'expired' or 'observed', not {takeover!r}")
        validated = None if holder is None else validate_holder(holder)
        rule: Takeover = "observed" if takeover == "observed" else "expired"
        return cls(validate_name(name), lease, deadline, retry, validated, rule)


class Election:
    """What one node knows of an election and does in it.

    ``tell`` gets events; ``renewed`` is called when the lease was, ``changed`` when it is gone; ``is_busy`` says
    whether the leader's work goes on.

    :meth:`run` is the program. Everything else is safe to call from anywhere.
    """

    def __init__(
        self,
        settings: ElectionSettings,
        clock: Clock,
        tell: Callable[[Event], None],
        renewed: Callable[[], None],
        changed: Callable[[], None],
        is_busy: Callable[[], bool],
    ) -> None:
        self.settings = settings
        self.holder = settings.holder or default_holder()
        self.wishes: set[Wish] = set()
        self.is_over = False
        """Whether the program has ended, for whatever reason: it never leads again."""
        self.lease: Lease | None = None
        self._clock = clock
        self._tell = tell
        self._renewed = renewed
        self._changed = changed
        self._is_busy = is_busy
        self._lease_seconds = settings.lease_duration.total_seconds()
        self._retry = settings.retry_period.total_seconds()
        self._deadline = settings.renew_deadline.total_seconds()
        self._patience = max(self._lease_seconds / 6, 0.001)
        self._is_leading = False
        self._believes_until = self._leads_from = float("-inf")
        self._renews_at = 0.0
        self._failures = 0
        self._rests_until = float("-inf")
        self._leader: str | None = None
        self._seen: LockRecord | None = None
        self._asked_at = self._seen_at = self._unchanged_since = 0.0

    def is_leader(self) -> bool:
        """Computed from the clock on each question, never a flag that a stalled thread forgets to clear.

        False from the moment that the node wishes to resign or to stop, however long it keeps its lease for that.
        """
        return (
            self._is_leading
            and "stop" not in self.wishes
            and "resign" not in self.wishes
            and self._clock() < self._believes_until
        )

    def may_lead(self) -> bool:
        """Whether this node can still become the leader."""
        return not self.is_over and "stop" not in self.wishes

    @property
    def term(self) -> int | None:
        lease = self.lease
        return lease.fencing_token if lease is not None and self.is_leader() else None

    # The program

    def run(self) -> Program[Command, Any, None]:
        while True:
            if self.lease is not None:
                yield from self._hold_office(self.lease)
            elif "stop" in self.wishes:
                return
            else:
                self.wishes.discard("resign")
                yield from self._follow()

    def give_up(self) -> None:
        """The program has failed. The lease ends by itself, and nobody may believe in it until then."""
        if self.lease is not None:
            self._step_down(self.lease, "unreachable")

    def forget(self) -> None:
        """As :meth:`give_up`, but without an event: of a program that nothing can be carried out for any more."""
        lease, self.lease, self._is_leading = self.lease, None, False
        if lease is not None:
            lease.lose()

    # Leading

    def _hold_office(self, lease: Lease) -> Program[Command, Any, None]:
        if self.wishes & {"stop", "resign"}:
            yield from self._hand_over(lease)
            return
        now = self._clock()
        if now >= self._believes_until:
            self._step_down(lease, "unreachable")
            return
        if now >= self._leads_from and not self._is_leading:
            self._is_leading = True
            self._tell(LeadershipStarted(self.settings.name, self.holder, lease.fencing_token))
            self._notice(self.holder)
        if self._is_leading:
            self.wishes.discard("take_over")
        due = min(self._renews_at, self._believes_until)
        yield Wait(due if self._is_leading else min(due, self._leads_from))
        if self._renews_at <= self._clock() < self._believes_until and not self.wishes & {"stop", "resign"}:
            yield from self._renew(lease)

    def _renew(self, lease: Lease) -> Program[Command, Any, None]:
        asked_at = self._clock()
        self._renews_at = asked_at + self._retry
        seconds = min(self._patience, self._believes_until - asked_at)
        try:
            extended = yield Do("extend", (lease, self.settings.lease_duration), seconds)
        except Exception as error:  # whatever it is: an election must not end because of it
            self._tell(ProviderFailed(self.settings.name, "extend", error))
            return
        if extended is None:
            self._step_down(lease, "revoked")
        elif extended is not PENDING:
            self._believes_until = asked_at + self._deadline
            if self._is_leading:
                self._renewed()

    def _step_down(self, lease: Lease, reason: StopReason) -> None:
        """Not the leader any more; the lease is left to end by itself, or is gone."""
        was_leading = self._is_leading
        self._is_leading = False
        self.lease = None
        lease.lose()
        self._changed()
        if was_leading:
            self._tell(LeadershipStopped(self.settings.name, self.holder, lease.fencing_token, reason))

    def _hand_over(self, lease: Lease) -> Program[Command, Any, None]:
        """Stop the work first, and only then let another begin: the reverse is two leaders at work."""
        if self._is_leading:
            self._is_leading = False
            self._tell(LeadershipStopped(self.settings.name, self.holder, lease.fencing_token, "resigned"))
        while self._is_busy() and self._clock() < self._believes_until:
            yield Wait(min(self._renews_at, self._believes_until))
            if self._renews_at <= self._clock() < self._believes_until:
                yield from self._renew(lease)
                if self.lease is None:
                    return
        self.lease = None
        self._rests_until = self._clock() + 2 * self._retry  # let another have it
        if self._is_busy():
            lease.lose()
            return  # the store was away for too long; the lease ends by itself, as for any leader that cannot renew
        try:
            yield Do("release", (lease,), self._lease_seconds)
        except Exception as error:
            self._tell(ProviderFailed(self.settings.name, "release", error))

    # Following

    def _follow(self) -> Program[Command, Any, None]:
        now = self._clock()
        try:
            if "take_over" in self.wishes:
                yield from self._take_over()
                return
            if now < self._rests_until:
                yield Wait(self._rests_until)
                return
            record = yield from self._look()
            self._failures = 0
            if self._is_free(record):
                yield from self._acquire(record)
            elif self._is_overdue():
                # The store's clock was set back: it would keep the dead leader's lease for longer than that lasts.
                yield from self._seize(self._lease_seconds)
            if self.lease is None:
                yield Wait(self._clock() + self._pause(record))
        except Exception as error:
            operation = error.operation if isinstance(error, ProviderError) else "acquire"
            self._tell(ProviderFailed(self.settings.name, operation, error))
            self._failures += 1
            longest = min(self._retry * 2.0 ** min(self._failures, 20), self._lease_seconds)
            yield Wait(self._clock() + longest * _between(0.5, 1))

    def _look(self) -> Program[Command, Any, LockRecord | None]:
        self._asked_at = self._clock()
        record: LockRecord | None = yield Do("record", (self.settings.name,))
        self._look_at(record)
        return record

    def _acquire(self, before: LockRecord | None) -> Program[Command, Any, None]:
        """Lead, if the store grants it, in the place of whoever ``before`` is of."""
        asked_at = self._clock()
        lease: Lease | None = yield Do("acquire", (self._request(),))
        if lease is None:
            return
        if self.settings.takeover == "expired":
            self._begin(lease, asked_at, leads_from=asked_at)
            return
        # Another may have acquired since we looked, and its lease have ended by a jump of the store's clock.
        self._begin(lease, asked_at, leads_from=self._clock() + self._deadline * CAUTION)
        if (yield from self._has_replaced(before, lease)):
            self._leads_from = asked_at

    def _has_replaced(self, before: LockRecord | None, lease: Lease) -> Program[Command, Any, bool]:
        """Whether ``lease`` came right after ``before``: by both clocks too soon for another lease to have ended."""
        if before is None or self._clock() - self._asked_at > self._retry:
            return False
        try:
            record = yield Do("record", (self.settings.name,), min(self._patience, self._retry))
        except Exception as error:  # in doubt, as if it had not been answered; the lease is there and wants renewing
            self._tell(ProviderFailed(self.settings.name, "record", error))
            return False
        return (
            isinstance(record, LockRecord)
            and record.locked_by == lease.locked_by
            and abs(record.locked_at - before.read_at) < self.settings.renew_deadline
        )

    def _take_over(self) -> Program[Command, Any, None]:
        """As it was wished: by force, if somebody leads."""
        record = yield from self._look()
        if self._is_free(record):
            yield from self._acquire(record)
        if self.lease is None:
            yield from self._seize(self._deadline)
        self.wishes.discard("take_over")  # once: two nodes that go on taking over leave nobody leading

    def _seize(self, seconds: float) -> Program[Command, Any, None]:
        """Take the lease by force, and lead when ``seconds`` later the former leader cannot believe any more."""
        asked_at = self._clock()
        lease: Lease = yield Do("take_over", (self._request(),))
        # Who led may have renewed until the take-over itself, so its belief counts from now.
        self._begin(lease, asked_at, leads_from=self._clock() + seconds * CAUTION)

    def is_seizing(self) -> bool:
        """Whether this node may yet lead because it was told to take over."""
        return "take_over" in self.wishes or (self.lease is not None and not self._is_leading)

    def _begin(self, lease: Lease, asked_at: float, leads_from: float) -> None:
        self.lease = lease
        self._believes_until = asked_at + self._deadline
        self._leads_from = leads_from
        self._renews_at = asked_at + self._retry

    def _request(self) -> LockRequest:
        return LockRequest(self.settings.name, self.settings.lease_duration, holder=self.holder)

    def _look_at(self, record: LockRecord | None) -> None:
        before, self._seen = self._seen, record
        passed = self._asked_at - self._seen_at
        self._seen_at = self._clock()
        if record is None or before != record:
            self._unchanged_since = self._seen_at
        if record is not None and record.is_held:
            cooldown = demotion_of(record, self.holder)
            if cooldown is None:
                self._notice(record.holder)
            elif before is None or before.locked_by != record.locked_by:
                self._rests_until = self._clock() + cooldown.total_seconds()
        if before is not None and record is not None and self._was_released(before, record, passed):
            self._unchanged_since = float("-inf")

    def _was_released(self, before: LockRecord, record: LockRecord, passed: float) -> bool:
        """Whether it was given back since the last look, at least ``passed`` seconds ago by our own clock.

        It was, if it ends earlier than it did; unless a jump of the store's clock has ended it.
        """
        jumped = (record.read_at - before.read_at).total_seconds() - passed
        return (
            not record.is_held
            and before.locked_by == record.locked_by
            and before.read_at <= record.lock_until < before.lock_until
            and jumped < self._lease_seconds - self._deadline
        )

    def _is_free(self, record: LockRecord | None) -> bool:
        if self._clock() < self._rests_until:
            return False
        if record is None:
            return True
        return not record.is_held and (self.settings.takeover == "expired" or self._is_overdue())

    def _is_overdue(self) -> bool:
        """Whether, for a whole lease on our own clock, whoever leads has not renewed."""
        return self.settings.takeover == "observed" and self._clock() - self._unchanged_since > self._lease_seconds

    def _pause(self, record: LockRecord | None) -> float:
        """Until the next look: a clean exit shall be seen soon, and the end of the lease at once."""
        pause = self._retry * _between(1, JITTER)
        if record is not None and record.is_held and self.settings.takeover == "expired":
            pause = min(pause, record.remaining.total_seconds() + _between(0, JITTER - 1) * self._retry)
        return pause

    def _notice(self, holder: str) -> None:
        if holder != self._leader:
            self._leader = holder
            self._tell(LeaderChanged(self.settings.name, holder))


# Demoting: a record that is held by nobody, for as long as the former leader may believe.


def _between(low: float, high: float) -> float:
    from random import SystemRandom  # late: with what it imports, half a millisecond

    return SystemRandom().uniform(low, high)  # the module's own goes on alike in all children that C has forked


def demotion(name: str, leader: str, cooldown: timedelta, renew_deadline: timedelta) -> LockRequest:
    """The request for it; ``leader`` is to rest for ``cooldown``."""
    return LockRequest(name, renew_deadline * CAUTION, holder=_told(in_milliseconds(cooldown), leader))


def _told(cooldown_ms: int, leader: str) -> str:
    return f"{NOBODY} {cooldown_ms}ms {leader}"[:LONGEST_HOLDER]


def demotion_of(record: LockRecord, holder: str) -> timedelta | None:
    """How long ``holder`` has to rest (perhaps not at all), if ``record`` is a demotion."""
    word, _, rest = record.holder.partition(" ")
    cooldown, _, _ = rest.partition("ms ")
    if word != NOBODY or not cooldown.isdecimal():
        return None
    is_told = record.holder == _told(int(cooldown), holder)
    return timedelta(milliseconds=int(cooldown)) if is_told else timedelta(0)


def leader_of(record: LockRecord | None) -> LockRecord | None:
    """``record``, if it says that somebody leads."""
    if record is None or not record.is_held or demotion_of(record, "") is not None:
        return None
    return record
