"""Events about locks and elections, and their listeners.

A listener is any callable that takes one event. It runs in the thread or task where the event happened, so it should be
quick. An exception in a listener is logged and changes nothing else. Ctrl-C, and any exception that a signal handler
raises, is raised again after all listeners were notified.

Each attempt to acquire a lock emits exactly one event: ``LockAcquired``, ``LockSkipped``, or ``ProviderFailed`` with
the operation "acquire". It emits no event if the caller was cancelled meanwhile. After ``LockAcquired`` comes exactly
one ``TaskFinished``, and then the end of the lease: ``LockReleased``, ``LeaseLost``, or ``ProviderFailed`` with the
operation "release". ``LeaseLost`` may come before ``TaskFinished``, and comes once. A guard inside its own live lease
sends no request and emits no event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Self

from shedlock_py.model.lease import Lease
from shedlock_py.model.text import one_line, printable

logger = logging.getLogger("shedlock_py")


def _on_one_line(record: logging.LogRecord) -> bool:
    """Escape control characters. A holder from the store must not begin a log line or move the cursor of a terminal."""
    with suppress(Exception):  # an exception without a working __str__: the handler reports it
        text = record.getMessage()
        if not text.isprintable():
            record.msg, record.args = printable(one_line(text)), None
    return True


logger.addFilter(_on_one_line)

SkipReason = Literal["held", "already_ran", "provider_error", "shutting_down", "not_leader"]
"""Why a task did not run.

- "held": another holder has the lock.
- "already_ran": its fire time has run.
- "provider_error": the store failed, and the caller chose to skip.
- "shutting_down": this process received SIGTERM (``release_on_sigterm``).
- "not_leader": this node is not the leader.
"""

LostReason = Literal["overrun", "revoked", "unreachable", "kept_too_long"]
"""How a lease was lost.

- "overrun": the task outlived it.
- "revoked": somebody took it over or freed it by force, or the store forgot it.
- "unreachable": keep-alive could not reach the store for too long.
- "kept_too_long": the task ran longer than ``keep_alive`` allows.
"""

StopReason = Literal["resigned", "revoked", "unreachable"]
"""Why a leadership ended.

- "resigned": on purpose.
- "revoked": it was taken over, demoted, or forgotten by the store.
- "contested": the store refused the fire time for two seconds, although no replica had it.
- "unreachable": the store was unreachable for too long.
"""

MissReason = Literal[
    "held",
    "contested",
    "unreachable",
    "cancelled",
    "no_room",
    "schedule_changed",
    "too_many_recoveries",
    "not_recoverable",
]
"""Why a due run did not happen, or did not end.

- "held": the run of an earlier fire time had the lock.
- "unreachable": the store was unreachable for too long.
- "cancelled": the run was cancelled, or its process shut down.
- "no_room": a run on time went first.
- "schedule_changed": the newest fire time is not of this schedule.
- "too_many_recoveries": each recovery ended without a release.
- "not_recoverable": the lock record does not say whether the run ended.
"""

OperatorAction = Literal["pause", "resume", "force_release", "demote", "prune"]
"""The actions of an operator on the page."""

Outcome = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True)
class LockEvent(Event):
    """Base of all events about one lock."""

    lock_name: str

    @property
    def template(self) -> str | None:
        """The template of ``lock_name``, such as "sync-{tenant}"; None if the name has no fields."""
        lease: Lease | None = getattr(self, "lease", None)
        return self.__dict__.get("_template") if lease is None else lease.template

    def filled_from(self, template: str | None) -> Self:
        """Add the template of the lock name to this event. Events with a lease need no call."""
        self.__dict__["_template"] = template  # not a field: it takes no part in comparisons, repr and asdict()
        return self


@dataclass(frozen=True)
class ElectionEvent(Event):
    """Base of all events about one leader election."""

    name: str


@dataclass(frozen=True)
class LockAcquired(LockEvent):
    """The lock was granted; the task runs now. ``elapsed`` is the duration of the acquire."""

    lease: Lease
    elapsed: timedelta


@dataclass(frozen=True)
class LockSkipped(LockEvent):
    """The task does not run, as intended; mostly because the lock is held elsewhere.

    ``elapsed`` is the duration of the acquire. It is zero if no request was sent ("shutting_down", "not_leader").

    """

    reason: SkipReason
    elapsed: timedelta


@dataclass(frozen=True)
class LockReleased(LockEvent):
    """The lease was released, ``held_for`` after the grant."""

    lease: Lease
    held_for: timedelta


@dataclass(frozen=True)
class LockExtended(LockEvent):
    """The task or keep-alive extended the lease."""

    lease: Lease


@dataclass(frozen=True)
class LeaseLost(LockEvent):
    """The lease ended before its task; another replica may be running the task."""

    lease: Lease
    reason: LostReason


@dataclass(frozen=True)
class ProviderFailed(LockEvent):
    """The store failed at ``operation``. At "acquire" the task did not run; at "release" it did.

    In elections ``lock_name`` is the election's name.

    """

    operation: str
    error: Exception
    lease: Lease | None = None
    """The lease that was to be extended or released; None at "acquire" and in elections.
