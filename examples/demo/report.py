"""Were the promises kept? Pure functions of the observations: no clock, no process."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from examples.demo.observation import OUTCOMES, Observation
from examples.demo.plan import JobPlan

SLACK = 0.25
"""Seconds between a body's end and its lock's release, or between a skip and its report."""


@dataclass(frozen=True)
class Run:
    """One run of a job's body, as reported by its replica."""

    job: str
    replica: str
    started: float
    ended: float
    """The end, or the kill of its replica; infinite if unknown."""
    was_killed: bool


@dataclass(frozen=True)
class JobSummary:
    name: str
    fire_times: int
    runs: int
    skips: int
    overlaps: int


@dataclass(frozen=True)
class TakeOver:
    """The next run of the job after its replica was killed during a run."""

    killed: str
    pid: int
    into_the_run: float
    by: str | None
    after: float
    allowed: float


@dataclass(frozen=True)
class Verdict:
    jobs: Sequence[JobSummary]
    take_over: TakeOver | None
    broken: Sequence[str]
    """The broken promises as sentences."""


def judge(
    observations: Sequence[Observation], jobs: Sequence[JobPlan], slow: JobPlan, first: int, last: int
) -> Verdict:
    """Judge the observations of ``jobs`` from the fire time ``first`` to ``last``, while every replica was ready.

    ``slow`` is the job that had to lose its replica during a run.
    """
    broken = [f"{seen.replica} ended by itself: {seen.detail}" for seen in observations if seen.kind == "died"]
    summaries = []
    for job in jobs:
        of_job = [seen for seen in observations if seen.job == job.name]
        runs = find_runs(job.name, observations)
        overlaps = find_overlaps(runs)
        ran = count_runs(of_job, runs)
        for fire_time in sorted({*job.fire_times(first, last), *ran}):
            at = f"{job.name} at {clock_time(fire_time)}"
            if len(ran.get(fire_time, ())) > 1:
                broken.append(f"{at} ran {len(ran[fire_time])} times: on {', '.join(sorted(ran[fire_time]))}")
            elif fire_time not in ran and not was_busy(job, fire_time, of_job, runs):
                broken.append(f"{at} did not run, although replicas lived and no run was in progress")
        broken += [f"{job.name} on {two.replica} overlapped its run on {one.replica}" for one, two in overlaps]
        broken += [
            f"{job.name} at {clock_time(seen.fire_time)} failed on {seen.replica}: {seen.detail}"
            for seen in of_job
            if seen.kind == "failed"
        ]
        summaries.append(
            JobSummary(
                job.name,
                fire_times=len(job.fire_times(first, last)),
                runs=sum(len(ran.get(fire_time, ())) for fire_time in job.fire_times(first, last)),
                skips=sum(seen.kind == "skipped" and first <= (seen.fire_time or 0) <= last for seen in of_job),
                overlaps=len(overlaps),
            )
        )
    take_over = find_take_over(slow, observations)
    if take_over is None:
        broken.append(f"no replica was killed while it ran {slow.name}, so no take-over was seen")
    elif take_over.by is None:
        broken.append(f"nobody took {slow.name} over from {take_over.killed}")
    elif take_over.after > take_over.allowed:
        broken.append(
            f"{take_over.by} took {slow.name} over {take_over.after:.1f} s after {take_over.killed} was killed, "
            f"{take_over.allowed:.1f} s are promised"
        )
    return Verdict(summaries, take_over, broken)


def find_runs(job: str, observations: Iterable[Observation]) -> list[Run]:
    """Return one job's runs, by start."""
    observations = list(observations)
    killed = {seen.replica: seen.at for seen in observations if seen.kind == "killed"}
    ended = {(seen.replica, seen.run): seen.at for seen in observations if seen.kind == "ended"}
    runs = []
    for seen in observations:
        if seen.kind == "started" and seen.job == job:
            end = ended.get((seen.replica, seen.run))
            was_killed = end is None and seen.replica in killed
            if end is None:
                end = killed.get(seen.replica, math.inf)
            runs.append(Run(job, seen.replica, seen.at, end, was_killed))
    return sorted(runs, key=lambda run: run.started)


