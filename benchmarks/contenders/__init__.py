"""All contenders."""

from benchmarks.contenders.base import AsyncSession, Contender, Kind, RefusedError, Session
from benchmarks.contenders.floors import FLOORS
from benchmarks.contenders.ours import OURS, US
from benchmarks.contenders.peers import PEERS

CONTENDERS: list[Contender] = [*FLOORS, *OURS, *PEERS]


def find(group: str, name: str) -> Contender:
    return next(contender for contender in CONTENDERS if (contender.group, contender.name) == (group, name))


def of_group(group: str) -> list[Contender]:
    return [contender for contender in CONTENDERS if contender.group == group]


__all__ = [
    "CONTENDERS",
    "US",
    "AsyncSession",
    "Contender",
    "Kind",
    "RefusedError",
    "Session",
    "find",
    "of_group",
]
