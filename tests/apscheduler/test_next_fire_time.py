"""Run history stores the scheduler's next run time with each run, as the trigger computes it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from shedlock_py import InMemoryLockProvider, LockRequest, scheduler_lock
from shedlock_py.integrations.apscheduler.fire_times import next_fire_time_of
from shedlock_py.model.run import Run
from tests.apscheduler.app import App, now, running, seconds
from tests.support.polling import wait_until

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 3, 20, 5, 30, tzinfo=UTC)
SPRING = datetime(2026, 3, 29, 1, tzinfo=UTC)
"""Berlin's clocks go from 2:00 to 3:00."""
AUTUMN = datetime(2026, 10, 25, 1, tzinfo=UTC)
"""Berlin's clocks go from 3:00 to 2:00."""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


class Counting(CronTrigger):
    """A trigger with side effects."""

    calls = 0

    def get_next_fire_time(self, previous_fire_time: Any, now: datetime) -> Any:
        self.calls += 1
        return super().get_next_fire_time(previous_fire_time, now)


def fire_times(trigger: Any, start: datetime, count: int = 60) -> Iterator[datetime]:
    """Return the run times of a scheduler that starts at ``start`` and is always on time."""
    moment = trigger.get_next_fire_time(None, start)
    for _ in range(count):
        if moment is None:
            return
        yield moment
        moment = trigger.get_next_fire_time(moment, moment)


