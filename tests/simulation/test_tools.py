"""The shrinker, the timeline, the progress line and the report, on a toy world with a known result."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.report import write_page
from tests.simulation import progress, timeline
from tests.simulation.campaign import CALM, LONG, LONG_EVERY, SHORT, STORES, WITHIN_LIMITS, Job, Limit, for_hours, jobs
from tests.simulation.log import EventLog
from tests.simulation.mutants import ALL, Mutant
from tests.simulation.report import BEGIN, END, Run, section
from tests.simulation.schedule import Entry, Fault, Outcome, Schedule, Violation
from tests.simulation.shrink import AFTERWARDS, Shrinker, smallest
from tests.simulation.tally import Result, Tally
from tests.simulation.trials import Detection
from tests.simulation.world import World

GUILTY = {17, 61}
VIOLATION = Violation("overlap", 0.0, "name", "two leases were trusted at once")


def toy(schedule: Schedule) -> Outcome:
    """A world where two of the faults break a promise, if there are two nodes. Its end shows a different violation."""
    outcome = Outcome(schedule.hours, events=len(schedule.faults))
    guilty = [fault for fault in schedule.faults if fault.size in GUILTY and fault.at < schedule.hours * 3600]
    outcome.timeline = [Entry(fault.at, f"node-{fault.node}", f"feels {fault.kind}") for fault in schedule.faults]
    if len(guilty) == 2 and schedule.nodes >= 2:
        outcome.violations.append(replace(VIOLATION, at=guilty[-1].at))
    if schedule.hours > 0.5:
        outcome.violations.append(Violation("token", 1800.0, "name", "another rule"))
    return outcome


def toy_schedule() -> Schedule:
    faults = (Fault(at=10.0 * number, kind="pause", node=number % 4, size=number) for number in range(100))
    return Schedule(seed=5, hours=1.0, kind="locks", faults=tuple(faults), nodes=4)


def test_a_schedule_is_shrunk_to_what_breaks_the_promise() -> None:
    shrunk = Shrinker(toy).shrink(toy_schedule(), toy(toy_schedule()))
    assert {fault.size for fault in shrunk.schedule.faults} == GUILTY
    assert shrunk.schedule.nodes == 2
    assert shrunk.schedule.hours == (610 + AFTERWARDS) / 3600
    assert shrunk.violation == replace(VIOLATION, at=610.0)
    assert shrunk.is_complete
    assert shrunk.simulations < 60
    text = timeline.describe(shrunk)
    assert "2 nodes, 10 min 11.0 s, 2 faults" in text
    assert "-440.000  node-1      feels pause" in text
    assert text.splitlines()[-1].endswith("^ overlap")


def test_a_wrong_skip_is_shrunk_although_the_holder_need_not_have_died() -> None:
    def skips(schedule: Schedule) -> Outcome:
        outcome = toy(schedule)
        rule = "crash bound" if len(schedule.faults) > 50 else "grant lost"
        outcome.violations = [replace(each, rule=rule) for each in outcome.violations if each.rule == VIOLATION.rule]
        return outcome

    shrunk = Shrinker(skips).shrink(toy_schedule(), skips(toy_schedule()))
    assert {fault.size for fault in shrunk.schedule.faults} == GUILTY
    assert shrunk.violation.rule == "grant lost"


def test_a_shrinker_that_runs_out_of_time_keeps_what_it_has() -> None:
    shrunk = Shrinker(toy, seconds=-1.0).shrink(toy_schedule(), toy(toy_schedule()))
    assert not shrunk.is_complete
    assert shrunk.schedule == toy_schedule()
    assert "a shorter one may exist" in timeline.describe(shrunk)


@pytest.mark.parametrize("needed", [(), (3,), (0, 99), (4, 5, 6), tuple(range(100))])
def test_nothing_can_be_left_out_of_the_smallest_parts(needed: tuple[int, ...]) -> None:
    assert tuple(smallest(range(100), lambda kept: set(needed) <= set(kept))) == needed


def test_time_never_goes_back() -> None:
    world, moments = World(1, EventLog(None)), list[float]()
    world.at(2.0, lambda: world.at(1.0, lambda: moments.append(world.now)))
    world.run_until(3.0)
    assert moments == [2.0]


def test_the_hours_are_divided_among_kinds_and_stores() -> None:
    planned = list(for_hours(200, jobs(7, ("locks", "elections"), ("memory", "redis"))))
    assert sum(job.hours for job in planned) == 200
    assert planned[:5] == [
        Job(7, "locks", SHORT, "memory"),
        Job(8, "elections", CALM, "memory"),
        Job(9, "locks", CALM, "redis"),
        Job(10, "elections", SHORT, "redis"),
        Job(11, "locks", CALM, "memory"),
    ]
    assert planned[LONG_EVERY - 1].hours == LONG
    assert list(for_hours(0.1, jobs(7, ("locks",)))) == [Job(7, "locks", 0.1)]


def test_each_kind_of_each_store_has_dense_and_calm_schedules() -> None:
    planned = list(islice(jobs(7, WITHIN_LIMITS, STORES), 3 * len(WITHIN_LIMITS) * len(STORES)))
    for kind in WITHIN_LIMITS:
        for store in set(STORES):
            assert {SHORT, CALM} <= {job.hours for job in planned if (job.kind, job.store) == (kind, store)}


def _tally() -> Tally:
    tally = Tally()
    tally.add(Result(5, "locks", 1.0, 1000, Counter({"crash": 3}), None))
    tally.add(Result(6, "elections", 2.0, 2000, Counter({"crash": 1}), VIOLATION, "redis"))
    return tally


def test_progress_says_how_far_it_is() -> None:
    line = progress.describe(_tally(), hours=6.0, seconds=1.0)
    assert line == "3 of 6 hours, 3,000 events, 2 seeds, 1 violation, 10,800 × time, 1 s left"


def test_progress_without_a_terminal_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    output = io.StringIO()
    shown = progress.Progress(6.0, output)
    shown.update(_tally())
    shown.say("VIOLATION")
    shown.clear()
    first, second, *rest = output.getvalue().split("\n")
    assert first.startswith("3 of 6 hours")
    assert (second, rest) == ("VIOLATION", [""])


def test_the_section_is_written_between_its_marks(tmp_path: Path) -> None:
    mutant = next(iter(ALL.values()))
    limits = [Limit("jumping locks", 20, 17, ("overlap",), Tally())]
    found = Detection(mutant, (2.0, 61.5, 4000.0 / 2), ("overlap", "token"))
    seldom, missed = Detection(mutant, (2.0, None), ("token",)), Detection(mutant, (None, None), ())
    text = section(Run(5, 120.0, _tally(), limits, [found, seldom, missed]))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(text, page, BEGIN, END)
    written = page.read_text()
    assert written.startswith(f"before\n{BEGIN}\n\nRun of ")
    assert written.endswith(f"{END}\nafter\n")
    assert "**3 simulated hours**, 3,000 events, 2 seeds from 5, **1 violation**" in written
    assert "| Redis, its scripts in a real Lua 5.1 | 2 |" in written
    assert "| jumping locks | 17 of 20 | overlap |" in written
    assert "2 of 3 were found within one simulated hour" in written
    assert f"| {mutant.wrong} | {mutant.part} | 1 min 01.5 s | 33 min 20.0 s | overlap, token |" in written
    assert f"| {mutant.wrong} | {mutant.part} | not in an hour | not in an hour | token |" in written


def test_each_mutant_is_applied_and_taken_away_again() -> None:
    assert [name for name, mutant in ALL.items() if not _comes_and_goes(mutant)] == []


def _comes_and_goes(mutant: Mutant) -> bool:
    before = vars(mutant.owner).get(mutant.attribute)
    with mutant.applied():
        is_applied = vars(mutant.owner)[mutant.attribute] is not before
    return is_applied and vars(mutant.owner).get(mutant.attribute) is before
