"""What happened to a lock, told to listeners.

A listener is any callable that takes one event. It is called in the thread or task where the event happened, so it
should be quick; one that raises is logged and changes nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from shedlock_py.rules import Lease

logger = logging.getLogger("shedlock_py")

SkipReason = Literal["held", "already_ran", "provider_error"]
"""Why a task did not run: the lock was held; its fire time had run; the store failed and the caller chose to skip."""

LostReason = Literal["overrun", "revoked", "unreachable"]
"""How a lease was lost: the task outlived it; somebody took it over or freed it by force; it was to be kept alive, but
the store did not answer for too long."""

Outcome = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class Event:
    """Base of all events about one lock."""

    lock_name: str


@dataclass(frozen=True)
class LockAcquired(Event):
    """The lock was granted; the task runs now. ``elapsed`` is how long asking took."""

    lease: Lease
    elapsed: timedelta


@dataclass(frozen=True)
class LockSkipped(Event):
    """The task does not run, as it should be: the lock is held elsewhere or this fire time has run."""

    reason: SkipReason
    elapsed: timedelta


@dataclass(frozen=True)
class LockReleased(Event):
    """The lease was given back. ``held_for`` counts from the grant."""

    lease: Lease
    held_for: timedelta


@dataclass(frozen=True)
class LockExtended(Event):
    """The lease was extended, on purpose or by keep-alive."""

    lease: Lease


@dataclass(frozen=True)
class LeaseLost(Event):
    """The lease ended before its task did; another replica may be running it."""

    lease: Lease
    reason: LostReason


@dataclass(frozen=True)
class ProviderFailed(Event):
    """The store failed at ``operation``. At "acquire" the task did not run; at "release" it did."""

    operation: str
    error: Exception


@dataclass(frozen=True)
class TaskFinished(Event):
    """The guarded task ended, well or not; ``error`` is what it raised."""

    lease: Lease
    duration: timedelta
    outcome: Outcome
    error: BaseException | None


Listener = Callable[[Event], None]


def notify(listeners: Iterable[Listener], event: Event) -> None:
    """Tell every listener. Never raises: one that fails is logged, and the next is told all the same."""
    for listener in listeners:
        try:
            listener(event)
        except Exception:
            logger.exception("listener %r failed on %s of lock %r", listener, type(event).__name__, event.lock_name)


def log_listener(event: Event) -> None:
    """Writes every event to the logger ``shedlock_py``: lost leases WARNING, a failing store ERROR, all else DEBUG."""
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
            logger.error("lock %r: %s failed: %s", lock_name, operation, error)
        case LockSkipped(lock_name, reason):
            logger.debug("lock %r: task skipped (%s)", lock_name, reason)
        case LockAcquired(lock_name, lease):
            logger.debug("lock %r acquired: %r", lock_name, lease)
        case TaskFinished(lock_name, _, duration, outcome):
            logger.debug("lock %r: task %s after %s", lock_name, outcome, duration)
        case _:
            logger.debug("lock %r: %s", event.lock_name, type(event).__name__)
