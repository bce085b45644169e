"""A simulated week with a fresh seed. `make simulate` simulates a year."""

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


@pytest.mark.timeout(900)
def test_no_promise_is_broken_in_a_simulated_week(record_property: Callable[[str, object], None]) -> None:
    seed = random.SystemRandom().randrange(1_000_000_000)
    again = f".venv/bin/python -m tests.simulation --hours {WEEK:g} --seed {seed}"
    record_property("note", f"simulated week: seed {seed}; the same again: {again}")
    started = time.monotonic()
    tally = run(for_hours(WEEK, jobs(seed, WITHIN_LIMITS)))
    if tally.found:
        found = tally.found[0]
        job = Job(found.seed, found.kind, found.hours, found.store)
        what = timeline.replay(draw(job.seed, job.hours, job.kind, store=job.store))
        pytest.fail(
            f"{plural(len(tally.found), 'violation')} with seed {seed}; see the first: {what}\n\n{explain(job)}"
        )
    assert tally.hours == WEEK
    print(f"seed {seed}: {tally.events:,} events in {time.monotonic() - started:.1f} s")
