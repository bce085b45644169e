"""The timelines: the place of each run, and the mark of its outcome."""

from __future__ import annotations

import pytest

from shedlock_py import LockRequest
from shedlock_py.page.lanes import LAST_DAY, LAST_WEEK, MOST_LANES, NOW, WINDOWS, Chart, Window, chart, fitting_window
from tests.page.sample import Sample


def chart_of(sample: Sample, name: str, window: Window = LAST_DAY) -> Chart:
    record = sample.provider.record(name)
    assert record is not None
    return chart(sample.provider.runs(name), record, window)


def test_where_a_run_is_drawn() -> None:
    sample = Sample()
    sample.clock.advance("30d")
    sample.ran("job", "web-1", 6 * 3600)
    sample.clock.advance("6h")
    found = chart_of(sample, "job")
    [lane] = found.lanes
    [mark] = lane.marks
    assert (lane.holder, mark.shape) == ("web-1", "ok")
    assert mark.x == pytest.approx(NOW / 2, abs=0.1)
    assert mark.width == pytest.approx(NOW / 4, abs=0.1)
    assert mark.at == pytest.approx(NOW * 3 / 4, abs=0.1)
    [mark] = chart_of(sample, "job", LAST_WEEK).lanes[0].marks
    assert mark.at == pytest.approx(NOW * (7 - 0.25) / 7, abs=0.1)
    sample.clock.advance("13h")
    [mark] = chart_of(sample, "job").lanes[0].marks  # it began before the first hour of the chart
    assert mark.x == 0
    sample.clock.advance("1d")
    assert chart_of(sample, "job").lanes == []
    assert chart_of(sample, "job").summary == "Last 24 hours: no runs; the table below lists them"


def test_what_goes_on_reaches_now_and_a_pause_goes_beyond() -> None:
    sample = Sample()
    assert sample.provider.acquire(LockRequest("job", "10h", holder="web-1"))
    sample.clock.advance("6h")
    [mark] = chart_of(sample, "job").lanes[0].marks
    assert (mark.shape, mark.at, mark.x + mark.width) == ("running", NOW, NOW)
    sample.provider.force_release("job")
    sample.provider.pause("job", "5d", "why", by="alice")
    sample.clock.advance("1h")
    pause, lost = chart_of(sample, "job").lanes
    assert (pause.holder, pause.marks[0].shape, pause.marks[0].at) == ("paused", "paused", NOW)
    assert pause.marks[0].x + pause.marks[0].width == 100
    assert (lost.marks[0].shape, lost.marks[0].title.partition("\n")[0]) == ("vanished", "vanished: web-1")


def test_a_run_whose_end_nobody_knows_has_no_length() -> None:
    sample = Sample()
    sample.vanished("job", "web-1")
    [mark] = chart_of(sample, "job").lanes[0].marks
    assert (mark.shape, mark.at) == ("unfinished", mark.x)
    sample.clock.advance("3h")
    sample.ran("job", "web-2")
    marks = {lane.holder: lane.marks[0] for lane in chart_of(sample, "job").lanes}
    assert (marks["web-1"].shape, marks["web-1"].at) == ("vanished", marks["web-1"].x)
    assert marks["web-1"].width < 1


def test_the_newest_holders_have_a_lane() -> None:
    sample = Sample()
    for number in range(MOST_LANES + 3):
        sample.ran("job", f"web-{number}")
    found = chart_of(sample, "job")
    assert [lane.holder for lane in found.lanes][:2] == [f"web-{MOST_LANES + 2}", f"web-{MOST_LANES + 1}"]
    assert (len(found.lanes), found.left_out) == (MOST_LANES, 3)


def test_a_bad_end_is_over_the_good_ones_and_the_newest_over_the_oldest() -> None:
    sample = Sample()
    for outcome in ("ok", "failed", "ok", "failed", "ok"):
        sample.ran("job", "web-1", outcome=outcome)
    [lane] = chart_of(sample, "job").lanes
    assert [mark.shape for mark in lane.marks] == ["ok", "ok", "ok", "failed", "failed"]
    tokens = [int(mark.title.partition("token ")[2]) for mark in lane.marks]
    assert tokens[:3] == sorted(tokens[:3])
    assert tokens[3:] == sorted(tokens[3:])


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        ("1s", "5 minutes"), ("1m", "30 minutes"), ("5m", "6 hours"), ("1h", "24 hours"), ("6h", "7 days"),
        ("1d", "4 weeks"), ("7d", "6 months"), ("30d", "3 years"), ("365d", "3 years"),
    ],
)  # fmt: skip
def test_the_window_fits_how_often_the_job_runs(gap: str, words: str) -> None:
    sample = Sample()
    for _ in range(4):
        sample.ran("job", seconds=0)
        sample.clock.advance(gap)
    assert window_of(sample) == words


def test_the_window_has_the_last_run() -> None:
    sample = Sample()
    sample.provider.pause("job", "1s")
    assert window_of(sample) == "24 hours"
    sample.clock.advance("1s")
    for _ in range(4):
        sample.ran("job", seconds=1)
    assert window_of(sample) == "5 minutes"
    sample.clock.advance("8h")
    assert window_of(sample) == "24 hours"
    sample.clock.advance("3d")
    assert window_of(sample) == "7 days"


def window_of(sample: Sample) -> str:
    record = sample.provider.record("job")
    assert record is not None
    return fitting_window(sample.provider.runs("job"), record).words


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York", "Pacific/Chatham"])
def test_the_axis_has_hours_and_days_of_the_time_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        sample = Sample()
        sample.ran("job")
        day = [label for _, label in chart_of(sample, "job").ticks]
        assert set(day) <= {"00:00", "06:00", "12:00", "18:00"}
        assert 3 <= len(day) <= 4
        assert len(chart_of(sample, "job", LAST_WEEK).ticks) in (6, 7)
        for window in WINDOWS:
            ticks = chart_of(sample, "job", window).ticks
            assert 3 <= len(ticks) <= 8, window
            assert all(0 <= x < NOW * 0.91 for x, _ in ticks)
            assert len({label for _, label in ticks}) == len(ticks)
    finally:
        monkeypatch.undo()
        time.tzset()
