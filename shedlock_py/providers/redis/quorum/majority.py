"""Majorities: what most servers of a quorum have replied, and the errors when too few have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from shedlock_py._program import Program
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.providers.kit import refused, unreachable
from shedlock_py.providers.redis.quorum.broadcast import OnEach, QuorumCommand


class Majority:
    """A majority of ``size`` servers. Each reply to a broadcast is the result of a server, or its error."""

    def __init__(self, size: int) -> None:
        if size < 3 or size % 2 == 0:
            raise ConfigurationError(f"a quorum needs an odd number of servers, 3 or 5, not {size}")
        self.size = size
        self.count = size // 2 + 1

    def agrees(self, replies: Sequence[Any]) -> bool:
        """Whether a majority has the same result."""
        return max(Counter(results(replies)).values(), default=0) >= self.count

    def has_replied(self, replies: Sequence[Any]) -> bool:
        """Whether a majority has a result."""
        return len(results(replies)) >= self.count

    def may_have_done(self, replies: Sequence[Any]) -> bool:
        """Whether a majority may have done what the request says (1, not 0), counting the silent servers."""
        return replies.count(0) <= self.size - self.count

    def required(self, operation: str, lock_name: str | None, on_each: OnEach) -> Program[QuorumCommand, Any, Any]:
        """The replies to a broadcast.

        :raises ProviderError: no majority has a result.
        """
        replies: list[Any] = yield on_each
        if not self.has_replied(replies):
            errors = [reply for reply in replies if isinstance(reply, Exception)]
            raise self.error(operation, lock_name, errors) from errors[0]
        return replies

    def error(
        self, operation: str, lock_name: str | None, errors: Sequence[Exception], why: str | None = None
    ) -> Exception:
        """For too few results: a refusal is a mistake that will be there the next time, silence is not."""
        refusal = next(filter(is_refusal, errors), None)
        if isinstance(refusal, ConfigurationError):
            return refusal
        make = unreachable if refusal is None else refused
        return make(operation, lock_name, why or failures(errors, self.size))


def results(replies: Sequence[Any]) -> list[Any]:
    """The replies that are not errors."""
    return [reply for reply in replies if not isinstance(reply, Exception)]


def is_refusal(error: Exception) -> bool:
    """Whether a server replied with an error, or the client refused to send anything."""
    return isinstance(error, ProviderError | ConfigurationError) and not isinstance(error, ProviderUnreachable)


def failures(errors: Sequence[Exception], size: int) -> str:
    """What the servers that failed have in common, with an example of each kind, for people."""
    refusals = [error for error in errors if is_refusal(error)]
    silent = [error for error in errors if not is_refusal(error)]
    reasons = []
    if refusals:
        reasons.append(f"{len(refusals)} of {size} servers reported an error ({refusals[0]})")
    if silent:
        reasons.append(f"{len(silent)} of {size} servers did not reply ({silent[0]})")
    return "; ".join(reasons)
