"""A simulated day or week with a fresh seed. `make simulate` simulates a year."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from tests.simulation import timeline
from tests.simulation.campaign import WITHIN_LIMITS, Job, for_hours, jobs, run
from tests.simulation.explain import explain
from tests.simulation.progress import plural
from tests.simulation.schedule import draw

WEEK = 168.0
"""Hours."""
PARTS_OF_A_DAY = ("morning", "afternoon", "evening", "night")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "hours",
    [
        *(
            pytest.param(6.0, id=part, marks=pytest.mark.server("starts none, but computes for seconds"))
            for part in PARTS_OF_A_DAY
        ),
        pytest.param(WEEK, id="week", marks=pytest.mark.slow("simulates a week")),
    ],
)
def test_no_promise_is_broken_in_simulated_time(hours: float, record_property: Callable[[str, object], None]) -> None:
    seed = random.SystemRandom().randrange(1_000_000_000)
    again = f".venv/bin/python -m tests.simulation --hours {hours:g} --seed {seed}"
    record_property("note", f"{hours:g} simulated hours: seed {seed}; the same again: {again}")
    started = time.monotonic()
    tally = run(for_hours(hours, jobs(seed, WITHIN_LIMITS)))
    if tally.found:
        found = tally.found[0]
        job = Job(found.seed, found.kind, found.hours, found.store)
        what = timeline.replay(draw(job.seed, job.hours, job.kind, store=job.store))
        pytest.fail(
            f"{plural(len(tally.found), 'violation')} with seed {seed}; see the first: {what}\n\n{explain(job)}"
        )
    assert tally.hours == hours
    print(f"seed {seed}: {tally.events:,} events in {time.monotonic() - started:.1f} s")
