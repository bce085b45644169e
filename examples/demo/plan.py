"""The two jobs in numbers: shared by the replicas that run them and the report that judges them. Seconds throughout."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class JobPlan:
    name: str
    lock_name: str
    period: int
    """It fires at each multiple of this since 1970 UTC."""
    lock_at_most_for: float
    takes: float = 0.0

    def fire_times(self, first: int, last: int) -> range:
        """The fire times from ``first`` to ``last``, both included."""
        return range(-(-first // self.period) * self.period, last + 1, self.period)


TICK = JobPlan("tick", "demo-tick", period=1, lock_at_most_for=5)
REPORT = JobPlan("report", "demo-report", period=2, lock_at_most_for=5, takes=3)
JOBS = (TICK, REPORT)

KEPT_LONGER = {"etcd": 3.0, "dynamodb": 3.0, "s3": 3.0, "kubernetes": 3.0}
"""By the scheme of the store's URL: how much longer it may keep the lease of a dead holder, as its page says."""


def as_kept(job: JobPlan, store: str) -> JobPlan:
    """The job with the longest time that its lease may last on the store at this URL."""
    return replace(job, lock_at_most_for=job.lock_at_most_for + KEPT_LONGER.get(store.partition(":")[0], 0.0))
