"""The commands of a quorum's programs: a broadcast to its servers, and a pause before the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shedlock_py._program import Program
from shedlock_py.errors import ProviderError
from shedlock_py.providers.kit import TimedOut, unreachable
from shedlock_py.providers.redis.programs import Call, Command, RedisPrograms

T = TypeVar("T")


class QuorumServer(RedisPrograms):
    """The programs for one server of a quorum. Its errors name the server."""

    place: str
    """Host and port, for people to read."""
    number: int
    """From 0."""

    def call(self, call: Call) -> Program[Command, Any, Any]:
        """One script by itself."""

        def send() -> Program[Command, Any, Any]:
            return (yield call)

        return self.named(send())

    def named(self, program: Program[Command, Any, T]) -> Program[Command, Any, T]:
        """``program`` with retries, and with errors that name this server."""
        try:
            return (yield from self.carry_out(self.place, None, program))
        except ProviderError as error:
            if error.operation == self.place:
                raise
            raise type(error)(f"{self.place}: {error}", operation=self.place) from error  # of a record, for example

    def explain_timeout(self, error: TimedOut, operation: str, lock_name: str | None) -> ProviderError:
        # The time limit of the whole operation is no concern of one server.
        return unreachable(operation, lock_name, f"waited for {error.waiting_for}")


@dataclass(frozen=True, slots=True)
class OnEach:
    """A command: carry out a program on each server at the same time.

    The reply is a list with the result of each server, or its error. Once the replies settle the matter, servers that
    are silent are waited for a short time only.
    """

    program: Callable[[QuorumServer], Program[Command, Any, Any]]
    only: frozenset[int] | None = None
    """The numbers of the servers that are sent it; the others have :class:`NotAsked` in the reply."""
    is_settled: Callable[[Sequence[Any]], bool] | None = None
    """Whether these replies will do, with an error for each server that is silent. None: all are waited for."""
    is_claim: bool = False
    """Whether it can grant a lock, or a vote."""
    is_long: bool = False
    """Whether a server may need more than one short request, as to read all its records."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A command: wait."""

    seconds: float


QuorumCommand = OnEach | Pause


class NoAnswer(Exception):
    """A server has not replied in time. The message says which, and what was waited for."""


class NotAsked(Exception):
    """Nothing was sent to this server."""
