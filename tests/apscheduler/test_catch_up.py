"""catch_up: a run that all replicas missed while they were down runs once when they are back."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from shedlock_py import (
    ConfigurationError,
    Event,
    LeaderElector,
    LockProvider,
    LockRecord,
    LockRequest,
    RunMissed,
    configure,
    set_active,
)
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor, install, lead
from shedlock_py.integrations.apscheduler.catch_up import is_missed, last_run_time
from shedlock_py.integrations.apscheduler.worker import JOB_TASK
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.apscheduler.app import ENDS, SLOW_PROCESS, App, Task, make_inner, now, seconds, sqlite_locks, stop
from tests.apscheduler.past import PastStore, daily, ran_at
from tests.support.loop_threads import EventLoopThread
from tests.support.polling import wait_until

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
WITHIN = timedelta(minutes=10)


class Replica(App):
    """A scheduler that gets its jobs before it starts."""

    def __init__(self, directory: Path, kind: str, given: Any, provider: LockProvider) -> None:
        executor = ShedLockExecutor(make_inner(kind), given, catch_up=WITHIN)
        scheduler = AsyncIOScheduler if kind in ("asyncio", "coroutine") else BackgroundScheduler
        super().__init__(scheduler(executors={"default": executor}, timezone="UTC"), provider, directory, kind)
        self.loop: EventLoopThread | None = None

    def settle(self, after: float = 0.0) -> None:
        super().settle(after)
        if loop := self.loop:  # jobs on a loop may overlap; the end of the loop cancels an unfinished job
            wait_until(lambda: not loop.call(job_tasks), what="the end of all jobs")

    def plan(self, trigger: Any, task: Task | None = None, **options: Any) -> Task:
        """Add a job with APScheduler's own default for ``misfire_grace_time``, one second."""
        task = task or self.task()
        self.scheduler.add_job(self.function("locked"), trigger, id=task.id, args=(task.lock, task.log), **options)
        return task


def job_tasks() -> list[str]:
    """Return the names of the running event loop's jobs."""
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith(JOB_TASK)]


@contextmanager
def started(replica: Replica, **options: Any) -> Iterator[Replica]:
    with ExitStack() as stack:
        if replica.kind in ("asyncio", "coroutine"):
            replica.loop = stack.enter_context(closing(EventLoopThread()))
            replica.loop.call(replica.scheduler.start)
        else:
            replica.scheduler.start(**options)
        stack.callback(stop, replica)
        yield replica


@pytest.fixture
def provider() -> PastStore:
    return PastStore()


@pytest.fixture
def replica(tmp_path: Path, provider: PastStore) -> Replica:
    return Replica(tmp_path, "thread", provider, provider)


@pytest.mark.parametrize("jobs", [15, pytest.param(100, marks=pytest.mark.slow("three replicas write 100 jobs"))])
def test_i11_each_missed_run_runs_once_when_all_replicas_restart(jobs: int, tmp_path: Path) -> None:
    """Three replicas with separate connections start at once: one replica runs each missed run."""
    began = now().replace(microsecond=0)
    with sqlite_locks(tmp_path) as (url, store), ExitStack() as stack:
        replicas = []
        for _ in range(3):
            provider = stack.enter_context(closing(SqlAlchemyLockProvider(url, timeout="60s")))
            replicas.append(Replica(tmp_path, "thread", provider, store))
        missed = {}
        for number in range(jobs):
            task, fire_time = replicas[0].task(), began - seconds(1 + number)
            for replica in replicas:
                replica.plan(daily(fire_time), task)
            ran_at(store, task.lock, fire_time - DAY, url)
            missed[task.id] = (task, fire_time)
        for replica in replicas:
            stack.enter_context(started(replica))
        wait_until(lambda: all(task.runs for task, _ in missed.values()), what="the missed runs")
        for replica in replicas:
            stop(replica)
        for task, fire_time in missed.values():
            assert task.runs == 1
            record = store.record(task.lock)
            assert record is not None
            assert record.last_fire_time == fire_time
        ends = Counter(
            (event.job_id, event.scheduled_run_time)
            for replica in replicas
            for event in replica.events
            if event.code == EVENT_JOB_EXECUTED
        )
        assert ends == {(task.id, fire_time): 1 for task, fire_time in missed.values()}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "restarts",
    [
        1,
        pytest.param(3, marks=pytest.mark.slow("each restart waits for a second")),
        pytest.param(100, marks=pytest.mark.matrix("each restart waits for a second")),
    ],
)
def test_i11_all_replicas_restart_across_a_fire_time(restarts: int, tmp_path: Path) -> None:
    """A job is due each second. Three replicas stop, a second passes, three new replicas start: no run is lost."""
    every_second = CronTrigger(second="*", timezone="UTC")
    ends: Counter[datetime] = Counter()
    with sqlite_locks(tmp_path) as (url, store):
        task = Task(tmp_path)
        ran_at(store, task.lock, now().replace(microsecond=0))
        for _ in range(restarts):
            stopped = now()
            wait_until(lambda: now() >= stopped.replace(microsecond=0) + seconds(1), what="the next second")  # noqa: B023
            new = Task(tmp_path)
            with ExitStack() as stack:
                replicas = []
                earliest = now().replace(microsecond=0)
                for _ in range(3):
                    provider = stack.enter_context(closing(SqlAlchemyLockProvider(url, timeout="60s")))
                    replica = Replica(tmp_path, "thread", provider, store)
                    replica.plan(every_second, task)
                    replica.plan(daily(earliest - seconds(60)), new)
                    replicas.append(stack.enter_context(started(replica)))
                latest = now().replace(microsecond=0)
                for replica in replicas:
                    wait_until(lambda: replica.codes(task, *ENDS), what="the run or its skip")  # noqa: B023
            found = Counter(
                event.scheduled_run_time for replica in replicas for event in replica.codes(task, EVENT_JOB_EXECUTED)
            )
            assert earliest <= min(found) <= latest  # a replica may need more than a second to start
            assert new.runs == 0  # it missed nothing
            ends += found
    assert set(ends.values()) == {1}
    assert task.runs == ends.total() >= restarts


