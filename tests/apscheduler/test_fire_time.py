"""once_per_fire_time: a scheduled time runs once, on whichever replica, however short the job."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from shedlock_py import InMemoryLockProvider
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED
from shedlock_py.integrations.apscheduler.fire_times import fire_time_of
from tests.apscheduler.app import ENDS, App, now, running, seconds
from tests.support.logs import warnings_of
from tests.support.polling import wait_until


@contextmanager
def two_replicas(directory: Path, kind: str, **options: Any) -> Iterator[tuple[App, App]]:
    provider = InMemoryLockProvider()
    with (
        running(directory, kind, provider=provider, once_per_fire_time=True, **options) as one,
        running(directory, kind, provider=provider, once_per_fire_time=True, **options) as other,
    ):
        yield one, other


def cron(run_time: datetime) -> Any:
    return CronTrigger(hour=0, end_date=run_time, timezone="UTC")


def date(run_time: datetime) -> Any:
    return DateTrigger(run_time)


def interval(run_time: datetime, length: timedelta = timedelta(days=1)) -> Any:
    return IntervalTrigger(seconds=length.total_seconds(), start_date=run_time, end_date=run_time)


def fire(app: App, lock: str, trigger: Any, run_time: datetime) -> Any:
    """Run a job that is due at ``run_time``, which is past, by a trigger that ends then; returns its event."""
    task = app.task()
    event = app.run_once(task, None, trigger(run_time), next_run_time=run_time, args=(lock, task.log))
    assert event.scheduled_run_time == run_time
    assert task.runs == (event.code == EVENT_JOB_EXECUTED)
    return event


MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.mark.parametrize("trigger", [cron, date, interval])
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_i11_one_fire_time_one_run(kind: str, trigger: Any, tmp_path: Path) -> None:
    with two_replicas(tmp_path, kind) as (one, other):
        assert fire(one, "lock", trigger, MIDNIGHT).code == EVENT_JOB_EXECUTED
        again = fire(other, "lock", trigger, MIDNIGHT)
        assert (again.code, again.reason) == (EVENT_JOB_SKIPPED, "already_ran")
        late = fire(other, "lock", trigger, MIDNIGHT - DAY)
        assert (late.code, late.reason) == (EVENT_JOB_SKIPPED, "already_ran")
        assert fire(other, "lock", trigger, MIDNIGHT + DAY).code == EVENT_JOB_EXECUTED
        assert fire(other, "other-lock", trigger, MIDNIGHT).code == EVENT_JOB_EXECUTED


def test_without_it_a_fast_job_runs_on_each_replica(tmp_path: Path) -> None:
    with running(tmp_path) as app:
        for _ in range(2):
            assert fire(app, "lock", cron, MIDNIGHT).code == EVENT_JOB_EXECUTED


def test_held_and_already_ran_are_different_reasons(tmp_path: Path) -> None:
    with two_replicas(tmp_path, "thread") as (one, other):
        task = one.task()
        one.add(task, None, "date", run_date=MIDNIGHT, kwargs={"until": task.gate})
        wait_until(lambda: task.runs, what="the long job began")
        event = fire(other, task.lock, date, MIDNIGHT + DAY)
        assert event.reason == "held"
        task.open_gate()
        assert one.wait(task, *ENDS)


@pytest.mark.parametrize("minutes", [10, 7])
def test_an_interval_runs_once_per_slot_whatever_the_phase(minutes: int, tmp_path: Path) -> None:
    slot = timedelta(minutes=minutes)
    start = datetime(1970, 1, 1, tzinfo=UTC) + slot * 2_000_000
    trigger = partial(interval, length=slot)
    microsecond = timedelta(microseconds=1)
    with two_replicas(tmp_path, "thread") as (one, other):
        assert fire(one, "lock", trigger, start + seconds(30)).code == EVENT_JOB_EXECUTED
        for app, offset in ((other, slot - microsecond), (one, slot / 2), (other, timedelta(0))):
            assert fire(app, "lock", trigger, start + offset).reason == "already_ran"
        assert fire(other, "lock", trigger, start + slot).code == EVENT_JOB_EXECUTED
        assert fire(one, "lock", trigger, start + slot + seconds(30)).reason == "already_ran"
        assert fire(one, "lock", trigger, start + 2 * slot).code == EVENT_JOB_EXECUTED


def test_several_run_times_at_once_each_run_once(tmp_path: Path) -> None:
    start = now().replace(microsecond=0) - seconds(3)
    trigger = IntervalTrigger(seconds=1, start_date=start, end_date=start + seconds(2), timezone="UTC")
    with two_replicas(tmp_path, "thread") as (one, other):
        for app, code in ((one, EVENT_JOB_EXECUTED), (other, EVENT_JOB_SKIPPED)):
            task = app.task()
            app.add(task, None, trigger, next_run_time=start, coalesce=False, args=("lock", task.log))
            events = app.wait(task, *ENDS, count=3)
            assert [event.code for event in events] == [code] * 3


def calendar(timezone: Any = "UTC", **lengths: Any) -> Any:
    """A trigger of APScheduler 3.11, at six o'clock."""
    module = pytest.importorskip("apscheduler.triggers.calendarinterval")
    return module.CalendarIntervalTrigger(hour=6, timezone=timezone, **lengths)


