"""Carries out one operation: retries, and whether the outcome is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable, hidden_frames
from shedlock_py.model.lease import Clock
from shedlock_py.model.text import one_line
from shedlock_py.providers.kit.failures import OUTCOME_KNOWN, RETRIES, Failure, NotSent, TimedOut, refused, unreachable
from shedlock_py.providers.kit.masking import Masking
from shedlock_py.providers.kit.options import DEFAULT_TIMEOUT
from shedlock_py.runtime.program import Program

__tracebackhide__ = hidden_frames
T = TypeVar("T")


class Policy(Protocol):
    """The meaning of a store's errors, and its time limit."""

    clock: Clock
    timeout: float | None
    masking: Masking

    def classify(self, error: Exception) -> Failure: ...

    def is_refusal(self, error: Exception, failure: Failure) -> bool: ...

    def text_of(self, error: Exception) -> str: ...

    def hint(self, error: Exception) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Undo:
    """A command that the provider itself carries out, in the background if the time is over.

    The provider does not start ``program`` later than ``useful_for`` seconds after the command was made: the lease has
    ended by then.
    """

    program: Program[Any, Any, object]
    useful_for: float


class Operation:
    """Carries out the programs of one operation, with retries. Errors name the operation."""

    def __init__(self, policy: Policy, name: str, lock_name: str | None) -> None:
        self._policy = policy
        self._name = name
        self._lock_name = lock_name
        self._until = policy.clock() + (policy.timeout or DEFAULT_TIMEOUT.total_seconds())
        self.was_repeated = False
        """A command was sent twice. The first copy may have been carried out, or may be carried out later."""
        self.has_written = False
        """A command that can grant a lock was sent."""
        self.has_reply = False
        """The store has replied to a command that can grant a lock."""
        self.is_in_doubt = False
        """The outcome of a command that can grant a lock was unknown once.

        The reply to the second copy does not always settle it: if the version of a record does not match any more, the
        first copy may have changed it.
        """

    def carry_out(self, program: Program[Any, Any, T]) -> Program[Any, Any, T]:
        """Pass on the commands of ``program``, repeat them if that is safe, and return the replies or errors to it."""
        failures: list[Failure] = []
        """Failures of the current command."""
        try:
            command = next(program)
            while True:
                can_grant = getattr(command, "can_grant", True)
                self.has_written = self.has_written or can_grant
                try:
                    reply = yield command
                except GeneratorExit:
                    raise
                except BaseException as error:
                    failures.append(self._classify(error))
                    self.is_in_doubt = self.is_in_doubt or (can_grant and failures[-1] not in OUTCOME_KNOWN)
                    if self._may_repeat(failures):
                        self.was_repeated = self.was_repeated or failures[-1] is not Failure.CONFLICT
                        continue
                    command = program.throw(self._explained(error, failures[-1]))
                else:
                    self.has_reply = self.has_reply or can_grant
                    command = program.send(reply)
                failures = []
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            program.close()

    def _may_repeat(self, failures: list[Failure]) -> bool:
        is_retried = all(failures.count(each) <= RETRIES.get(each, 0) for each in failures)
        return is_retried and self._policy.clock() < self._until

    def _classify(self, error: BaseException) -> Failure:
        match error:
            case TimedOut():
                return Failure.UNREACHABLE if error.sent else Failure.NOT_DONE
            case NotSent(__cause__=Exception() as cause):
                why = self._policy.classify(cause)
                if why is Failure.SESSION_CLOSED:
                    return Failure.CONFLICT
                return Failure.REFUSED if why is Failure.REFUSED else Failure.NOT_DONE
            case ProviderUnreachable():
                return Failure.UNREACHABLE
            case ProviderError() | ConfigurationError():
                return Failure.REFUSED
            case Exception():
                return self._policy.classify(error)
        return Failure.NOT_A_STORE_ERROR

    def _explained(self, error: BaseException, failure: Failure) -> BaseException:
        """Return the error for the program, which raises it to the caller or handles it."""
        is_for_caller = isinstance(error, ProviderError | ConfigurationError)
        if not isinstance(error, Exception) or failure is Failure.NOT_A_STORE_ERROR or is_for_caller:
            return error
        # Clients wrap the driver's error in NotSent or TimedOut.
        wrapped = error.__cause__ if isinstance(error, NotSent | TimedOut) else None
        cause = wrapped if isinstance(wrapped, Exception) else error
        policy = self._policy
        if isinstance(error, TimedOut):
            limit = "" if policy.timeout is None else f" of {policy.timeout:g} s (timeout)"
            driver = "" if cause is error else f" ({reason(policy, cause)})"
            what = f"no reply in the time limit{limit}: waited for {error.waiting_for}{driver}"
            explained: ProviderError = unreachable(self._name, self._lock_name, what)
        else:
            make = refused if policy.is_refusal(cause, failure) else unreachable
            explained = make(self._name, self._lock_name, reason(policy, cause), hint=policy.hint(cause))
        explained.__cause__ = cause
        return explained


def carry_out(
    policy: Policy, operation: str, lock_name: str | None, program: Program[Any, Any, T]
) -> Program[Any, Any, T]:
    """Carry out a program of the store, with retries. Errors name the ``operation``."""
    return Operation(policy, operation, lock_name).carry_out(program)


def reason(policy: Policy, error: Exception) -> str:
    """Return the driver's message for people: one line of at most 300 characters, without passwords."""
    text = one_line(policy.masking.masked(policy.text_of(error))) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"
