"""The two jobs in numbers, for the replicas that run them and for the report that judges them. All times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class JobPlan:
    name: str
    lock_name: str
    period: int
    """The job fires at each multiple of this since 1970 UTC."""
    lock_at_most_for: float
    takes: float = 0.0

    def fire_times(self, first: int, last: int) -> range:
        """Return the fire times from ``first`` to ``last``, both included."""
        return range(-(-first // self.period) * self.period, last + 1, self.period)


TICK = JobPlan("tick", "demo-tick", period=1, lock_at_most_for=5)
REPORT = JobPlan("report", "demo-report", period=2, lock_at_most_for=5, takes=3)
JOBS = (TICK, REPORT)

KEPT_LONGER = {"etcd": 3.0, "dynamodb": 3.0, "s3": 3.0, "kubernetes": 3.0}
"""Seconds that a store may keep a dead holder's lease longer, as its page says. By the URL's scheme."""


def as_kept(job: JobPlan, store: str) -> JobPlan:
    """Return the job with its lease's longest time on the store at this URL."""
    return replace(job, lock_at_most_for=job.lock_at_most_for + KEPT_LONGER.get(store.partition(":")[0], 0.0))
