"""What the programs for a quorum command: rounds of questions to all its servers, and pauses between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shedlock_py._program import Program
from shedlock_py.providers.redis.algorithm import Call, Command, RedisPrograms


class QuorumServer(RedisPrograms):
    """The programs for one server of a quorum; an error says which one it was."""

    place: str

    def call(self, call: Call) -> Program[Command, Any, Any]:
        """One script by itself."""

        def send() -> Program[Command, Any, Any]:
            return (yield call)

        return self.carry_out(self.place, None, send())


@dataclass(frozen=True, slots=True)
class OnEach:
    """A command: carry out a program on each server at the same time. The reply has, for each, its result or its error.

    Once the replies settle what is asked, servers that are silent are given a short time only.
    """

    program: Callable[[QuorumServer], Program[Command, Any, Any]]
    only: frozenset[int] | None = None
    """The servers, by number, that are asked; for the others the reply has :class:`NotAsked`."""
    is_settled: Callable[[Sequence[Any]], bool] | None = None
    """Whether these replies will do, with an error for each server that is silent. None: all are waited for."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A command: wait."""

    seconds: float


QuorumAsk = OnEach | Pause


class NoAnswer(Exception):
    """A server has not answered in time."""

    def __str__(self) -> str:
        return "no answer in time"


class NotAsked(Exception):
    """Nothing was sent to this server."""
