"""One operation while it is carried out: the retries, the time limit, and whether its outcome is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from shedlock_py._program import Program, delegate
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.providers.kit.failures import Failure, NotSent, TimedOut
from shedlock_py.providers.kit.options import DEFAULT_TIMEOUT

if TYPE_CHECKING:
    from shedlock_py.providers.kit.programs import StorePrograms

T = TypeVar("T")

MOST_RETRIES = 5
"""Of a command that the store undid because of a concurrent one: one of the two always succeeds."""

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
        """The outcome of such a command is unknown."""

    def carry_out(self, program: Program[Any, Any, T]) -> Program[Any, Any, T]:
        """Pass the commands of ``program`` on, and retry each where that is safe."""
        return delegate(program, self._request)

    def _request(self, command: Any) -> Program[Any, Any, Any]:
        is_write = self._programs.is_write(command)
        failures: dict[Failure, int] = {}
        while True:
            self.has_written = self.has_written or is_write
            try:
                reply = yield command
            except GeneratorExit:
                raise
            except BaseException as error:
                failure = self._classify(error)
                failures[failure] = failures.get(failure, 0) + 1
                self.is_in_doubt = self.is_in_doubt or (is_write and failure not in _OUTCOME_KNOWN)
                if self._may_retry(failures):
                    self.was_repeated = self.was_repeated or failure is not Failure.CONFLICT
                    continue
                is_for_caller = isinstance(error, ProviderError | ConfigurationError)
                if not isinstance(error, Exception) or failure is Failure.NOT_A_STORE_ERROR or is_for_caller:
                    raise
                cause = _cause(error)
                if isinstance(error, TimedOut):
                    raise self._programs.explain_timeout(error, self._name, self._lock_name) from cause
                raise self._programs.explain(cause, failure, self._name, self._lock_name) from cause
            else:
                self.is_in_doubt = False
                return reply

    def _may_retry(self, failures: dict[Failure, int]) -> bool:
        """Whether a command that failed like this may be sent once more."""
        if self._programs.clock() >= self._until:
            return False
        return all(count <= _RETRIES.get(failure, 0) for failure, count in failures.items())

    def _classify(self, error: BaseException) -> Failure:
        if isinstance(error, TimedOut):
            return Failure.UNREACHABLE if error.sent else Failure.NOT_DONE
        if isinstance(error, NotSent) and isinstance(error.__cause__, Exception):
            why = self._programs.classify(error.__cause__)
            if why is Failure.SESSION_CLOSED:
                return Failure.CONFLICT
            return Failure.REFUSED if why is Failure.REFUSED else Failure.NOT_DONE
        if isinstance(error, ProviderUnreachable):
            return Failure.UNREACHABLE
        if isinstance(error, ProviderError | ConfigurationError):
            return Failure.REFUSED
        if not isinstance(error, Exception):
            return Failure.NOT_A_STORE_ERROR
        return self._programs.classify(error)


def _cause(error: Exception) -> Exception:
    """The driver's own error, where the client has wrapped it."""
    cause = error.__cause__ if isinstance(error, NotSent | TimedOut) else None
    return cause if isinstance(cause, Exception) else error