@pytest.mark.parametrize(
    "trigger",
    [
        CronTrigger(minute="*/5", timezone="UTC"),
        CronTrigger(hour=2, minute=30, timezone=BERLIN),  # a day without 2:30, and a day with 2:30 twice
        CronTrigger(hour="1-3", minute="0,30", timezone=BERLIN),
        CronTrigger(day_of_week="mon-fri", hour=9, timezone="America/New_York"),
        CronTrigger(day="last", timezone="Pacific/Auckland"),
        CronTrigger(hour=0, timezone="UTC", end_date=SPRING),
        IntervalTrigger(minutes=7, start_date=START, timezone=BERLIN),
        IntervalTrigger(hours=1, start_date=SPRING - DAY, end_date=SPRING + DAY, timezone=BERLIN),
        DateTrigger(SPRING),
        OrTrigger([CronTrigger(hour=2, timezone=BERLIN), CronTrigger(minute=15, timezone="UTC")]),
        OrTrigger([CronTrigger(hour=6, timezone="UTC"), IntervalTrigger(hours=5, start_date=START)]),
        OrTrigger([OrTrigger([CronTrigger(hour=6)]), DateTrigger(SPRING)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("start", [START, SPRING - DAY, AUTUMN - DAY], ids=["plain", "spring", "autumn"])
def test_the_next_fire_time_is_the_one_at_which_the_scheduler_runs_it_next(trigger: Any, start: datetime) -> None:
    times = list(fire_times(trigger, start))
    following = [next_fire_time_of(trigger, moment) for moment in times]
    assert following[:-1] == [moment.astimezone(UTC) for moment in times[1:]]
    assert all(moment is None or moment.tzinfo is UTC for moment in following)
    if len(times) < 60:
        assert following[-1:] in ([None], [])


def test_a_calendar_interval() -> None:
    module = pytest.importorskip("apscheduler.triggers.calendarinterval", reason="APScheduler 3.10 has none")
    trigger = module.CalendarIntervalTrigger(days=1, hour=2, minute=30, timezone=BERLIN, start_date="2026-03-25")
    times = list(fire_times(trigger, SPRING - DAY))
    assert [next_fire_time_of(trigger, moment) for moment in times[:-1]] == [
        moment.astimezone(UTC) for moment in times[1:]
    ]


@pytest.mark.parametrize(
    "trigger",
    [
        CronTrigger(minute=0, jitter=600, timezone="UTC"),
        IntervalTrigger(hours=1, jitter=600, start_date=START),
        OrTrigger([CronTrigger(minute=0, timezone="UTC"), CronTrigger(minute=20, timezone="UTC")], jitter=600),
        OrTrigger([CronTrigger(minute=0, jitter=600, timezone="UTC")]),
    ],
    ids=str,
)
def test_with_jitter_it_is_the_latest_possible_time(trigger: Any) -> None:
    random.seed(17)  # APScheduler's jitter
    before = list(fire_times(trigger, START))
    latest = [next_fire_time_of(trigger, moment) for moment in before]
    for following, moment in zip(before[1:], latest[:-1], strict=True):
        assert moment is not None
        assert moment - seconds(600) <= following <= moment
    assert trigger.jitter in (600, None)  # the job's own trigger is unchanged


def test_no_trigger_of_another_class_is_called() -> None:
    own = Counting(hour=2)
    for trigger in (own, OrTrigger([own]), OrTrigger([CronTrigger(hour=1), OrTrigger([own])]), AndTrigger([own])):
        assert next_fire_time_of(trigger, START) is None
    assert own.calls == 0
    for trigger in (AndTrigger([CronTrigger(hour=1), CronTrigger(hour=2)]), object(), None):
        assert next_fire_time_of(trigger, START) is None


def test_beyond_the_calendar_there_is_none() -> None:
    assert next_fire_time_of(IntervalTrigger(days=400), datetime(9999, 6, 1, tzinfo=UTC)) is None
    assert next_fire_time_of(CronTrigger(year=2020), START) is None


# In a scheduler


def run_of(app: App, provider: Any, trigger: Any, function: Any = None, **options: Any) -> tuple[Run, datetime]:
    """Return a job's first run, and its scheduled time."""
    task = app.task()
    event = app.run_once(task, function, trigger, **options)
    wait_until(lambda: provider.runs(task.lock) and provider.runs(task.lock)[0].ended, what="the end of the run")
    [run] = provider.runs(task.lock)
    return run, event.scheduled_run_time


@pytest.mark.parametrize("kind", ["thread", "asyncio", "coroutine", "debug"])
@pytest.mark.parametrize("once_per_fire_time", [None, False])
def test_it_is_stored_with_the_run(kind: str, once_per_fire_time: bool | None, tmp_path: Path) -> None:
    provider = InMemoryLockProvider(history=5)
    with running(tmp_path, kind, provider=provider, once_per_fire_time=once_per_fire_time) as app:
        trigger = CronTrigger(minute=17, timezone=BERLIN)
        run, _ = run_of(app, provider, trigger, next_run_time=now())
        assert run.next_fire_time == trigger.get_next_fire_time(None, run.started).astimezone(UTC)
        run, run_time = run_of(app, provider, IntervalTrigger(hours=1), next_run_time=now())
        assert run.next_fire_time == run_time + HOUR
        assert (run.fire_time is None) is (once_per_fire_time is False)
        run, _ = run_of(app, provider, DateTrigger(now()))
        assert (run.next_fire_time, run.outcome) == (None, "ok")
        run, _ = run_of(app, provider, Counting(second="*", end_date=now()), next_run_time=now())
        assert run.next_fire_time is None


@pytest.mark.slow("starts worker processes")
def test_the_next_fire_time_is_stored_with_the_run_of_a_process_pool(tmp_path: Path) -> None:
    with running(tmp_path, "process", url_options="?history=5") as app:
        run, run_time = run_of(app, app.provider, IntervalTrigger(hours=1), next_run_time=now())
    assert run.next_fire_time == run_time + HOUR


def test_what_the_user_says_goes_first(tmp_path: Path) -> None:
    provider = InMemoryLockProvider(history=5)

    @scheduler_lock("expected", "1m", expected_every="3h")
    def expected() -> None: ...

    with running(tmp_path, provider=provider, locks={"by-hand": LockRequest("by-hand", "1m")}) as app:
        started = now()
        app.scheduler.add_job(expected, "interval", hours=1, next_run_time=now(), id="job")
        app.scheduler.add_job(len, "interval", hours=1, next_run_time=now(), id="by-hand", args=("",))
        for name, hours in (("expected", 3), ("by-hand", 1)):
            wait_until(lambda name=name: provider.runs(name), what=f"the run of {name}")  # type: ignore[misc]
            [run] = provider.runs(name)
            assert run.next_fire_time is not None
            assert abs(run.next_fire_time - started - hours * HOUR) < seconds(30)
