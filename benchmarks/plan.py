"""The duration and number of measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.contenders import Contender
from benchmarks.progress import say


@dataclass
class Absent:
    """A contender that is not measured, and the reason."""

    group: str
    name: str
    figure: str
    reason: str


@dataclass
class Plan:
    rounds: int = 25
    block_seconds: float = 0.04
    """Seconds that a round measures one contender."""
    worker_rounds: int = 5
    worker_seconds: float = 0.4
    records: tuple[int, ...] = (10, 1_000, 100_000, 1_000_000)
    clients: tuple[int, ...] = (1, 4, 16, 64)
    names: tuple[int, ...] = (1, 100, 10_000)
    contending: int = 16
    election_seconds: float = 30.0
    stores: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    absent: list[Absent] = field(default_factory=list)

    @classmethod
    def quick(cls) -> Plan:
        return cls(
            rounds=5,
            block_seconds=0.01,
            worker_rounds=1,
            worker_seconds=0.1,
            records=(10, 10_000),
            clients=(1, 16),
            names=(1, 100),
            election_seconds=4.0,
        )

    @classmethod
    def smoke(cls) -> Plan:
        """For tests of the benchmark: it takes seconds, and its figures mean nothing."""
        return cls(
            rounds=2,
            block_seconds=0.002,
            worker_rounds=1,
            worker_seconds=0.02,
            records=(10, 100),
            clients=(1, 2),
            names=(1, 5),
            contending=2,
            election_seconds=0.5,
        )

    def drop(self, contender: Contender, figure: str, error: BaseException) -> None:
        """Drop a contender, with its reason on the page."""
        reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        self.absent.append(Absent(contender.group, contender.name, figure, reason))

    @contextmanager
    def reported(self, group: str, figure: str) -> Iterator[None]:
        """Report the current measurement. A failure does not end the run."""
        say(f"{group}: {figure}")
        try:
            yield
        except Exception as error:
            say(f"{group}: {figure} failed: {error!r}")
            self.absent.append(Absent(group, "all", figure, f"{type(error).__name__}: {error}".split("\n")[0][:200]))

    def opened(self, contender: Contender, figure: str, attempt: Callable[[], object]) -> bool:
        """Return whether ``attempt`` succeeded. If it failed, report the contender as absent."""
        try:
            attempt()
        except Exception as error:
            self.drop(contender, figure, error)
            return False
        return True
