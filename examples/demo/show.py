"""The order of events: start three replicas, kill the one in the slow job, wait for the take-over, stop."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo.fleet import Fleet
from examples.demo.observation import OUTCOMES, Observation
from examples.demo.plan import JOBS, REPORT, as_kept
from examples.demo.report import Verdict, find_runs, find_take_over, judge
from examples.demo.view import View

START_SECONDS = 30
VICTIM_SECONDS = 15
"""Extra seconds to wait for a replica to kill."""
SETTLE_SECONDS = 5
"""Seconds to wait until each replica has reported the last fire time's outcome."""


@dataclass
class Show:
    """One run of the demo. The verdict is computed from ``seen``."""

    store: str
    seconds: float
    with_locks: bool
    view: View
    logs: Path
    seen: list[Observation] = field(default_factory=list)

    def run(self) -> Verdict:
        with Fleet(self.store, with_locks=self.with_locks, logs=self.logs) as fleet:
            first = self._wait_until_ready(fleet)
            if not self._has_failed():
                self._act(fleet)
            last = int(time.time())
            self._wait_until_settled(fleet, last)
        self._hear(fleet)
        jobs = [as_kept(job, self.store) for job in JOBS]
        return judge(self.seen, jobs, as_kept(REPORT, self.store), first, last)

    def _wait_until_ready(self, fleet: Fleet) -> int:
        """Return the first fire time after all replicas are ready."""
        deadline = time.monotonic() + START_SECONDS
        while not self._has_failed() and time.monotonic() < deadline:
            self._hear(fleet, 0.05)
            if {seen.replica for seen in self.seen if seen.kind == "ready"} == set(fleet.names):
                break
        return int(time.time()) + 1

    def _act(self, fleet: Fleet) -> None:
        begin = time.monotonic()
        killed_at = None
        while not self._has_failed():
            self._hear(fleet, 0.05)
            elapsed = time.monotonic() - begin
            if killed_at is None:
                if elapsed >= self.seconds / 3 and (victim := self._find_victim(fleet)):
                    seen = fleet.kill(victim)
                    killed_at = seen.at
                    self._note(seen)
                elif elapsed >= self.seconds + VICTIM_SECONDS:
                    return
            elif elapsed >= self.seconds and self._is_take_over_decided(killed_at) and 0.4 < time.time() % 1 < 0.7:
                return

    def _find_victim(self, fleet: Fleet) -> str | None:
        """Return a replica in the middle of the slow job, while no other job begins or ends."""
        if not 0.3 <= time.time() % 1 <= 0.8:
            return None
        now = time.monotonic()
        ended = {(seen.replica, seen.run) for seen in self.seen if seen.kind == "ended"}
        for seen in self.seen:
            is_running = (
                seen.kind == "started" and seen.replica in fleet.alive and (seen.replica, seen.run) not in ended
            )
            if is_running and seen.job == REPORT.name and 1 <= now - seen.at <= REPORT.takes - 0.5:
                return seen.replica
        return None

    def _is_take_over_decided(self, killed_at: float) -> bool:
        take_over = find_take_over(REPORT, self.seen)
        if take_over is None or time.monotonic() > killed_at + take_over.allowed + 1:
            return True
        # Continue until the successor is done, to see any overlapping run.
        runs = find_runs(REPORT.name, self.seen)
        return any(
            run.replica == take_over.by and killed_at < run.started <= run.ended < time.monotonic() for run in runs
        )

    def _wait_until_settled(self, fleet: Fleet, last: int) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        due = {(name, job.name, job.fire_times(0, last)[-1]) for name in fleet.alive for job in JOBS}
        while not self._has_failed() and time.monotonic() < deadline:
            told = {
                (seen.replica, seen.job, seen.fire_time) for seen in self.seen if seen.kind in ("submitted", *OUTCOMES)
            }
            if due <= told:
                return
            self._hear(fleet, 0.05)

    def _hear(self, fleet: Fleet, timeout: float = 0.0) -> None:
        for seen in fleet.heard(timeout):
            self._note(seen)
        self.view.refresh()

    def _note(self, seen: Observation) -> None:
        self.seen.append(seen)
        self.view.show(seen)

    def _has_failed(self) -> bool:
        return any(seen.kind == "died" for seen in self.seen)