def find_overlaps(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return each run that began before an earlier run had ended, after the earlier run that ended last."""
    overlaps = []
    latest: Run | None = None
    for run in runs:  # by start
        if latest and run.started < latest.ended:
            overlaps.append((latest, run))
        if latest is None or run.ended > latest.ended:
            latest = run
    return overlaps


def count_runs(of_job: Sequence[Observation], runs: Sequence[Run]) -> dict[int, list[str]]:
    """Return the replicas that ran each fire time, including a replica that was killed during the run."""
    ran: dict[int, list[str]] = {}
    for seen in of_job:
        if seen.kind == "executed" and seen.fire_time is not None:
            ran.setdefault(seen.fire_time, []).append(seen.replica)
    for replica, unfinished in Counter(run.replica for run in runs if run.was_killed).items():
        for fire_time in open_fire_times(of_job, replica)[:unfinished]:
            ran.setdefault(fire_time, []).append(replica)
    return ran


def open_fire_times(of_job: Iterable[Observation], replica: str) -> list[int]:
    """Return the fire times that were submitted in ``replica``, but whose end was not reported."""
    of_replica = [seen for seen in of_job if seen.replica == replica and seen.fire_time is not None]
    submitted = {seen.fire_time for seen in of_replica if seen.kind == "submitted"}
    known = {seen.fire_time for seen in of_replica if seen.kind in OUTCOMES}
    return sorted(fire_time for fire_time in submitted - known if fire_time is not None)


def was_busy(job: JobPlan, fire_time: int, of_job: Sequence[Observation], runs: Iterable[Run]) -> bool:
    """Whether this fire time did not run because of an earlier one: skip, not queue.

    A running job or a dead job's lease held the lock; or APScheduler rejected a second instance while the first was
    running, as on a slow disk.
    """
    busy = [
        (run.started - SLACK, (run.started + job.lock_at_most_for if run.was_killed else run.ended) + SLACK)
        for run in runs
    ]
    ended = {(seen.replica, seen.fire_time): seen.at for seen in of_job if seen.kind in OUTCOMES}
    under_way = [
        (seen.replica, seen.at, ended.get((seen.replica, seen.fire_time), math.inf) + SLACK)
        for seen in of_job
        if seen.kind == "submitted" and seen.fire_time is not None and seen.fire_time < fire_time
    ]

    def is_excused(seen: Observation) -> bool:
        if seen.kind == "not run":
            return any(replica == seen.replica and start <= seen.at <= end for replica, start, end in under_way)
        return seen.detail == "held" and any(start <= seen.at <= end for start, end in busy)

    outcomes = [seen for seen in of_job if seen.fire_time == fire_time and seen.kind in OUTCOMES]
    return bool(outcomes) and all(map(is_excused, outcomes))


def find_take_over(slow: JobPlan, observations: Sequence[Observation]) -> TakeOver | None:
    """Return the next run of ``slow`` after the replica was killed during a run. None if no replica was killed."""
    runs = find_runs(slow.name, observations)
    died = next((run for run in runs if run.was_killed), None)
    if died is None:
        return None
    pid = next(seen.pid for seen in observations if seen.kind == "killed" and seen.replica == died.replica)
    successor = next((run for run in runs if run.replica != died.replica and run.started > died.ended), None)
    return TakeOver(
        killed=died.replica,
        pid=pid,
        into_the_run=died.ended - died.started,
        by=successor.replica if successor else None,
        after=successor.started - died.ended if successor else math.inf,
        allowed=slow.lock_at_most_for + slow.period,
    )


MOST_LINES = 8


def in_words(verdict: Verdict) -> list[str]:
    """Return the summary as lines."""
    lines = [f"{'job':8}{'fire times':>12}{'runs':>8}{'skips':>8}{'overlaps':>10}"]
    lines += [f"{job.name:8}{job.fire_times:>12}{job.runs:>8}{job.skips:>8}{job.overlaps:>10}" for job in verdict.jobs]
    lines.append("")
    if verdict.take_over:
        took = verdict.take_over
        lines.append(
            f"{took.killed} (pid {took.pid}) was killed with SIGKILL, {took.into_the_run:.1f} s into the slow job."
        )
        if took.by:
            lines.append(
                f"{took.by} took over {took.after:.1f} s later; promised: {took.allowed:.1f} s at most "
                f"(lock_at_most_for and one cron period)."
            )
        lines.append("")
    if verdict.broken:
        lines.append(f"BROKEN PROMISES: {len(verdict.broken)}")
        lines += [f"  {promise}" for promise in verdict.broken[:MOST_LINES]]
        if len(verdict.broken) > MOST_LINES:
            lines.append(f"  … and {len(verdict.broken) - MOST_LINES} more")
    else:
        lines.append("Every promise was kept.")
    return lines


def clock_time(fire_time: int | None) -> str:
    return datetime.fromtimestamp(fire_time or 0, UTC).strftime("%H:%M:%S")
