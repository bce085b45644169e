"""The simulation itself: it is repeatable, its faults really happen, and it finds the documented violations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.simulation import KINDS, LIMITS, draw, simulate
from tests.simulation.schedule import DENSE, PACE
from tests.simulation.settings import ELECTIONS

EFFECTS = {
    "loss": ("lost request", "lost reply"),
    "duplicate": ("duplicated",),
    "break": ("broken",),
    "partition": ("cut",),
    "outage": ("refused",),
}
"""The effects of the faults, as the simulation counts them."""
IN_DENSE_ONES = pytest.mark.matrix("the same in dense schedules; each simulated day has both")
WITHIN = [kind for kind in KINDS if kind not in LIMITS]
COMPUTES = pytest.mark.slow("computes for seconds")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=COMPUTES if kind in LIMITS else []) for kind in KINDS])
def test_the_same_seed_has_the_same_course(kind: str) -> None:
    one, other = (simulate(draw(7, 0.05, kind), timeline=None) for _ in range(2))
    lines = "\n".join(map(str, one.timeline))
    assert lines == "\n".join(map(str, other.timeline))
    assert len(one.timeline) > 100
    assert (one.events, one.counts, one.violations) == (other.events, other.counts, other.violations)
    assert lines != "\n".join(map(str, simulate(draw(8, 0.05, kind), timeline=None).timeline))


@pytest.mark.parametrize(
    "hours", [pytest.param(DENSE, id="dense", marks=IN_DENSE_ONES), pytest.param(DENSE * PACE / 2, id="calm")]
)
@pytest.mark.parametrize("kind", WITHIN)
def test_without_faults_nothing_is_broken_and_everything_works(kind: str, hours: float) -> None:
    outcome = simulate(replace(draw(3, hours, kind), faults=()))
    assert outcome.violations == []
    errors = {name: count for name, count in outcome.counts.items() if name.endswith((" error", " cancelled"))}
    assert errors == {}
    assert outcome.counts["late request"] == outcome.counts["timed out"] == 0
    if kind in ELECTIONS:
        assert outcome.counts["LeadershipStarted"] == 1  # the first leader leads all the time
    else:
        assert outcome.counts["acquire granted"] > 100


@pytest.mark.parametrize(
    "hours", [pytest.param(DENSE, id="dense", marks=IN_DENSE_ONES), pytest.param(DENSE * PACE, id="calm")]
)
@pytest.mark.slow("simulates a day of each kind of schedule")
@pytest.mark.parametrize("kind", WITHIN)
def test_each_fault_happens_and_breaks_no_promise(kind: str, hours: float) -> None:
    """In a calm schedule a fault is as likely per lease as in a dense schedule."""
    counts: Counter[str] = Counter()
    for seed in range(3):
        outcome = simulate(draw(seed, hours, kind))
        assert outcome.broken() == [], f"seed {seed}"
        counts += outcome.counts
    assert [fault for fault in KINDS[kind].faults if not counts[fault]] == []
    effects = [effect for fault, effects in EFFECTS.items() if fault in KINDS[kind].faults for effect in effects]
    assert [effect for effect in ("timed out", "late request", *effects) if not counts[effect]] == []


@pytest.mark.not_quick("starts none, but computes for seconds")
@pytest.mark.parametrize("kind", LIMITS)
def test_what_is_beyond_a_documented_limit_is_found(kind: str) -> None:
    """The checker is not blind: beyond a documented limit, exactly the named promises are broken."""
    for seed in range(60):
        outcome = simulate(draw(seed, 0.2, kind))
        assert outcome.broken() == []
        if outcome.violations:
            return
    pytest.fail("nothing was found in twelve hours")


def test_a_dropped_fault_changes_nothing_before_it() -> None:
    schedule = draw(5, 0.25, "locks")
    crash = next(fault for fault in reversed(schedule.faults) if fault.kind == "crash")
    without = replace(schedule, faults=tuple(fault for fault in schedule.faults if fault != crash))
    before = [entry for entry in simulate(schedule, timeline=None).timeline if entry.at < crash.at]
    after = [entry for entry in simulate(without, timeline=None).timeline if entry.at < crash.at]
    assert before == after
    assert len(before) > 100


@COMPUTES
def test_a_long_simulation_is_judged_in_windows() -> None:
    """The judge forgets judged operations, but not a lease that lasts from one window to the next."""
    hours: list[float] = []
    outcome = simulate(draw(11, 2.0 * PACE, "locks"), on_progress=lambda hour, _: hours.append(hour))
    assert hours == [PACE, 2 * PACE]
    assert outcome.broken() == []