@pytest.mark.parametrize("kind", ["thread", SLOW_PROCESS, "asyncio", "coroutine", "debug"])
def test_a_missed_run_runs_late(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fire_time = now().replace(microsecond=0) - seconds(60)
    with ExitStack() as stack:
        given: Any
        provider: LockProvider
        url = None
        if kind == "process":
            url, provider = stack.enter_context(sqlite_locks(tmp_path))
            given = url
        else:
            given = provider = PastStore()
        replica = Replica(tmp_path, kind, given, provider)
        task = replica.plan(daily(fire_time))
        ran_at(provider, task.lock, fire_time - DAY, url)
        with caplog.at_level(logging.INFO), started(replica):
            [event] = replica.wait(task, *ENDS)
            assert (event.code, event.scheduled_run_time) == (EVENT_JOB_EXECUTED, fire_time)
        assert task.runs == 1
        if kind != "process":  # the worker process logs it
            assert "when no replica ran it: it runs now" in caplog.text
        again = Replica(tmp_path, kind, given, provider)
        again.plan(daily(fire_time), task)
        with started(again):
            again.settle()
        assert (again.codes(task, *ENDS), task.runs) == ([], 1)


@pytest.mark.parametrize(
    "why",
    [
        "new",
        "ran",
        "too long ago",
        "no fire times",
        "shared lock",
        "no lock",
        "other executor",
        "paused job",
        "no locking",
    ],
)
def test_nothing_is_caught_up(why: str, replica: Replica, provider: PastStore) -> None:
    fire_time = now().replace(microsecond=0) - seconds(60)
    task, options = replica.task(), dict[str, Any]()
    match why:
        case "ran":
            ran_at(provider, task.lock, fire_time)
        case "too long ago":
            ran_at(provider, task.lock, fire_time - DAY)
            fire_time -= WITHIN
        case "no fire times":
            ran_at(provider, task.lock, None)
        case "shared lock":
            ran_at(provider, task.lock, fire_time - DAY)
            other = replica.task()
            other.lock = task.lock
            replica.plan(daily(fire_time + HOUR), other)
        case "other executor":
            ran_at(provider, task.lock, fire_time - DAY)
            replica.scheduler.add_executor("threadpool", "other")
            options["executor"] = "other"
        case "paused job":
            ran_at(provider, task.lock, fire_time - DAY)
            options["next_run_time"] = None
        case "no lock":
            replica.add(task, replica.function("unlocked"), daily(fire_time), args=(task.log,))
        case "no locking":
            ran_at(provider, task.lock, fire_time - DAY)
    if why != "no lock":
        replica.plan(daily(fire_time), task, **options)
    set_active(False if why == "no locking" else None)
    try:
        with started(replica):
            replica.settle()
    finally:
        set_active(None)
    assert (replica.codes(task, *ENDS), task.runs) == ([], 0)


def test_while_the_lock_is_held_the_run_is_skipped(replica: Replica, provider: PastStore) -> None:
    fire_time = now().replace(microsecond=0) - seconds(60)
    task = replica.plan(daily(fire_time))
    with provider.at(fire_time - DAY):
        assert provider.acquire(LockRequest(task.lock, "2d", fire_time=fire_time - DAY))
    with started(replica):
        [event] = replica.wait(task, *ENDS)
    assert (event.code, event.reason, task.runs) == (EVENT_JOB_SKIPPED, "held", 0)


def test_a_scheduler_that_starts_paused_catches_up_when_it_is_resumed(replica: Replica, provider: PastStore) -> None:
    fire_time = now().replace(microsecond=0) - seconds(60)
    task = replica.plan(daily(fire_time))
    ran_at(provider, task.lock, fire_time - DAY)
    with started(replica, paused=True):
        assert replica.codes(task, *ENDS) == []
        replica.scheduler.resume()
        assert replica.wait(task, *ENDS)[0].code == EVENT_JOB_EXECUTED
        replica.settle()
    assert task.runs == 1


def test_i14_each_resume_catches_up(replica: Replica, provider: PastStore) -> None:
    """Its grace time is a second, so APScheduler drops runs that were due during its own pause."""
    fire_time = now().replace(microsecond=0) - seconds(60)
    task = replica.task()
    with started(replica):
        replica.scheduler.pause()
        replica.plan(daily(fire_time), task)
        ran_at(provider, task.lock, fire_time - DAY)
        replica.scheduler.resume()
        assert replica.wait(task, *ENDS)[0].scheduled_run_time == fire_time
        replica.scheduler.pause()
        replica.scheduler.resume()
        replica.settle()
    assert task.runs == 1


def test_i14_an_interval_job_runs_although_its_processes_live_shorter_than_its_interval(
    tmp_path: Path, provider: PastStore
) -> None:
    """The job has no record, and its interval is longer than ``catch_up``. Each replica lives briefly."""
    task = Replica(tmp_path, "thread", provider, provider).task()
    for _ in range(3):
        replica = Replica(tmp_path, "thread", provider, provider)
        replica.plan(IntervalTrigger(hours=5000), task)
        with started(replica):
            wait_until(lambda: task.runs, what="the run of the slot")
            replica.settle()
    assert task.runs == 1


@pytest.mark.parametrize("began_before", [30, 90])
def test_i14_a_run_that_an_operator_paused_was_not_missed(
    began_before: int, replica: Replica, provider: PastStore
) -> None:
    """The pause ended half a minute after or before the fire time."""
    fire_time = now().replace(microsecond=0) - seconds(120)
    task = replica.plan(daily(fire_time))
    ran_at(provider, task.lock, fire_time - DAY)
    with provider.at(fire_time - seconds(began_before)):
        provider.pause(task.lock, "1m", by="alice")
    with started(replica):
        if began_before == 30:
            replica.settle()
        else:
            replica.wait(task, EVENT_JOB_EXECUTED)
    assert task.runs == (began_before == 90)


def test_i14_a_schedule_that_a_deploy_has_moved_is_not_caught_up_and_says_so(
    replica: Replica, provider: PastStore
) -> None:
    events: list[Event] = []
    fire_time = now().replace(microsecond=0) - seconds(60)
    task = replica.plan(daily(fire_time))
    ran_at(provider, task.lock, fire_time - HOUR)
    with configure(listeners=[events.append]), started(replica):
        wait_until(lambda: events, what="the event")
        replica.settle()
    [event] = [event for event in events if isinstance(event, RunMissed)]
    assert (event.lock_name, event.fire_time, event.reason) == (task.lock, fire_time, "schedule_changed")
    assert task.id in event.details
    assert task.runs == 0


def test_install_on_a_running_scheduler_catches_up(tmp_path: Path, provider: PastStore) -> None:
    fire_time = now().replace(microsecond=0) - seconds(60)
    scheduler = BackgroundScheduler(timezone="UTC")
    app = App(scheduler, provider, tmp_path, "thread")
    task = app.task()
    scheduler.start()
    app.add(task, None, daily(fire_time))
    ran_at(provider, task.lock, fire_time - DAY)
    install(scheduler, provider, catch_up="10m")
    try:
        assert app.wait(task, *ENDS)[0].code == EVENT_JOB_EXECUTED
    finally:
        stop(app)


def test_options_that_cannot_work(provider: PastStore) -> None:
    with pytest.raises(ConfigurationError, match="catch_up cannot work with once_per_fire_time=False"):
        ShedLockExecutor(catch_up="10m", once_per_fire_time=False)
    with pytest.raises(ConfigurationError, match="catch_up='ten' is not a duration"):
        ShedLockExecutor(catch_up="ten")
    elector = LeaderElector(provider, "leader")
    with pytest.raises(ConfigurationError, match="catch_up cannot work with elector="):
        ShedLockExecutor(catch_up="10m", elector=elector)
    executor = ShedLockExecutor(provider=provider, catch_up="10m")
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone="UTC")
    with pytest.raises(ConfigurationError, match="give the jobs a misfire_grace_time"), lead(scheduler, elector):
        raise AssertionError


NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)  # a Monday
BERLIN = ZoneInfo("Europe/Berlin")


HOURLY = CronTrigger(minute=0, timezone="UTC")
EACH_HOUR = IntervalTrigger(hours=1)


def record(
    last: float | None, locked_at: float | None = None, until: float | None = None, by: str = "web-1"
) -> LockRecord:
    """A record with times in hours before noon."""
    began = last if locked_at is None else locked_at
    assert began is not None
    ended = began if until is None else until
    fire_time = None if last is None else NOON - last * HOUR
    return LockRecord("job", by, NOON - began * HOUR, NOON - ended * HOUR, 1, fire_time, NOON + HOUR / 2)


@pytest.mark.parametrize(
    ("trigger", "found", "expected"),
    [
        (HOURLY, None, False),
        (EACH_HOUR, None, True),
        (HOURLY, record(1), True),
        (HOURLY, record(0), False),
        (HOURLY, record(-0.1), False),
        (HOURLY, record(None, 1), False),
        (EACH_HOUR, record(None, 1), True),
        (HOURLY, record(1, -0.1), False),
        (EACH_HOUR, record(1, -0.1), False),
        (HOURLY, record(1, 0.1, -0.1, "paused by alice"), False),
        (HOURLY, record(1, 0.2, 0.1, "paused by alice"), True),
        (HOURLY, record(1, -0.1, -0.2, "paused by alice"), True),
        (HOURLY, record(1.5), None),
        (EACH_HOUR, record(0.5), None),
        (EACH_HOUR, record(1.5), True),
        (OrTrigger([HOURLY, CronTrigger(hour=10, minute=30, timezone="UTC")]), record(1.5), True),
        (CronTrigger(hour=13, timezone=BERLIN), record(24), True),
    ],
)  # fmt: skip
def test_what_was_missed_at_noon(trigger: Any, found: LockRecord | None, expected: bool | None) -> None:
    assert is_missed(found, trigger, NOON, is_of_trigger=True) is expected