"""


@dataclass(frozen=True)
class TaskFinished(LockEvent):
    """The guarded task ended. ``error`` is the exception that it raised, or None."""

    lease: Lease
    duration: timedelta
    outcome: Outcome
    error: BaseException | None


@dataclass(frozen=True)
class RunMissed(LockEvent):
    """A due run did not happen or did not end, and no replica is known to run it later."""

    fire_time: datetime | None
    reason: MissReason
    details: str = ""
    """More about the reason, for people to read."""


@dataclass(frozen=True)
class RunRecovered(LockEvent):
    """This replica runs a fire time again, because the run on another replica never ended (``recover=True``).

    It comes right after ``LockAcquired``.

    """

    lease: Lease
    fire_time: datetime | None
    former_holder: str
    recoveries: int
    """How often this fire time was recovered, including this time."""


@dataclass(frozen=True)
class OperatorActed(LockEvent):
    """An operator changed a lock on the page or in Django's admin. The process that serves the page emits it.

    ``lock_name`` is the name of the election for "demote", and empty for "prune".

    """

    action: OperatorAction
    by: str
    """The operator, as far as the page knows."""
    details: str
    """The change, for people to read."""


@dataclass(frozen=True)
class LeadershipStarted(ElectionEvent):
    """This node is the leader now. ``term`` is the fencing token."""

    holder: str
    term: int | None


@dataclass(frozen=True)
class LeadershipStopped(ElectionEvent):
    """This node is not the leader any more; its work as the leader must stop."""

    holder: str
    term: int | None
    reason: StopReason


@dataclass(frozen=True)
class LeaderChanged(ElectionEvent):
    """This node has observed a new leader, which may be itself."""

    holder: str


Listener = Callable[[Event], None]
"""A function that gets every event."""

_LOSSES: dict[LostReason, str] = {
    "overrun": "the task outlived its lease of {}, so another replica may have run it as well; raise lock_at_most_for "
    "above the longest run",
    "revoked": "while the task ran it was freed or taken over by force, or the store forgot it",
    "unreachable": "the store was unreachable for so long that another replica may get its lease of {}",
    "kept_too_long": "the task ran longer than keep_alive allows, so another replica may run it as well; it may hang",
}


MISSES: dict[MissReason, str] = {
    "held": "an earlier run had the lock: it goes on, its process died, or its release failed",
    "contested": "the store refused it for two seconds, although no replica had it: another replica may run it",
    "unreachable": "the store was unreachable for too long",
    "cancelled": "it was cancelled, or its process shut down",
    "no_room": "a run on time went first",
    "schedule_changed": "the newest fire time that ran is not of this schedule: the schedule was changed, or the job "
    "was run by hand",
    "too_many_recoveries": "each of its runs ended without a release (max_recoveries)",
    "not_recoverable": "its lock record does not say whether the run has ended",
}


def log_listener(event: Event) -> None:
    """Write an event to the logger ``shedlock_py``.

    - ERROR: the store failed, so that a lock was not freed, or a node could not lead.
    - WARNING: a lease, a leadership or a run was lost; a run was recovered; an operator changed a lock; or the store
      failed to extend a lease or to read a record, which is retried.
    - INFO: other events of elections.
    - DEBUG: all other events.

    """
    match event:
        case LockSkipped(lock_name, reason):
            logger.debug("lock %r: task skipped (%s)", lock_name, reason)
        case LockAcquired(lock_name, lease):
            logger.debug("lock %r acquired: %r", lock_name, lease)
        case TaskFinished(lock_name, _, duration, outcome):
            logger.debug("lock %r: task %s after %s", lock_name, outcome, duration)
        case LockReleased(lock_name) | LockExtended(lock_name):
            logger.debug("lock %r: %s", lock_name, type(event).__name__)
        case RunMissed(lock_name, fire_time, reason, details):
            run = "a run" if fire_time is None else f"the run of {fire_time.isoformat()}"
            more = f" ({details})" if details else ""
            what = "did not begin" if reason in ("held", "contested") else "is lost"
            logger.warning("lock %r: %s %s: %s%s", lock_name, run, what, MISSES[reason], more)
        case RunRecovered(lock_name, _, fire_time, former_holder, recoveries):
            run = "a run" if fire_time is None else f"the run of {fire_time.isoformat()}"
            message = "lock %r: %s by %s never ended, so it runs here again (recovery %d)"
            logger.warning(message, lock_name, run, former_holder, recoveries)
        case LeaseLost(lock_name, lease, reason):
            logger.warning("lock %r was lost: %s", lock_name, _LOSSES[reason].format(lease.lock_at_most_for))
        case ProviderFailed(lock_name, operation, error):
            level = logging.WARNING if operation in ("extend", "record") else logging.ERROR
            logger.log(level, "lock %r: %s failed: %s", lock_name, operation, error)
        case OperatorActed(lock_name, action, by, details):
            logger.warning("lock %r: %s by operator %s: %s", lock_name, action, by, details)
        case LeadershipStarted(name, holder, term):
            logger.info("election %r: %s leads, term %s", name, holder, term)
        case LeadershipStopped(name, holder, term, reason):
            level = logging.INFO if reason == "resigned" else logging.WARNING
            logger.log(level, "election %r: %s does not lead any more (%s), term %s", name, holder, reason, term)
        case LeaderChanged(name, holder):
            logger.info("election %r: the leader is %s", name, holder)
        case LockEvent(lock_name):  # an event class of the application
            logger.debug("lock %r: %s", lock_name, type(event).__name__)


DEBUG_EVENTS = (LockSkipped, LockAcquired, TaskFinished, LockReleased, LockExtended)
"""The events that are logged at DEBUG only."""


def log_raised(event: Event) -> None:
    """Log like :func:`log_listener`. The caller gets a failure as an exception, so log that at DEBUG."""
    if isinstance(event, ProviderFailed):
        logger.debug("lock %r: %s failed, and its caller gets the error", event.lock_name, event.operation)
