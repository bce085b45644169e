"""The demo's verdict, on stories made up for it: each broken promise is found, and nothing else is called one."""

import json
from dataclasses import replace
from typing import Any

import pytest

from examples.demo.observation import Kind, Observation
from examples.demo.plan import JobPlan
from examples.demo.report import Verdict, in_words, judge

TICK = JobPlan("tick", "tick", period=1, lock_at_most_for=5)
SLOW = JobPlan("slow", "slow", period=2, lock_at_most_for=5, takes=3)
REPLICAS = ("one", "two", "three")


class Story:
    """Observations from second 100 to 110, as replicas would tell them. Monotonic time is the fire time's."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self._run = 0

    def tell(self, kind: Kind, replica: str, at: float, **more: Any) -> None:
        self.seen.append(Observation(kind, replica, 4711, at, **more))

    def run(self, job: str, fire_time: int, replica: str, took: float = 0.0, late: float = 0.0) -> None:
        self.begin(job, fire_time, replica, late)
        self.tell("ended", replica, fire_time + late + took, job=job, run=self._run)
        self.tell("executed", replica, fire_time + late + took, job=job, fire_time=fire_time)

    def begin(self, job: str, fire_time: int, replica: str, late: float = 0.0) -> None:
        self._run += 1
        self.tell("submitted", replica, fire_time, job=job, fire_time=fire_time)
        self.tell("started", replica, fire_time + late, job=job, run=self._run)

    def skip(self, job: str, fire_time: int, replica: str, reason: str = "held") -> None:
        self.tell("submitted", replica, fire_time, job=job, fire_time=fire_time)
        self.tell("skipped", replica, fire_time + 0.01, job=job, fire_time=fire_time, detail=reason)

    def without(self, kind: Kind, job: str, fire_time: int | None = None) -> None:
        self.seen = [
            seen
            for seen in self.seen
            if not (seen.kind == kind and seen.job == job and fire_time in (None, seen.fire_time))
        ]

    def judge(self) -> Verdict:
        return judge(self.seen, (TICK, SLOW), SLOW, 101, 110)


@pytest.fixture
def story() -> Story:
    """All is well: "one" is killed at 103.5, in its run of 102; its lease ends at 107; "two" runs 108."""
    story = Story()
    for fire_time in range(101, 111):
        lucky = ("two", "three")[fire_time % 2]
        story.run("tick", fire_time, lucky)
        for replica in REPLICAS:
            if replica != lucky and not (replica == "one" and fire_time > 103):
                story.skip("tick", fire_time, replica, "already_ran")
    story.begin("slow", 102, "one")
    story.tell("killed", "one", 103.5)
    story.run("slow", 108, "two", took=2.5)
    for fire_time, others in {102: "two three", 104: "two three", 106: "two three", 108: "three"}.items():
        for replica in others.split():
            story.skip("slow", fire_time, replica)
    story.skip("slow", 110, "three")
    story.skip("slow", 110, "two")  # a second instance, while its first one runs
    return story


def the_only_broken_promise(verdict: Verdict) -> str:
    [promise] = verdict.broken
    return promise


def test_a_story_in_which_all_is_well(story: Story) -> None:
    verdict = story.judge()
    assert verdict.broken == []
    tick, slow = verdict.jobs
    assert (tick.fire_times, tick.runs, tick.skips, tick.overlaps) == (10, 10, 13, 0)
    assert (slow.fire_times, slow.runs, slow.skips, slow.overlaps) == (5, 2, 9, 0)
    assert verdict.take_over is not None
    assert (verdict.take_over.killed, verdict.take_over.by) == ("one", "two")
    assert verdict.take_over.into_the_run == pytest.approx(1.5)
    assert verdict.take_over.after == pytest.approx(4.5)
    assert verdict.take_over.allowed == 7
    assert in_words(verdict)[-1] == "Every promise was kept."


def test_the_order_in_which_observations_arrive_does_not_matter(story: Story) -> None:
    expected = story.judge()
    story.seen.reverse()
    assert story.judge() == expected


def test_one_fire_time_that_ran_twice(story: Story) -> None:
    story.run("tick", 105, "two", late=0.5)
    assert the_only_broken_promise(story.judge()) == "tick at 00:01:45 ran 2 times: on three, two"


def test_the_fire_time_of_the_killed_run_ran_again(story: Story) -> None:
    story.without("skipped", "slow", 102)
    story.run("slow", 102, "three", took=0.1, late=1.9)
    promises = " ".join(story.judge().broken)
    assert "slow at 00:01:42 ran 2 times: on one, three" in promises


def test_a_fire_time_that_nobody_ran(story: Story) -> None:
    story.without("executed", "tick", 105)
    assert the_only_broken_promise(story.judge()).startswith("tick at 00:01:45 did not run")


def test_a_fire_time_that_nobody_even_saw(story: Story) -> None:
    story.seen = [seen for seen in story.seen if (seen.job, seen.fire_time) != ("tick", 105)]
    assert the_only_broken_promise(story.judge()).startswith("tick at 00:01:45 did not run")


def test_skips_of_a_lock_that_nobody_held(story: Story) -> None:
    """Two say "held", but the dead one's lease had ended at 107: nobody ran 110, and no run was in progress."""
    story.seen = [seen for seen in story.seen if not (seen.job == "slow" and seen.at >= 108)]
    for fire_time in (108, 110):
        for replica in ("two", "three"):
            story.skip("slow", fire_time, replica)
    broken = story.judge().broken
    assert [promise[:16] for promise in broken if "did not run" in promise] == ["slow at 00:01:48", "slow at 00:01:50"]


