"""The commands of a quorum's programs: a broadcast to its servers, and a pause before the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shedlock_py._program import Program
from shedlock_py.errors import ProviderError
from shedlock_py.providers.kit import TimedOut, unreachable
from shedlock_py.providers.redis.programs import Command, Redact, RedisPrograms


class QuorumServer(RedisPrograms):
    """The programs for one server of a quorum. Its errors name the server.

    :param number: from 0.
    :param place: host and port, for people to read.
    """

    def __init__(self, number: int, place: str, key_prefix: str, redact: Redact, *, has_retries: bool) -> None:
        super().__init__(key_prefix, redact, has_retries=has_retries)
        self.number = number
        self.place = place

    def named(self, program: Program[Command, Any, Any]) -> Program[Command, Any, Any]:
        """``program`` with retries, and with errors that name this server."""
        try:
            return (yield from self.carry_out(self.place, None, program))
        except ProviderError as error:
            if error.operation == self.place:
                raise
            # It is about a record, for example.
            raise type(error)(f"{self.place}: {error.message}", operation=self.place, hint=error.hint) from error

    def explain_timeout(self, error: TimedOut, operation: str, lock_name: str | None) -> ProviderError:
        # Without the time limit, which is that of the whole operation.
        return unreachable(operation, lock_name, f"waited for {error.waiting_for}")


@dataclass(frozen=True, slots=True)
class OnEach:
    """A command: carry out a program on each server at the same time.

    The reply is a list with the result of each server, or its error. As soon as the replies settle the matter, the
    client waits only a short time for the other servers.
    """

    program: Callable[[QuorumServer], Program[Command, Any, Any]]
    only: frozenset[int] | None = None
    """The numbers of the servers that get it; the reply has :class:`NotAddressed` for the others. None: all."""
    is_settled: Callable[[Sequence[Any]], bool] | None = None
    """Whether these replies are enough, with an error for each silent server. None: all servers are needed."""
    is_claim: bool = False
    """Whether it can grant a lock, or a vote."""
    is_long: bool = False
    """Whether a server may need more than one short request, as to read all its records."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A command: wait."""

    seconds: float


QuorumCommand = OnEach | Pause


class NoReply(Exception):
    """A server did not reply in time. The message names the server."""


class NotAddressed(Exception):
    """Nothing was sent to this server."""
