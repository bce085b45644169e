"""One operation while it is carried out: what can go wrong, the retries, and whether its outcome is known."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable, hidden_frames
from shedlock_py.model.request import LockRequest
from shedlock_py.providers.kit.options import DEFAULT_TIMEOUT
from shedlock_py.runtime.program import Program

if TYPE_CHECKING:
    from shedlock_py.providers.kit.programs import StorePrograms

__tracebackhide__ = hidden_frames
T = TypeVar("T")

MOST_RETRIES = 5
"""The most retries of a command that the store undid because of a concurrent one: one of the two always succeeds."""


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
    """Raised by a client, ``from`` the driver's error: it got no connection, so it sent nothing.

    ``classify`` gets the driver's error. The kit keeps REFUSED, and treats SESSION_CLOSED as CONFLICT
    and all else as NOT_DONE.
    """


class TimedOut(Exception):
    """Raised by a client, ``from`` the driver's error if there is one: the time for the operation is over.

    If a command was sent, the client must not use that connection again: the undo would be lost on it as well.

    :param waiting_for: what the client waited for, for the message: "a free connection", "a connection", "a reply",
        "its earlier requests".
    :param sent: whether a byte of the command may have reached the store.
    """

    def __init__(self, waiting_for: str, *, sent: bool) -> None:
        super().__init__(f"no reply in time: waited for {waiting_for}")
        self.waiting_for = waiting_for
        self.sent = sent


_RETRIES = {
    Failure.CONFLICT: MOST_RETRIES,
    Failure.SESSION_CLOSED: MOST_RETRIES,
    Failure.CONNECTION_LOST: 1,  # a pooled connection may be older than the server; a new one is not
}
_OUTCOME_KNOWN = (Failure.CONFLICT, Failure.NOT_DONE, Failure.REFUSED)


@dataclass(frozen=True, slots=True)
class Undo:
    """A command that the provider itself carries out: this program, in the background if the time is over.

    The provider does not begin it later than ``useful_for`` seconds after it was made: the lease has ended by then.
    """

    program: Program[Any, Any, object]
    useful_for: float


class Operation:
    """Carries the programs of one operation out, with retries, and with errors that name the operation."""

    def __init__(self, programs: StorePrograms, name: str, lock_name: str | None) -> None:
        self._programs = programs
        self._name = name
        self._lock_name = lock_name
        self._until = programs.clock() + (programs.timeout or DEFAULT_TIMEOUT.total_seconds())
        self.was_repeated = False
        """A command was sent twice: the first copy may have been carried out, or may be so later."""
        self.has_written = False
        """A command that can grant a lock was sent."""
        self.is_in_doubt = False
        """The outcome of such a command was unknown once. The reply to its second copy need not settle that: where a
        record's version no longer matches, the first copy may have changed it."""

    def carry_out(self, program: Program[Any, Any, T]) -> Program[Any, Any, T]:
        """Pass the commands of ``program`` on, and the replies or errors back."""
        try:
            command = next(program)
            while True:
                try:
                    reply = yield from self._reply_to(command)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    command = program.throw(error)
                else:
                    command = program.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            program.close()

    def _reply_to(self, command: Any) -> Program[Any, Any, Any]:
        """Send ``command`` again where that is safe, and without history where that has failed."""
        failures: list[Failure] = []
        explained: BaseException | None = None
        history_error: Exception | None = None
        try:
            while True:
                is_write = self._programs.is_write(command)
                self.has_written = self.has_written or is_write
                try:
                    reply = yield command
                except GeneratorExit:
                    raise
                except BaseException as error:
                    failure = self._classify(error)
                    failures.append(failure)
                    self.is_in_doubt = self.is_in_doubt or (is_write and failure not in _OUTCOME_KNOWN)
                    may_retry = all(failures.count(each) <= _RETRIES.get(each, 0) for each in failures)
                    if may_retry and self._programs.clock() < self._until:
                        self.was_repeated = self.was_repeated or failure is not Failure.CONFLICT
                        continue
                    explained = self._explained(error, failure)
                    plain = self._plain(command, failure)
                    if plain is None or not isinstance(explained, Exception):
                        raise explained  # noqa: B904 (it has its cause)
                    self.was_repeated = self.was_repeated or failure not in _OUTCOME_KNOWN
                    command, history_error = plain, explained
                    failures.clear()
                    if failure is Failure.UNREACHABLE:  # perhaps because of history, also if the plain one fails
                        self._programs.rest_from_history()
                else:
                    if history_error is not None:  # the same command without history has succeeded
                        self._programs.history_failed(history_error)
                    return reply
        finally:
            # An exception that goes on must not refer to itself through this frame: only the garbage collector would
            # delete it, and a pool waits for the deletion of a slot that a signal handler's exception has taken out.
            explained = history_error = None

    def _plain(self, command: Any, failure: Failure) -> Any:
        """The command to send in place of one that has failed, if there is time: the same without history."""
        is_in_time = self._programs.timeout is None or self._programs.clock() < self._until
        if failure is Failure.NOT_A_STORE_ERROR or not is_in_time:
            return None
        return self._programs.without_history(command, failure)

    def _classify(self, error: BaseException) -> Failure:
        match error:
            case TimedOut():
                return Failure.UNREACHABLE if error.sent else Failure.NOT_DONE
            case NotSent(__cause__=Exception() as cause):
                why = self._programs.classify(cause)
                if why is Failure.SESSION_CLOSED:
                    return Failure.CONFLICT
                return Failure.REFUSED if why is Failure.REFUSED else Failure.NOT_DONE
            case ProviderUnreachable():
                return Failure.UNREACHABLE
            case ProviderError() | ConfigurationError():
                return Failure.REFUSED
            case Exception():
                return self._programs.classify(error)
        return Failure.NOT_A_STORE_ERROR

    def _explained(self, error: BaseException, failure: Failure) -> BaseException:
        """The error for the program, which raises it to the caller or does something about it."""
        is_for_caller = isinstance(error, ProviderError | ConfigurationError)
        if not isinstance(error, Exception) or failure is Failure.NOT_A_STORE_ERROR or is_for_caller:
            return error
        # The driver's own error, where the client has wrapped it.
        wrapped = error.__cause__ if isinstance(error, NotSent | TimedOut) else None
        cause = wrapped if isinstance(wrapped, Exception) else error
        if isinstance(error, TimedOut):
            explained = self._programs.explain_timeout(error, self._name, self._lock_name)
        else:
            explained = self._programs.explain(cause, failure, self._name, self._lock_name)
        explained.__cause__ = cause
        return explained


def describe(operation: str, lock_name: str | None, what: str) -> str:
    """The message of a :class:`ProviderError`: which operation on which lock, and what went wrong."""
    return f"{operation}: {what}" if lock_name is None else f"{operation} of lock {lock_name!r}: {what}"


def refused(operation: str, lock_name: str | None, what: str, *, hint: str | None = None) -> ProviderError:
    """The error for an operation to which the store replied with an error, or with something that cannot be."""
    message = describe(operation, lock_name, what)
    return ProviderError(message, operation=operation, lock_name=lock_name, hint=hint)


def kept_changing(operation: str, lock_name: str) -> ProviderError:
    """The error after the most tries at a record that other programs change each time."""
    return refused(operation, lock_name, "the record changed again and again; try once more")


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
        hint=f"correct the clock of this replica ({request.holder}), or open the provider with a larger "
        f"fire_time_tolerance",
    )
