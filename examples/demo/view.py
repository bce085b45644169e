"""The display: a live table in a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from examples.demo.observation import Observation
from examples.demo.plan import JOBS, REPORT
from examples.demo.report import clock_time


class View(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...
    def show(self, seen: Observation) -> None: ...
    def refresh(self) -> None: ...


class Board:
    """The state of each fire time of each job on each replica."""

    def __init__(self) -> None:
        self.replicas: list[str] = []
        self.killed: dict[str, Observation] = {}
        self.rows: dict[int, dict[tuple[str, str], str]] = {}
        self._first: dict[str, int] = {}

    def note(self, seen: Observation) -> None:
        if seen.kind == "ready":
            self.replicas = sorted({*self.replicas, seen.replica})
        if seen.kind == "killed":
            self.killed[seen.replica] = seen
            for row in self.rows.values():
                row.update(
                    {cell: "KILLED" for cell, state in row.items() if state == "runs" and cell[1] == seen.replica}
                )
        if seen.fire_time is not None:
            row = self.rows.setdefault(seen.fire_time, {})
            cell = (seen.job, seen.replica)
            self._first.setdefault(seen.replica, seen.fire_time)
            match seen.kind:
                case "submitted":
                    row.setdefault(cell, "runs")
                case "executed":
                    row[cell] = "ran"
                case "skipped":
                    row[cell] = f"skipped: {seen.detail.replace('_', ' ')}"
                case "failed":
                    row[cell] = f"FAILED: {seen.detail}"
                case "not run":
                    row[cell] = "not run"

    def is_settled(self, fire_time: int, job: str) -> bool:
        """Whether each replica that lived at ``fire_time`` has reported its outcome."""
        return bool(self.replicas) and all(
            self.state(fire_time, job, replica) not in ("", "runs")
            or replica in self.killed
            or fire_time < self._first.get(replica, 0)
            for replica in self.replicas
        )

    def state(self, fire_time: int, job: str, replica: str) -> str:
        """Return the state. Empty if the job was not due, or the replica was dead."""
        return self.rows.get(fire_time, {}).get((job, replica), "")


class Lines:
    """One line for each fire time of a job, as soon as every replica has reported its outcome."""

    def __init__(self) -> None:
        self._board = Board()
        self._printed: set[tuple[int, str]] = set()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.refresh()

    def show(self, seen: Observation) -> None:
        self._board.note(seen)
        if seen.kind == "ready":
            self._print(f"{seen.replica} is ready (pid {seen.pid})")
        if seen.kind == "killed":
            self._print(f"{seen.replica} (pid {seen.pid}) was KILLED with SIGKILL in the middle of {REPORT.name}")

    def refresh(self) -> None:
        for fire_time in sorted(self._board.rows):
            for job in JOBS:
                if (fire_time, job.name) not in self._printed and self._board.is_settled(fire_time, job.name):
                    self._printed.add((fire_time, job.name))
                    self._print_row(fire_time, job.name)

    def _print_row(self, fire_time: int, job: str) -> None:
        states = {replica: self._board.state(fire_time, job, replica) for replica in self._board.replicas}
        if any(states.values()):  # the job was due
            words = [f"{replica} {state}" for replica, state in states.items() if state]
            self._print(f"{clock_time(fire_time)}  {job:7} {'; '.join(words)}")

    def _print(self, line: str) -> None:
        print(line, flush=True)


def pick_view() -> View:
    """Return the live table if there is a terminal and rich is installed."""
    if sys.stdout.isatty():
        with suppress(ImportError):
            from examples.demo.table import LiveTable

            return LiveTable()
    return Lines()