@pytest.mark.parametrize(
    ("lengths", "days", "runs"),
    [
        ({"days": 3}, 12, 4),
        ({"weeks": 1}, 28, 4),
        ({"weeks": 1, "days": 1}, 32, 4),
        ({"months": 1}, 120, 4),
        ({"years": 1, "months": 6}, 4 * 548, 4),
    ],
)
def test_i11_a_calendar_interval_runs_once_per_slot_whatever_the_day_of_the_start(
    lengths: dict[str, int], days: int, runs: int, tmp_path: Path
) -> None:
    """Three replicas, started on three days: without a start date each counts from its own."""
    first = datetime(2011, 1, 2, 6, tzinfo=UTC).date()
    granted: list[datetime] = []
    with running(tmp_path, once_per_fire_time=True) as app:
        for number in range(3):
            trigger = calendar(start_date=first + DAY * number, **lengths)
            moment = trigger.get_next_fire_time(None, MIDNIGHT)
            while moment.date() < first + DAY * days:
                granted.append(moment)
                moment = trigger.get_next_fire_time(moment, moment)
        assert len(granted) in range(3 * runs - 3, 3 * runs + 1)

        def once(run_time: datetime) -> Any:
            return calendar(start_date=run_time.date(), end_date=run_time.date(), **lengths)

        codes = [fire(app, "calendar", once, moment).code for moment in sorted(granted)]
    # Where the first day is in the middle of a slot there is one more.
    assert codes.count(EVENT_JOB_EXECUTED) in (runs, runs + 1)


@pytest.mark.parametrize("timezone", ["Pacific/Auckland", "Pacific/Kiritimati", "America/Sao_Paulo", "Pacific/Niue"])
def test_the_slot_of_a_calendar_interval_never_begins_after_the_run(timezone: str) -> None:
    """A store refuses a fire time that is later than its clock; and each run has a slot of its own."""
    for lengths in ({"days": 1}, {"weeks": 2}, {"months": 1}, {"years": 1}):
        trigger = calendar(timezone=ZoneInfo(timezone), start_date="2018-01-15", **lengths)
        moment, slots = None, []
        for _ in range(400):
            moment = trigger.get_next_fire_time(moment, MIDNIGHT)
            slots.append(fire_time_of(trigger, moment))
            assert slots[-1] <= moment
        assert slots == sorted(set(slots))


@pytest.mark.parametrize(
    ("trigger", "warns"),
    [
        (CronTrigger(hour=0, jitter=5), True),
        (OrTrigger([CronTrigger(hour=0), CronTrigger(hour=1, jitter=5)]), True),
        (OrTrigger([CronTrigger(hour=0), IntervalTrigger(days=1)]), True),
        (OrTrigger([CronTrigger(hour=0), CronTrigger(hour=1)]), False),
        (IntervalTrigger(days=1, jitter=5), False),
    ],
)
def test_fire_times_that_replicas_do_not_share_are_warned_of_once(
    trigger: Any, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, once_per_fire_time="true") as app:
        task = app.task()
        for count in (1, 2):
            app.add(task, None, trigger, next_run_time=now() + timedelta(microseconds=count), replace_existing=True)
            app.wait(task, *ENDS, count=count)
        assert len(warnings_of(caplog, task.id, logger="apscheduler")) == warns


@pytest.mark.parametrize(("lengths", "warns"), [({"days": 1}, False), ({"months": 1, "days": 1}, True)])
def test_a_calendar_interval_that_has_no_slots_is_warned_of(
    lengths: dict[str, int], warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, once_per_fire_time=True) as app:
        task = app.task()
        app.add(task, None, calendar(**lengths), next_run_time=now())
        app.wait(task, *ENDS)
        assert len(warnings_of(caplog, task.id, logger="apscheduler")) == warns
