"""A simulated day or week with a fresh seed. `make simulate` simulates a year."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import pytest

from tests.simulation import timeline
from tests.simulation.campaign import WITHIN_LIMITS, Job, for_hours, jobs, run
from tests.simulation.explain import explain
from tests.simulation.progress import plural
from tests.simulation.schedule import draw

RecordProperty = Callable[[str, object], None]
DAY, WEEK = 24.0, 168.0
"""Hours."""
COMPUTES = pytest.mark.server("starts none, but computes for seconds")
PARTS = 3
"""Of a day. Each begins with other kinds of schedules."""


@pytest.mark.parametrize("part", [pytest.param(part, marks=COMPUTES) for part in range(PARTS)])
def test_no_promise_is_broken_in_a_third_of_a_simulated_day(part: int, record_property: RecordProperty) -> None:
    first = part * len(WITHIN_LIMITS) // PARTS
    seed, kinds = fresh_seed(), (*WITHIN_LIMITS[first:], *WITHIN_LIMITS[:first])
    record_property("note", f"simulated {DAY / PARTS:g} hours of {', '.join(kinds[:3])}: seed {seed}")
    assert_nothing_is_broken(seed, DAY / PARTS, kinds)


@pytest.mark.slow("simulates a week")
@pytest.mark.timeout(900)
def test_no_promise_is_broken_in_a_simulated_week(record_property: RecordProperty) -> None:
    seed = fresh_seed()
    again = f".venv/bin/python -m tests.simulation --hours {WEEK:g} --seed {seed}"
    record_property("note", f"simulated week: seed {seed}; the same again: {again}")
    assert_nothing_is_broken(seed, WEEK, WITHIN_LIMITS)


def fresh_seed() -> int:
    return random.SystemRandom().randrange(1_000_000_000)


def assert_nothing_is_broken(seed: int, hours: float, kinds: Sequence[str]) -> None:
    started = time.monotonic()
    tally = run(for_hours(hours, jobs(seed, kinds)))
    if tally.found:
        found = tally.found[0]
        job = Job(found.seed, found.kind, found.hours, found.store)
        what = timeline.replay(draw(job.seed, job.hours, job.kind, store=job.store))
        pytest.fail(
            f"{plural(len(tally.found), 'violation')} with seed {seed}; see the first: {what}\n\n{explain(job)}"
        )
    assert tally.hours == hours
    print(f"seed {seed}: {tally.events:,} events in {time.monotonic() - started:.1f} s")
