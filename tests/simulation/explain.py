"""Turn the seed of a violation into a timeline for people."""

from __future__ import annotations

from tests.simulation.campaign import Job
from tests.simulation.schedule import draw
from tests.simulation.shrink import Shrinker
from tests.simulation.simulation import simulate
from tests.simulation.timeline import describe

SECONDS = 120.0
"""The longest time for shrinking a schedule."""


def explain(job: Job, *, seconds: float = SECONDS) -> str:
    """Return the shortest schedule that shows the first violation of ``job``, as a timeline."""
    schedule = draw(job.seed, job.hours, job.kind, store=job.store)
    return describe(Shrinker(simulate, seconds=seconds).shrink(schedule, simulate(schedule)))