def test_one_skip_with_another_reason_is_no_excuse(story: Story) -> None:
    story.without("skipped", "slow", 104)
    story.skip("slow", 104, "two")
    story.skip("slow", 104, "three", "already_ran")
    assert the_only_broken_promise(story.judge()).startswith("slow at 00:01:44 did not run")


def test_runs_that_overlap(story: Story) -> None:
    story.without("skipped", "slow", 110)
    story.run("slow", 110, "three")
    verdict = story.judge()
    assert the_only_broken_promise(verdict) == "slow on three overlapped its run on two"
    assert [job.overlaps for job in verdict.jobs] == [0, 1]


def test_a_run_that_overlaps_the_killed_one(story: Story) -> None:
    story.run("slow", 103, "two", took=0.1)
    assert "slow on two overlapped its run on one" in story.judge().broken


def test_nobody_was_killed(story: Story) -> None:
    story.seen = [seen for seen in story.seen if seen.kind != "killed"]
    assert any(promise.startswith("no replica was killed") for promise in story.judge().broken)


def test_a_replica_that_was_killed_between_its_runs(story: Story) -> None:
    story.tell("ended", "one", 103.4, job="slow", run=11)
    story.tell("executed", "one", 103.4, job="slow", fire_time=102)
    assert any(promise.startswith("no replica was killed") for promise in story.judge().broken)


def test_nobody_took_over(story: Story) -> None:
    story.seen = [seen for seen in story.seen if not (seen.job == "slow" and seen.at >= 107)]
    assert "nobody took slow over from one" in story.judge().broken


def test_taken_over_too_late(story: Story) -> None:
    story.seen = [
        replace(seen, at=seen.at + 3) if seen.job == "slow" and seen.at >= 108 else seen for seen in story.seen
    ]
    broken = story.judge().broken
    assert "two took slow over 7.5 s after one was killed, 7.0 s are promised" in broken


def test_a_replica_that_died_by_itself(story: Story) -> None:
    story.tell("died", "three", 110, detail="ImportError: x")
    assert the_only_broken_promise(story.judge()) == "three ended by itself: ImportError: x"


def test_a_run_that_failed(story: Story) -> None:
    story.tell("failed", "three", 110, job="tick", fire_time=110, detail="ProviderUnreachable('x')")
    assert the_only_broken_promise(story.judge()) == "tick at 00:01:50 failed on three: ProviderUnreachable('x')"


def test_nothing_was_seen_at_all() -> None:
    verdict = Story().judge()
    assert len(verdict.broken) == 10 + 5 + 1
    assert in_words(verdict)[-1] == "  … and 8 more"


def test_observations_survive_the_pipe() -> None:
    seen = Observation("skipped", "one", 1, 2.5, job="tick", fire_time=3, detail="a\nb")
    assert Observation.from_json(seen.to_json()) == seen
    assert "\n" not in seen.to_json()
    assert json.loads(seen.to_json())["kind"] == "skipped"
