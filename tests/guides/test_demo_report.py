"""The demo's verdict on observations that a test writes: it reports each broken promise, and nothing else."""

from collections.abc import Callable
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
    """Observations from second 100 to 110, as replicas send them. Monotonic time equals the fire time."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self._run = 0

    def add(self, kind: Kind, replica: str, at: float, **more: Any) -> None:
        self.seen.append(Observation(kind, replica, 4711, at, **more))

    def run(self, job: str, fire_time: int, replica: str, took: float = 0.0, late: float = 0.0) -> None:
        self.begin(job, fire_time, replica, late)
        self.add("ended", replica, fire_time + late + took, job=job, run=self._run)
        self.add("executed", replica, fire_time + late + took, job=job, fire_time=fire_time)

    def begin(self, job: str, fire_time: int, replica: str, late: float = 0.0) -> None:
        self._run += 1
        self.add("submitted", replica, fire_time, job=job, fire_time=fire_time)
        self.add("started", replica, fire_time + late, job=job, run=self._run)

    def skip(self, job: str, fire_time: int, replica: str, reason: str = "held") -> None:
        self.add("submitted", replica, fire_time, job=job, fire_time=fire_time)
        self.add("skipped", replica, fire_time + 0.01, job=job, fire_time=fire_time, detail=reason)

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
    """A sound story: "one" is killed at 103.5, in its run of 102; its lease ends at 107; "two" runs 108."""
    story = Story()
    for fire_time in range(101, 111):
        lucky = ("two", "three")[fire_time % 2]
        story.run("tick", fire_time, lucky)
        for replica in REPLICAS:
            if replica != lucky and not (replica == "one" and fire_time > 103):
                story.skip("tick", fire_time, replica, "already_ran")
    story.begin("slow", 102, "one")
    story.add("killed", "one", 103.5)
    story.run("slow", 108, "two", took=2.5)
    for fire_time, others in {102: "two three", 104: "two three", 106: "two three", 108: "three"}.items():
        for replica in others.split():
            story.skip("slow", fire_time, replica)
    story.skip("slow", 110, "three")
    story.skip("slow", 110, "two")  # a second instance while its first runs
    return story


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


def refuse(story: Story, took: float) -> None:
    """Let APScheduler refuse 105 on every replica; their attempts at 104 took so long."""
    story.seen = [seen for seen in story.seen if (seen.job, seen.fire_time) not in {("tick", 104), ("tick", 105)}]
    for replica in ("two", "three"):
        story.add("submitted", replica, 104, job="tick", fire_time=104)
        story.add("not run", replica, 105, job="tick", fire_time=105)
    story.add("executed", "two", 104 + took, job="tick", fire_time=104)
    story.add("skipped", "three", 104 + took, job="tick", fire_time=104, detail="already_ran")


def test_a_slow_store_breaks_no_promise(story: Story) -> None:
    refuse(story, took=1.5)
    assert story.judge().broken == []


def refused_without_need(story: Story) -> None:
    refuse(story, took=0.1)


def ran_twice(story: Story) -> None:
    story.run("tick", 105, "two", late=0.5)


def not_run(story: Story) -> None:
    story.without("executed", "tick", 105)


def not_even_seen(story: Story) -> None:
    story.seen = [seen for seen in story.seen if (seen.job, seen.fire_time) != ("tick", 105)]


def skipped_for_another_reason(story: Story) -> None:
    """One skip for another reason does not excuse it."""
    story.without("skipped", "slow", 104)
    story.skip("slow", 104, "two")
    story.skip("slow", 104, "three", "already_ran")


def died(story: Story) -> None:
    story.add("died", "three", 110, detail="ImportError: x")


def failed(story: Story) -> None:
    story.add("failed", "three", 110, job="tick", fire_time=110, detail="ProviderUnreachable('x')")


def ran_again_after_the_kill(story: Story) -> None:
    story.without("skipped", "slow", 102)
    story.run("slow", 102, "three", took=0.1, late=1.9)


def overlapped_the_killed_run(story: Story) -> None:
    story.run("slow", 103, "two", took=0.1)


def nobody_killed(story: Story) -> None:
    story.seen = [seen for seen in story.seen if seen.kind != "killed"]


def killed_between_its_runs(story: Story) -> None:
    story.add("ended", "one", 103.4, job="slow", run=11)
    story.add("executed", "one", 103.4, job="slow", fire_time=102)


def overlapped(story: Story) -> None:
    story.without("skipped", "slow", 110)
    story.run("slow", 110, "three")


def nobody_took_over(story: Story) -> None:
    story.seen = [seen for seen in story.seen if not (seen.job == "slow" and seen.at >= 107)]


def taken_over_too_late(story: Story) -> None:
    story.seen = [
        replace(seen, at=seen.at + 3) if seen.job == "slow" and seen.at >= 108 else seen for seen in story.seen
    ]


def skips_of_a_free_lock(story: Story) -> None:
    """Two "held" skips, but the dead replica's lease had ended at 107: nobody ran 110, and nothing was running."""
    nobody_took_over(story)
    for fire_time in (108, 110):
        for replica in ("two", "three"):
            story.skip("slow", fire_time, replica)


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        (ran_twice, "tick at 00:01:45 ran 2 times: on three, two"),
        (not_run, "tick at 00:01:45 did not run"),
        (not_even_seen, "tick at 00:01:45 did not run"),
        (refused_without_need, "tick at 00:01:45 did not run"),
        (skipped_for_another_reason, "slow at 00:01:44 did not run"),
        (died, "three ended by itself: ImportError: x"),
        (failed, "tick at 00:01:50 failed on three: ProviderUnreachable('x')"),
        (ran_again_after_the_kill, "slow at 00:01:42 ran 2 times: on one, three"),
        (overlapped_the_killed_run, "slow on two overlapped its run on one"),
        (nobody_killed, "no replica was killed"),
        (killed_between_its_runs, "no replica was killed"),
        (overlapped, "slow on three overlapped its run on two"),
        (nobody_took_over, "nobody took slow over from one"),
        (taken_over_too_late, "two took slow over 7.5 s after one was killed, 7.0 s are promised"),
        (skips_of_a_free_lock, "slow at 00:01:50 did not run"),
    ],
)
def test_a_broken_promise(change: Callable[[Story], None], promise: str, story: Story) -> None:
    change(story)
    broken = story.judge().broken
    assert any(found.startswith(promise) for found in broken), broken
