"""The settings of the users in a simulation: jobs and durations, drawn from the seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

ELECTIONS = ("elections", "handovers", "observed", "jumping elections", "drifting elections")
"""Kinds of schedules that run electors, not workers."""
PERIOD = 48.0
"""Seconds, times the pace, after which ``run_once`` is called for a new key."""


@dataclass(frozen=True)
class Job:
    """The settings that all nodes share. Durations are seconds."""

    name: str
    at_most: float
    at_least: float
    workers: int
    """Number of threads of a process that try to run it."""
    fires_every: float = 0.0
    """A cron job: each multiple of this is a fire time."""
    recovers: bool = False
    """Nodes that were skipped at a fire time watch its run, and recover it."""
    runs_once: bool = False
    """In each period the nodes call ``run_once`` for a new key."""
    extends: float = 0.4
    """Probability that a task extends its lease, and then extends it again."""


@dataclass(frozen=True)
class Settings:
    jobs: tuple[Job, ...]
    election: dict[str, Any]
    """Durations that the library accepts, and ``takeover``."""
    lease: float
    """The shortest lease, in seconds."""


def settings_of(seed: int, kind: str, pace: int) -> Settings:
    """Draw the settings. They depend on seed and kind, not on the faults. Durations are ``pace`` times as long."""
    random = Random(f"{kind}/{seed}/settings")
    election = _election(random, "observed" if kind == "observed" else "expired", pace)
    if kind in ELECTIONS:
        return Settings((), election, election["lease_duration"])
    jobs = (_job(random, "billing", 2, kind, pace), _job(random, "report", 1, kind, pace))
    return Settings(jobs, election, min(job.at_most for job in jobs))


def _job(random: Random, name: str, workers: int, kind: str, pace: int) -> Job:
    at_most = round(pace * round(6 * 8 ** random.random(), 1), 1)  # 6 s to 48 s, times pace
    if kind == "fire times":
        return Job(name, at_most, 0.0, 1, fires_every=float(pace * random.choice((15, 30, 60))))
    if kind == "recoveries":
        at_most = round(pace * random.uniform(6.0, 15.0), 1)
        at_least = round(at_most * random.choice((0.0, 0.0, random.random())), 3)
        return Job(name, at_most, at_least, 1, fires_every=float(pace * random.choice((30, 60))), recovers=True)
    if kind == "one-time tasks":
        at_most = round(pace * random.uniform(6.0, 8.0), 1)
        return Job(name, at_most, 0.0, 1, fires_every=PERIOD * pace, runs_once=True)
    at_least = random.choice((0.0, 0.5, 1.0)) * round(at_most * random.random(), 3)
    extends = 0.85 if kind == "repeating drivers" else Job.extends
    return Job(name, at_most, round(at_least, 3), workers, extends=extends)


def _election(random: Random, takeover: str, pace: int) -> dict[str, Any]:
    lease = round(pace * round(8 * 3 ** random.random(), 2), 2)  # 8 s to 24 s, times pace
    deadline = round(lease * (0.899 - 0.3 * random.random() ** 2), 2)
    retry = round(deadline / random.uniform(2.5, 5), 2)
    return {"lease_duration": lease, "renew_deadline": deadline, "retry_period": retry, "takeover": takeover}
