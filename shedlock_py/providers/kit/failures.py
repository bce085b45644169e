"""What can go wrong with a command, and the errors that callers get for it."""

from __future__ import annotations

import enum
from datetime import timedelta

from shedlock_py.errors import ProviderError, ProviderUnreachable
from shedlock_py.request import LockRequest


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
    """Raised by a client, ``from`` the driver's error: it got no connection, so it sent nothing."""


class TimedOut(Exception):
    """Raised by a client, ``from`` the driver's error if there is one: the time for the operation is over.

    :param waiting_for: what the client waited for, for the message: "a free connection", "a connection", "a reply".
    :param sent: whether a byte of the command may have reached the store.
    """

    def __init__(self, waiting_for: str, *, sent: bool) -> None:
        super().__init__(f"no reply in time: waited for {waiting_for}")
        self.waiting_for = waiting_for
        self.sent = sent


def describe(operation: str, lock_name: str | None, what: str) -> str:
    """The message of a :class:`ProviderError`: which operation on which lock, and what went wrong."""
    return f"{operation}: {what}" if lock_name is None else f"{operation} of lock {lock_name!r}: {what}"


def refused(operation: str, lock_name: str | None, what: str, *, hint: str | None = None) -> ProviderError:
    """The error for an operation to which the store replied with an error, or with something that cannot be."""
    message = describe(operation, lock_name, what)
    return ProviderError(message, operation=operation, lock_name=lock_name, hint=hint)


def unreachable(operation: str, lock_name: str | None, what: str, *, hint: str | None = None) -> ProviderUnreachable:
    """The error for an operation to which the store did not reply."""
    message = describe(operation, lock_name, what)
    return ProviderUnreachable(message, operation=operation, lock_name=lock_name, hint=hint)


def fire_time_too_late(operation: str, request: LockRequest, tolerance: timedelta) -> ProviderError:
    """The error for a fire time that is later than the store's clock allows.

    If the store granted it, every replica would skip its runs until that time has come.
    """
    return refused(
        operation,
        request.name,
        f"fire time {request.fire_time} is more than {tolerance} later than the store's clock",
        hint=f"set the clock of this replica ({request.holder}) right, or open the provider with a larger "
        f"fire_time_tolerance",
    )
