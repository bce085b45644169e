"""What happened to a lock, told to listeners.

A listener is any callable that takes one event. It is called in the thread or task where the event happened, so it
should be quick; one that raises, whatever it raises, is logged and changes nothing else. Ctrl-C, and what a signal's
handler raises, is raised again when all listeners were notified.

Each time a lock is asked for there is exactly one of ``LockAcquired``, ``LockSkipped`` and ``ProviderFailed`` (with the
operation "acquire"); none if the caller was cancelled meanwhile. After ``LockAcquired`` there is exactly one
``TaskFinished``, and then what became of the lease: ``LockReleased``, ``LeaseLost``, or ``ProviderFailed`` with the
operation "release". A lease may be lost, and is told so once, before its task has finished. A guard inside of its own
live lease asks nothing and tells nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Self

from shedlock_py._values import Value
from shedlock_py.lease import Lease

logger = logging.getLogger("shedlock_py")

SkipReason = Literal["held", "already_ran", "provider_error", "shutting_down", "not_leader"]
"""Why a task did not run: the lock was held; its fire time had run; the store failed and the caller chose to skip; this
process got SIGTERM (``release_on_sigterm``); this node does not lead."""

LostReason = Literal["overrun", "revoked", "unreachable"]
"""How a lease was lost: the task outlived it; somebody took it over or freed it by force; it was to be kept alive, but
the store did not answer for too long."""

StopReason = Literal["resigned", "revoked", "unreachable"]
"""Why a leadership ended: on purpose; taken over or demoted; the store did not answer in time."""

Outcome = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True, eq=False, repr=False)
class Event(Value):
    """Base of all events."""


@dataclass(frozen=True, eq=False, repr=False)
class LockEvent(Event):
    """Base of all events about one lock."""

    lock_name: str

    @property
    def template(self) -> str | None:
        """What ``lock_name`` was filled from, such as "sync-{tenant}"; None if it was given as it is."""
        return getattr(getattr(self, "lease", None), "template", None) or self.__dict__.get("_template")

    def filled_from(self, template: str | None) -> Self:
        """This event, of a lock name that was filled from ``template``; for events that have no lease."""
        self.__dict__["_template"] = template  # no field: events are compared and shown by what happened
        return self


@dataclass(frozen=True, eq=False, repr=False)
class ElectionEvent(Event):
    """Base of all events about one leader election."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class LockAcquired(LockEvent):
    """The lock was granted; the task runs now. ``elapsed`` is how long asking took."""

    lease: Lease
    elapsed: timedelta


@dataclass(frozen=True, eq=False, repr=False)
class LockSkipped(LockEvent):
    """The task does not run, as it should be; mostly because the lock is held elsewhere.

    ``elapsed`` is how long asking took, zero if the store was not asked ("shutting_down", "not_leader").
    """

    reason: SkipReason
    elapsed: timedelta


@dataclass(frozen=True, eq=False, repr=False)
class LockReleased(LockEvent):
    """The lease was given back. ``held_for`` counts from the grant."""

    lease: Lease
    held_for: timedelta


@dataclass(frozen=True, eq=False, repr=False)
class LockExtended(LockEvent):
    """The lease was extended, on purpose or by keep-alive."""

    lease: Lease


@dataclass(frozen=True, eq=False, repr=False)
class LeaseLost(LockEvent):
    """The lease ended before its task did; another replica may be running it."""

    lease: Lease
    reason: LostReason


@dataclass(frozen=True, eq=False, repr=False)
class ProviderFailed(LockEvent):
    """The store failed at ``operation``. At "acquire" the task did not run; at "release" it did.

    In elections ``lock_name`` is the election's name.
    """

    operation: str
    error: Exception
    lease: Lease | None = None
    """Which lease was to be extended or released; None at "acquire" and in elections."""


