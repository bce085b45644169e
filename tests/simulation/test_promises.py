"""Four simulated hours of each kind, or a week, with a fresh seed. `make simulate` simulates a year."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest

from tests.simulation import timeline
from tests.simulation.campaign import CALM, WITHIN_LIMITS, Job, for_hours, jobs, run
from tests.simulation.explain import explain
from tests.simulation.progress import plural
from tests.simulation.schedule import draw

RecordProperty = Callable[[str, object], None]
WEEK = 168.0
"""Hours."""
COMPUTES = pytest.mark.not_quick("starts none, but all kinds together compute for seconds")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=COMPUTES) for kind in WITHIN_LIMITS])
def test_no_promise_is_broken_in_four_simulated_hours(kind: str, record_property: RecordProperty) -> None:
    """All kinds of schedules together have more than a day. The week has dense schedules, too."""
    seed = fresh_seed()
    record_property("note", f"four simulated hours of {kind}: {timeline.replay(draw(seed, CALM, kind))}")
    assert_nothing_is_broken(iter([Job(seed, kind, CALM)]), CALM)


@pytest.mark.slow("simulates a week")
@pytest.mark.timeout(900)
def test_no_promise_is_broken_in_a_simulated_week(record_property: RecordProperty) -> None:
    seed = fresh_seed()
    again = f".venv/bin/python -m tests.simulation --hours {WEEK:g} --seed {seed}"
    record_property("note", f"simulated week: seed {seed}; the same again: {again}")
    assert_nothing_is_broken(for_hours(WEEK, jobs(seed, WITHIN_LIMITS)), WEEK)


def fresh_seed() -> int:
    return random.SystemRandom().randrange(1_000_000_000)


def assert_nothing_is_broken(planned: Iterator[Job], hours: float) -> None:
    started = time.monotonic()
    tally = run(planned)
    if tally.found:
        found = tally.found[0]
        job = Job(found.seed, found.kind, found.hours, found.store)
        what = timeline.replay(draw(job.seed, job.hours, job.kind, store=job.store))
        pytest.fail(f"{plural(len(tally.found), 'violation')}; see the first: {what}\n\n{explain(job)}")
    assert tally.hours == hours
    print(f"{tally.events:,} events in {time.monotonic() - started:.1f} s")
