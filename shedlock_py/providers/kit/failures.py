"""Failures of a command, and the errors for the caller."""

from __future__ import annotations

import enum
from datetime import timedelta

from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest

MOST_RETRIES = 5
"""The most retries of a command after a conflict with a concurrent command. One of the two always succeeds."""


class Failure(enum.Enum):
    """How a program must react to an error of the store."""

    CONFLICT = "undone by the store because of a concurrent command; a retry is safe and can succeed"
    CONNECTION_LOST = (
        "the connection broke, and the command may have been carried out; retried once, on a new connection"
    )
    SESSION_CLOSED = "the server ended the session, and is up: retried like a conflict, as the next session may end too"
    UNREACHABLE = "no reply, or one that will not change soon; the command may have been carried out"
    NOT_DONE = "no reply, or one that will not change soon; the command was certainly not carried out"
    REFUSED = "the store replied with an error; the command was not carried out"
    NOT_A_STORE_ERROR = "raised by something else, such as a signal handler; the command may have been carried out"


class NotSent(Exception):
    """Raised by a client ``from`` the driver's error: it got no connection, so it sent nothing.

    The kit passes the driver's error to ``classify``. It keeps REFUSED, treats SESSION_CLOSED as CONFLICT, and treats
    every other failure as NOT_DONE.
    """


class TimedOut(Exception):
    """Raised by a client when the time for the operation is over, ``from`` the driver's error if there is one.

    If a command was sent, the client must not use that connection again: the undo would be lost on it, too.

    :param waiting_for: for the message: "a free connection", "a connection", "a reply", "its earlier requests".
    :param sent: True if a byte of the command may have reached the store.
    """

    def __init__(self, waiting_for: str, *, sent: bool) -> None:
        super().__init__(f"no reply in time: waited for {waiting_for}")
        self.waiting_for = waiting_for
        self.sent = sent


class ErrorReply(Exception):
    """The store replied with an error, for clients that know what it means.

    :ivar failure: its meaning for the command.
    :ivar hint: how to correct it.
    """

    def __init__(self, message: str, failure: Failure = Failure.REFUSED, hint: str | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.hint = hint


class ConnectionLost(Exception):
    """The connection broke, or had no reply in time. The command may have been carried out."""


RETRIES = {
    Failure.CONFLICT: MOST_RETRIES,
    Failure.SESSION_CLOSED: MOST_RETRIES,
    Failure.CONNECTION_LOST: 1,  # a pooled connection may be older than the server, a new connection is not
}
OUTCOME_KNOWN = (Failure.CONFLICT, Failure.NOT_DONE, Failure.REFUSED)


def _describe(operation: str, lock_name: str | None, what: str) -> str:
    return f"{operation}: {what}" if lock_name is None else f"{operation} of lock {lock_name!r}: {what}"


def refused(operation: str, lock_name: str | None, what: str, *, hint: str | None = None) -> ProviderError:
    """Return the error for an operation if the store replied with an error, or with an impossible value."""
    message = _describe(operation, lock_name, what)
    return ProviderError(message, operation=operation, lock_name=lock_name, hint=hint)


def kept_changing(operation: str, lock_name: str) -> ProviderError:
    """Return the error for a record that other programs changed at each attempt."""
    return refused(operation, lock_name, "the record changed again and again; try once more")


def unreachable(operation: str, lock_name: str | None, what: str, *, hint: str | None = None) -> ProviderUnreachable:
    """Return the error for an operation if the store did not reply."""
    message = _describe(operation, lock_name, what)
    return ProviderUnreachable(message, operation=operation, lock_name=lock_name, hint=hint)


def require_same_name(name: str, expected: LockRecord | None) -> None:
    """:raises ConfigurationError: ``expected`` is the record of another lock."""
    if expected is not None and expected.name != name:
        raise ConfigurationError(f"lock {name!r}: expected is the record of another lock, {expected.name!r}")


def fire_time_too_late(operation: str, request: LockRequest, tolerance: timedelta) -> ProviderError:
    """Return the error for a fire time that is later than the store's clock allows.

    If the store granted it, every replica would skip its runs until that time.
    """
    return refused(
        operation,
        request.name,
        f"fire time {request.fire_time} is more than {tolerance} later than the store's clock",
        hint=f"correct the clock of this replica ({request.holder}), or open the provider with a larger "
        f"fire_time_tolerance",
    )
