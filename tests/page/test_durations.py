"""The chart of durations."""

from __future__ import annotations

from shedlock_py import LockRequest, scheduler_lock
from shedlock_py.page.durations import HEIGHT, MOST_BARS, Durations, durations
from shedlock_py.page.views import job_values
from tests.page.sample import Sample


def durations_of(sample: Sample) -> Durations:
    record = sample.provider.record("job")
    assert record is not None
    found = durations(sample.provider.runs("job"), record)
    assert found is not None
    return found


def test_each_run_has_a_bar_and_the_newest_is_on_the_right() -> None:
    sample = Sample()
    for seconds, outcome in ((2, "ok"), (4, "failed"), (1, "ok")):
        sample.ran("job", seconds=seconds, outcome=outcome)
    found = durations_of(sample)
    heights = [bar.height for bar in found.bars]
    assert [bar.shape for bar in found.bars] == ["ok", "failed", "ok"]
    assert (heights[1] / heights[0], heights[0] / heights[2]) == (2, 2)
    assert all(bar.y + bar.height == HEIGHT for bar in found.bars)
    assert [bar.x for bar in found.bars] == sorted(bar.x for bar in found.bars)
    assert (found.longest, found.lease) == ("4.0s", "")


def test_a_run_that_goes_on_shows_its_lease() -> None:
    sample = Sample()
    for _ in range(3):
        sample.ran("job", seconds=4)
    assert sample.provider.acquire(LockRequest("job", "8s"))
    sample.clock.advance(2)
    found = durations_of(sample)
    assert found.lease == "the present lease is of 8.0s"
    assert found.lease_y is not None
    assert found.lease_y < min(bar.y for bar in found.bars)
    sample.clock.advance("1h")
    assert durations_of(sample).lease == ""
    assert sample.provider.acquire(LockRequest("job", "1h"))
    found = durations_of(sample)
    assert (found.lease, found.lease_y) == ("the present lease is of 1h", None), "a line would leave no room"


def test_the_job_page_shows_the_lock_at_most_for_of_a_job_that_its_process_declares() -> None:
    @scheduler_lock("declared-here", "8s")
    def job() -> None: ...

    sample = Sample()
    for _ in range(2):
        sample.ran("declared-here", seconds=4)
    record = sample.provider.record("declared-here")
    assert record is not None
    found = job_values(record, sample.provider.runs("declared-here"))["durations"]
    assert found.lease == "lock_at_most_for is 8.0s"
    assert found.lease_y < min(bar.y for bar in found.bars)


def test_the_job_page_advises_on_the_lock_at_most_for_of_a_job_that_is_not_kept_alive() -> None:
    @scheduler_lock("short", "5s")
    def job() -> None: ...

    @scheduler_lock("kept", "5s", keep_alive=True)
    def kept() -> None: ...

    sample = Sample()
    for name in ("short", "kept"):
        for _ in range(10):
            sample.ran(name, seconds=4)
    advice = {}
    for name in ("short", "kept"):
        record = sample.provider.record(name)
        assert record is not None
        advice[name] = job_values(record, sample.provider.runs(name))["advice"]
    assert advice == {
        "short": "99% of 10 runs took 4.0s or less. lock_at_most_for is 5.0s: a slow run outlives its lease, and "
        "another replica starts the job. Better: use 1m, or keep_alive=True",
        "kept": None,
    }


def test_a_pause_is_no_lease() -> None:
    sample = Sample()
    for _ in range(2):
        sample.ran("job", seconds=4)
    sample.provider.pause("job", "10s")
    assert (durations_of(sample).lease, len(durations_of(sample).bars)) == ("", 2)


def test_runs_without_a_duration_and_more_runs_than_fit() -> None:
    sample = Sample()
    sample.ran("job", seconds=0)
    sample.vanished("job", "web-1")
    record = sample.provider.record("job")
    assert record is not None
    assert durations(sample.provider.runs("job"), record) is None, "one duration is no chart"
    sample.ran("job", seconds=0)
    assert [bar.height for bar in durations_of(sample).bars] == [1, 1]
    for _ in range(MOST_BARS):
        sample.ran("job")
    assert len(durations_of(sample).bars) == 50, "of 50 runs that the store keeps"