@pytest.mark.parametrize(
    ("trigger", "within", "expected"),
    [
        (CronTrigger(minute="*/8", second=1, timezone="UTC"), WITHIN, NOON - seconds(239)),
        (CronTrigger(second="*", timezone="UTC"), 30 * DAY, NOON),
        (CronTrigger(hour=3, timezone="UTC"), WITHIN, None),
        (CronTrigger(hour=3, timezone="UTC"), timedelta(hours=9), NOON - timedelta(hours=9)),
        (CronTrigger(hour=3, timezone=BERLIN), DAY, NOON - timedelta(hours=10)),
        (CronTrigger(day_of_week="mon", hour=9, minute="0,30", timezone="UTC"), 7 * DAY, NOON - timedelta(hours=2.5)),
        (CronTrigger(hour=11, end_date=NOON - DAY, timezone="UTC"), timedelta(hours=2), None),
        (CronTrigger(hour=11, start_date=NOON, timezone="UTC"), timedelta(hours=2), None),
        (IntervalTrigger(hours=1, start_date=NOON - timedelta(minutes=605)), WITHIN, NOON - timedelta(minutes=5)),
        (IntervalTrigger(hours=1, start_date=NOON - 2.5 * HOUR, jitter=99), HOUR, NOON - HOUR / 2),
        (IntervalTrigger(hours=1, start_date=NOON - timedelta(minutes=630)), WITHIN, None),
        (IntervalTrigger(minutes=7, start_date=NOON + timedelta(minutes=7)), WITHIN, NOON - timedelta(minutes=5)),
        (IntervalTrigger(hours=5, start_date=NOON + timedelta(hours=5)), WITHIN, NOON - timedelta(hours=3)),
        (IntervalTrigger(hours=5, start_date=NOON + timedelta(hours=6)), WITHIN, None),
        (IntervalTrigger(hours=5, start_date=NOON - timedelta(hours=6)), WITHIN, NOON - timedelta(hours=1)),
        (IntervalTrigger(hours=1, start_date=NOON - DAY, end_date=NOON - 2.5 * HOUR), 3 * HOUR, NOON - 3 * HOUR),
        (OrTrigger([CronTrigger(hour=hour, timezone="UTC") for hour in (3, 5)]), DAY, NOON - 7 * HOUR),
        (AndTrigger([CronTrigger(hour=3, timezone="UTC")]), DAY, None),
        (CronTrigger(minute="*", jitter=5, timezone="UTC"), WITHIN, None),
        (DateTrigger(NOON), WITHIN, None),
    ],
    ids=str,
)  # fmt: skip
def test_the_last_run_time(trigger: Any, within: timedelta, expected: datetime | None) -> None:
    assert last_run_time(trigger, NOON, within) == expected
