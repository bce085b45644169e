"""What a replica tells the demo: one JSON line for each thing that happened in it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

Kind = Literal[
    "ready",  # its scheduler runs
    "submitted",  # a fire time came and was handed to the executor
    "started",  # the body of a job began …
    "ended",  # … and ended
    "executed",  # how a fire time ended, in one of these four ways: it ran,
    "skipped",  # another replica had the lock or had run it,
    "failed",  # the job or its lock raised an error,
    "not run",  # APScheduler itself refused: too late, or too many at once
    "killed",  # by us, with SIGKILL
    "died",  # by itself, which is a fault
]
OUTCOMES: tuple[Kind, ...] = ("executed", "skipped", "failed", "not run")


@dataclass(frozen=True)
class Observation:
    kind: Kind
    replica: str
    pid: int
    at: float
    """``time.monotonic()``: one clock for all processes of a machine."""
    job: str = ""
    fire_time: int | None = None
    """Seconds since 1970 UTC."""
    run: int = 0
    """Numbers the runs of one replica, to tell which "ended" belongs to which "started"."""
    detail: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> Observation:
        return Observation(**json.loads(line))
