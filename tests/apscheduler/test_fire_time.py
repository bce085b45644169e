"""By default, a scheduled time runs once among all replicas, however short the job."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from shedlock_py import ConfigurationError, InMemoryLockProvider, LeaderElector, LockRequest, configure, scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor, install
from shedlock_py.integrations.apscheduler.fire_times import fire_time_of, is_predictable
from shedlock_py.integrations.apscheduler.job_locks import JobLocks
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.settings.options import LockOptions
from tests.apscheduler import jobs
from tests.apscheduler.app import ENDS, App, ProcessPool, Task, make_inner, make_store, now, running, seconds, stop
from tests.support.logs import warnings_of
from tests.support.polling import wait_until

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@contextmanager
def two_replicas(directory: Path, kind: str, **options: Any) -> Iterator[tuple[App, App]]:
    provider = InMemoryLockProvider()
    with (
        running(directory, kind, provider=provider, **options) as one,
        running(directory, kind, provider=provider, **options) as other,
    ):
        yield one, other


def cron(run_time: datetime) -> Any:
    return CronTrigger(hour=0, end_date=run_time, timezone="UTC")


def date(run_time: datetime) -> Any:
    return DateTrigger(run_time)


def interval(run_time: datetime, length: timedelta = timedelta(days=1)) -> Any:
    return IntervalTrigger(seconds=length.total_seconds(), start_date=run_time, end_date=run_time)


def fire(app: App, lock: str, trigger: Any, run_time: datetime) -> Any:
    """Run the job of ``lock`` at ``run_time``, which is past, with a trigger that ends then.

    Return its event.
    """
    task = app.task()
    task.id = lock
    app.events.clear()
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


def test_with_plain_locks_a_fast_job_runs_on_each_replica(tmp_path: Path) -> None:
    with running(tmp_path, once_per_fire_time=False) as app:
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
    """Three replicas start on three days: without a start date each replica counts from its own start."""
    first = datetime(2011, 1, 2, 6, tzinfo=UTC).date()
    granted: list[datetime] = []
    with running(tmp_path) as app:
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
    # If the first day is in the middle of a slot, there is one more run.
    assert codes.count(EVENT_JOB_EXECUTED) in (runs, runs + 1)


@pytest.mark.parametrize("timezone", ["Pacific/Auckland", "Pacific/Kiritimati", "America/Sao_Paulo", "Pacific/Niue"])
def test_the_slot_of_a_calendar_interval_never_begins_after_the_run(timezone: str) -> None:
    """A store rejects a fire time that is later than its clock, and each run needs a different slot."""
    for lengths in ({"days": 1}, {"weeks": 2}, {"months": 1}, {"years": 1}):
        trigger = calendar(timezone=ZoneInfo(timezone), start_date="2018-01-15", **lengths)
        moment, slots = None, []
        for _ in range(400):
            moment = trigger.get_next_fire_time(moment, MIDNIGHT)
            slots.append(fire_time_of(trigger, moment))
            assert slots[-1] <= moment
        assert slots == sorted(set(slots))


# Jobs without shared fire times


class EachReplicaItsOwn(BaseTrigger):
    """A trigger of another package."""

    def get_next_fire_time(self, previous_fire_time: Any, now: datetime) -> datetime:
        return now + DAY


SHARED = [
    CronTrigger(hour=0),
    DateTrigger(MIDNIGHT),
    IntervalTrigger(days=1, jitter=5),
    OrTrigger([CronTrigger(hour=0), CronTrigger(hour=1)]),
    AndTrigger([CronTrigger(hour=0), CronTrigger(day=1)]),
]
NOT_SHARED = [
    CronTrigger(hour=0, jitter=5),
    OrTrigger([CronTrigger(hour=0), CronTrigger(hour=1, jitter=5)]),
    OrTrigger([CronTrigger(hour=0), IntervalTrigger(days=1)]),
    EachReplicaItsOwn(),
]
PLAIN = "gets a plain lock, because each replica has fire times of its own"


def test_which_triggers_give_all_replicas_the_same_fire_times() -> None:
    assert [is_predictable(trigger) for trigger in SHARED] == [True] * len(SHARED)
    assert [is_predictable(trigger) for trigger in NOT_SHARED] == [False] * len(NOT_SHARED)


@pytest.mark.parametrize(
    ("lengths", "are_shared"),
    [
        ({"days": 1}, True),
        ({"weeks": 1, "days": 1}, True),
        ({"years": 1, "months": 1}, True),
        ({"months": 1, "days": 1}, False),
    ],
)
def test_which_calendar_intervals_do(lengths: dict[str, int], are_shared: bool) -> None:
    assert is_predictable(calendar(**lengths)) is are_shared


def test_a_job_without_shared_fire_times_gets_a_plain_lock_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path) as app:
        task = app.task()
        jittered = CronTrigger(hour=0, jitter=5)
        app.add(task, None, jittered)
        (line,) = warnings_of(caplog, f'job "{task.id}" {PLAIN}', logger="apscheduler")  # before it is due
        assert "with jitter" in line
        assert "lock_at_least_for" in line
        for count in (1, 2):
            app.add(task, None, jittered, next_run_time=MIDNIGHT, replace_existing=True)
            events = app.wait(task, *ENDS, count=count)
        assert [event.code for event in events] == [EVENT_JOB_EXECUTED] * 2
        record = app.provider.record(task.lock)
        assert record is not None
        assert record.last_fire_time is None
        assert len(warnings_of(caplog, task.id, logger="apscheduler")) == 1


@pytest.mark.parametrize("choice", ["shared fire times", "plain locks are meant", "no lock"])
def test_there_is_no_warning(choice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = Task(tmp_path)
    options: dict[str, Any] = {}
    if choice == "plain locks are meant":
        options["once_per_fire_time"] = "false"
    if choice == "no lock":
        options["locks"] = {task.id: None}
    trigger = CronTrigger(hour=0, jitter=None if choice == "shared fire times" else 5)
    with running(tmp_path, **options) as app:
        function = "unlocked" if choice == "no lock" else "locked"
        arguments = (task.log,) if choice == "no lock" else (task.lock, task.log)
        app.run_once(task, app.function(function), trigger, next_run_time=now(), args=arguments)
    assert warnings_of(caplog, task.id, logger="apscheduler") == []


def test_on_the_leader_a_plain_lock_is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path, elector=LeaderElector(InMemoryLockProvider(), "jobs")) as app:
        task = app.task()
        app.add(task, None, CronTrigger(hour=0, jitter=5))
    assert warnings_of(caplog, task.id, logger="apscheduler") == []


def test_true_refuses_such_a_job_when_it_is_added(tmp_path: Path) -> None:
    with running(tmp_path, once_per_fire_time="true") as app:
        task = app.task()
        with pytest.raises(ConfigurationError, match=rf'cannot work for job "{task.id}", because each replica'):
            app.add(task, None, CronTrigger(hour=0, jitter=5))
        assert app.scheduler.get_jobs() == []
        app.add(task, app.function("unlocked"), CronTrigger(hour=0, jitter=5), args=(task.log,))  # it has no lock


def test_true_refuses_to_start_with_such_a_job(tmp_path: Path) -> None:
    executor = ShedLockExecutor("debug", InMemoryLockProvider(), once_per_fire_time=True)
    app = App(BackgroundScheduler(executors={"default": executor}, timezone="UTC"), executor, tmp_path, "debug")
    task = app.task()
    app.add(task, None, CronTrigger(hour=0, jitter=5))
    with pytest.raises(ConfigurationError, match=task.id):
        app.scheduler.start()
    assert not app.scheduler.running
    app.scheduler.remove_job(task.id)
    app.scheduler.start()
    app.scheduler.shutdown()


def test_true_refuses_to_be_installed_with_such_a_job(tmp_path: Path) -> None:
    scheduler = BackgroundScheduler(timezone="UTC")
    app = App(scheduler, InMemoryLockProvider(), tmp_path, "thread")
    task = app.task()
    scheduler.start()
    try:
        app.add(task, None, CronTrigger(hour=0, jitter=5))
        with pytest.raises(ConfigurationError, match=task.id):
            install(scheduler, app.provider, once_per_fire_time=True)
        install(scheduler, app.provider)  # nothing was installed before
    finally:
        stop(app)


def test_true_does_not_run_a_job_that_was_rescheduled(tmp_path: Path) -> None:
    with running(tmp_path, once_per_fire_time=True) as app:
        task = app.task()
        job = app.add(task, None, CronTrigger(hour=0))
        job.modify(trigger=CronTrigger(hour=0, jitter=5), next_run_time=now())
        [event] = app.wait(task, *ENDS)
        assert isinstance(event.exception, ConfigurationError)
        assert task.runs == 0


def test_true_names_such_a_job_of_a_job_store_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store("sqlalchemy", tmp_path)
    plain = BackgroundScheduler(jobstores={"default": store}, timezone="UTC")
    app = App(plain, InMemoryLockProvider(), tmp_path, "thread")
    task = app.task()
    plain.start(paused=True)
    app.add(task, None, CronTrigger(hour=0, jitter=5))
    plain.shutdown()
    executor = ShedLockExecutor("debug", app.provider, once_per_fire_time=True)
    scheduler = BackgroundScheduler(executors={"default": executor}, jobstores={"default": store}, timezone="UTC")
    scheduler.start()
    scheduler.shutdown()
    assert len(warnings_of(caplog, "once_per_fire_time=True cannot work", task.id, logger="apscheduler")) == 1


# A lock table without the column last_fire_time


@pytest.fixture
def java_table(tmp_path: Path) -> Iterator[SqlAlchemyLockProvider]:
    with closing(SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/java.db", extra_columns=False)) as provider:
        provider.create_schema()
        yield provider


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
@pytest.mark.parametrize("is_configured_late", [False, True])
def test_a_table_without_the_column_gets_plain_locks_and_one_warning(
    kind: str,
    is_configured_late: bool,
    java_table: SqlAlchemyLockProvider,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor = ShedLockExecutor(make_inner(kind), None if is_configured_late else java_table)
    with running(tmp_path, kind, provider=java_table, executor=executor) as app:
        task = app.task()
        app.add(task, None, "cron", hour=0)
        with configure(java_table):
            for count in (1, 2):
                app.scheduler.modify_job(task.id, next_run_time=now())
                events = app.wait(task, *ENDS, count=count)
        assert [event.code for event in events] == [EVENT_JOB_EXECUTED] * 2
        (line,) = warnings_of(caplog, task.id, "plain lock", logger="apscheduler")
        assert "no column last_fire_time" in line


def test_a_decorators_own_fire_time_goes_before_that_of_the_scheduler(tmp_path: Path) -> None:
    """So a job with jitter, which has no shared fire times, is accepted."""

    @scheduler_lock("own", "1m", fire_time=lambda: NOON)
    def function() -> None: ...

    with running(tmp_path, once_per_fire_time=True) as app:
        app.run_once(app.task(), function, "cron", hour=0, jitter=60, args=(), next_run_time=now())
        (record,) = app.provider.records()
        assert record.last_fire_time == NOON


def test_true_refuses_a_table_without_the_column(java_table: SqlAlchemyLockProvider, tmp_path: Path) -> None:
    with running(tmp_path, provider=java_table, once_per_fire_time=True) as app:
        task = app.task()
        with pytest.raises(ConfigurationError, match="no column last_fire_time"):
            app.add(task, None, "cron", hour=0)
    executor = ShedLockExecutor(once_per_fire_time=True)
    with running(tmp_path, provider=java_table, executor=executor) as app:
        app.add(task, None, "cron", hour=0)  # its store is not known yet
        with configure(java_table):
            app.scheduler.modify_job(task.id, next_run_time=now())
            [event] = app.wait(task, *ENDS)
        assert isinstance(event.exception, ConfigurationError)
        assert task.runs == 0


@pytest.mark.slow("starts a worker process")
@pytest.mark.parametrize("must_run_once", [False, True])
def test_a_worker_process_finds_that_its_table_has_no_column(
    must_run_once: bool, java_table: SqlAlchemyLockProvider, tmp_path: Path
) -> None:
    """Its initializer sets the store, and the scheduler's process does not know the store."""
    pool = ProcessPool(initializer=jobs.configure_java_table, initargs=(f"sqlite:///{tmp_path}/java.db",))
    executor = ShedLockExecutor(pool, once_per_fire_time=True if must_run_once else None)
    with running(tmp_path, provider=java_table, executor=executor) as app:
        task = app.task()
        event = app.run_once(task, None, "cron", hour=0, next_run_time=now())
        assert isinstance(event.exception, ConfigurationError) is must_run_once
        assert task.runs == (not must_run_once)


