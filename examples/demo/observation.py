"""A replica's messages to the demo: one JSON line for each event."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

Kind = Literal[
    "ready",  # its scheduler runs
    "submitted",  # a fire time came, and the executor got it
    "started",  # a job's body began …
    "ended",  # … and ended
    "executed",  # a fire time's end, in one of four ways: it ran,
    "skipped",  # another replica had the lock or had run it,
    "failed",  # the job or its lock raised an error,
    "not run",  # APScheduler itself rejected it: too late, or too many at once
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
    """Number of the run on its replica: an "ended" has the number of its "started"."""
    detail: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> Observation:
        return Observation(**json.loads(line))