@dataclass(frozen=True, eq=False, repr=False)
class TaskFinished(LockEvent):
    """The guarded task ended, well or not; ``error`` is what it raised."""

    lease: Lease
    duration: timedelta
    outcome: Outcome
    error: BaseException | None


@dataclass(frozen=True, eq=False, repr=False)
class LeadershipStarted(ElectionEvent):
    """This node leads now. ``term`` is the fencing token."""

    holder: str
    term: int | None


@dataclass(frozen=True, eq=False, repr=False)
class LeadershipStopped(ElectionEvent):
    """This node does not lead any more; what it does as the leader must stop."""

    holder: str
    term: int | None
    reason: StopReason


@dataclass(frozen=True, eq=False, repr=False)
class LeaderChanged(ElectionEvent):
    """Another node leads, as far as this one has seen; or this one itself."""

    holder: str


Listener = Callable[[Event], None]


def notify(
    listeners: Iterable[Listener],
    event: Event,
    is_interruption: Callable[[BaseException], bool] = lambda error: isinstance(error, KeyboardInterrupt),
) -> None:
    """Notify every listener. One that raises is logged, whatever it raises, and changes nothing else.

    :param is_interruption: whether an exception is a signal's (Ctrl-C) and not the listener's own. The first of these
        is raised when every listener was notified: it is meant for the process.
    """
    interruption: BaseException | None = None
    for listener in listeners:
        try:
            listener(event)
        except BaseException as error:  # sys.exit() too: it must not replace what the task returned or raised
            if not isinstance(error, Exception) and is_interruption(error):
                interruption = interruption or error
            else:
                logger.exception("listener %r failed on %r", listener, event)
    if interruption is not None:
        raise interruption


def log_listener(event: Event) -> None:
    """Writes every event to the logger ``shedlock_py``.

    ERROR: the store failed, so that a task did not run or its lock was not freed. WARNING: a lease or a leadership was
    lost, or the store failed at extending a lease or looking at a record, which is tried again. INFO: other news of
    elections. DEBUG: the rest.
    """
    if isinstance(event, _ROUTINE) and not logger.isEnabledFor(logging.DEBUG):
        return
    match event:
        case LeaseLost(lock_name, lease, "overrun"):
            logger.warning(
                "lock %r was lost: the task outlived its lease of %s, so another replica may have run it as well; "
                "raise lock_at_most_for above the longest run",
                lock_name,
                lease.lock_at_most_for,
            )
        case LeaseLost(lock_name, lease, "unreachable"):
            logger.warning(
                "lock %r was lost: the store has not answered for so long that another replica may get its lease of %s",
                lock_name,
                lease.lock_at_most_for,
            )
        case LeaseLost(lock_name):
            logger.warning("lock %r was lost: it was freed or taken over by force while the task ran", lock_name)
        case ProviderFailed(lock_name, operation, error):
            level = logging.WARNING if operation in ("extend", "record") else logging.ERROR
            logger.log(level, "lock %r: %s failed: %s", lock_name, operation, error)
        case LockSkipped(lock_name, reason):
            logger.debug("lock %r: task skipped (%s)", lock_name, reason)
        case LockAcquired(lock_name, lease):
            logger.debug("lock %r acquired: %r", lock_name, lease)
        case TaskFinished(lock_name, _, duration, outcome):
            logger.debug("lock %r: task %s after %s", lock_name, outcome, duration)
        case LeadershipStarted(name, holder, term):
            logger.info("election %r: %s leads, term %s", name, holder, term)
        case LeadershipStopped(name, holder, term, reason):
            level = logging.INFO if reason == "resigned" else logging.WARNING
            logger.log(level, "election %r: %s does not lead any more (%s), term %s", name, holder, reason, term)
        case LeaderChanged(name, holder):
            logger.info("election %r: the leader is %s", name, holder)
        case LockEvent(lock_name):
            logger.debug("lock %r: %s", lock_name, type(event).__name__)


_ROUTINE = (LockAcquired, LockSkipped, LockReleased, LockExtended, TaskFinished)
