"""The timelines: where a run is drawn, and what says how it ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shedlock_py import LockRequest
from shedlock_py.page.lanes import DAY, MOST_LANES, NOW, WEEK, Chart, chart
from tests.page.sample import Sample


def chart_of(sample: Sample, name: str, span: timedelta = DAY) -> Chart:
    record = sample.provider.record(name)
    assert record is not None
    return chart(sample.provider.runs(name), record, span, "Last")


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
    [mark] = chart_of(sample, "job", WEEK).lanes[0].marks
    assert mark.at == pytest.approx(NOW * (7 - 0.25) / 7, abs=0.1)
    sample.clock.advance("13h")
    [mark] = chart_of(sample, "job").lanes[0].marks  # it began before the first hour that is shown
    assert mark.x == 0
    sample.clock.advance("1d")
    assert chart_of(sample, "job").lanes == []
    assert chart_of(sample, "job").summary == "Last: no runs; the table below has each"


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
    assert (mark.shape, mark.at) == ("no-end", mark.x)
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
        week = chart_of(sample, "job", WEEK).ticks
        assert 6 <= len(week) <= 7
        assert all(0 <= x < NOW * 0.91 for x, _ in week)
    finally:
        monkeypatch.undo()
        time.tzset()