# once_per= and fire_time= of the decorator


class Message:
    sent_at = NOON

    @scheduler_lock("message", "1m", fire_time=lambda self: self.sent_at)
    def send(self) -> None: ...

    @scheduler_lock("message-{self.sent_at.year}", "1m", fire_time=lambda self: self.sent_at)
    def __call__(self) -> None: ...


@scheduler_lock("message", "1m", fire_time=lambda sent_at, user="": sent_at)
def send(sent_at: datetime, user: str = "") -> None: ...


def request_of(function: Any, *args: Any, locks: Any = None) -> LockRequest:
    """Return a run's lock request."""
    job_locks = JobLocks(locks, False, None, LockOptions(), None, None)
    job = SimpleNamespace(id="job", func=function, args=args, kwargs={})
    lock = job_locks.choose(job)
    assert lock is not None
    return job_locks.request(lock, job)


@pytest.mark.parametrize("locks", [None, {"job": {"name": "other", "lock_at_most_for": "1m"}}])
@pytest.mark.parametrize(
    "function", [Message().send, Message(), partial(send, NOON), partial(send, sent_at=NOON, user="ada"), send]
)
def test_i11_the_decorators_fire_time(function: Any, locks: Any) -> None:
    """It also works for a method and a partial, and if ``locks`` gives the job another lock."""
    request = request_of(function, *([NOON] if function is send else []), locks=locks)
    assert request.fire_time == NOON
    assert request.name == ("other" if locks else "message-2024" if isinstance(function, Message) else "message")


def test_i11_a_fire_time_in_locks_goes_first() -> None:
    given = LockRequest("other", "1m", fire_time=NOON + timedelta(days=1))
    assert request_of(send, NOON, locks={"job": given}) == given
