"""A job's lock, hold times and provider; and errors."""

import asyncio
import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED, EVENT_JOB_SUBMITTED
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LeaderElector,
    Lease,
    LockRequest,
    ProviderNotConfigured,
    Skipped,
    configure,
    hold,
    scheduler_lock,
)
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, Lock, ShedLockExecutor
from shedlock_py.integrations.apscheduler.executor import GRACE_SECONDS
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.apscheduler import jobs
from tests.apscheduler.app import ENDS, SLOW_PROCESS, App, Task, now, running, sqlite_locks
from tests.support.logs import warnings_of
from tests.support.polling import wait_until


def lock_of(app: App, task: Task, function: Any = None, **options: Any) -> tuple[str, timedelta, timedelta] | None:
    """Return the name and hold times of the job's requested lock, or None."""
    requests: list[LockRequest] = []
    acquire = app.provider.acquire

    def recording_acquire(request: LockRequest) -> Lease | None:
        requests.append(request)
        return acquire(request)

    app.provider.acquire = recording_acquire  # type: ignore[method-assign]  # a spy
    try:
        assert app.run_once(task, function, **options).code == EVENT_JOB_EXECUTED
    finally:
        del app.provider.acquire
    assert len(requests) <= 1, requests
    return (requests[0].name, requests[0].lock_at_most_for, requests[0].lock_at_least_for) if requests else None


def unlocked(app: App, task: Task) -> dict[str, Any]:
    return {"function": app.function("unlocked"), "args": (task.log,)}


ZERO = timedelta(0)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("lock", "expected"),
    [
        ("by-name", ("by-name", timedelta(minutes=7), timedelta(seconds=7))),
        ("with {braces}", ("with {braces}", timedelta(minutes=7), timedelta(seconds=7))),
        ({"name": "by-dict"}, ("by-dict", timedelta(minutes=7), timedelta(seconds=7))),
        (
            {"name": "by-dict", "lock_at_most_for": "2m", "lock_at_least_for": 1},
            ("by-dict", timedelta(minutes=2), timedelta(seconds=1)),
        ),
        (LockRequest("by-request", "3m"), ("by-request", timedelta(minutes=3), ZERO)),
        (None, None),
    ],
)
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_locks_names_the_lock_of_a_job_id(kind: str, lock: Any, expected: Any, tmp_path: Path) -> None:
    task = Task(tmp_path)
    durations: dict[str, Any] = {"default_lock_at_most_for": "7m", "default_lock_at_least_for": "7s"}
    with running(tmp_path, kind, locks={task.id: lock}, lock_all=True, **durations) as app:
        assert lock_of(app, task, **unlocked(app, task)) == expected


def test_the_order_is_locks_decorator_extractor_lock_all(tmp_path: Path) -> None:
    def extract(job: Any) -> Any:
        return "by-extractor" if "pick-me" in job.name else None

    task = Task(tmp_path)
    options: dict[str, Any] = {"locks": {task.id: "by-locks"}, "lock_extractor": extract, "lock_all": True}
    with running(tmp_path, **options) as app, configure(app.provider):
        # It counts as the decorator's lock, so the decorator does not request it again.
        app.run_once(task, name="pick-me")
        assert [record.name for record in app.provider.records()] == ["by-locks"]
        other = app.task()
        assert lock_of(app, other, name="pick-me") == (other.lock, MINUTE, ZERO)
        other = app.task()
        lock = lock_of(app, other, name="pick-me", **unlocked(app, other))
        assert lock is not None
        assert lock[0] == "by-extractor"
        other = app.task()
        lock = lock_of(app, other, name="else", **unlocked(app, other))
        assert lock is not None
        assert lock[0] == other.id


def test_defaults_fill_what_the_decorator_leaves_open(tmp_path: Path) -> None:
    @scheduler_lock("open")
    def function() -> None: ...

    with running(tmp_path, default_lock_at_most_for="5m", default_lock_at_least_for="0.001s") as app:
        lock = ("open", timedelta(minutes=5), timedelta(milliseconds=1))
        assert lock_of(app, app.task(), function, args=()) == lock
    with running(tmp_path) as app, configure(default_lock_at_most_for="6m"):
        assert lock_of(app, app.task(), function, args=()) == ("open", timedelta(minutes=6), ZERO)


def test_a_duration_in_place_of_a_lock_name(tmp_path: Path) -> None:
    """A duration is rejected as a lock name, unless the context excludes a duration."""
    with running(tmp_path, lock_extractor=lambda job: "10m") as app:
        task = app.task()
        event = app.run_once(task, **unlocked(app, task))
        assert isinstance(event.exception, ConfigurationError)
        assert "this is a lock name" in str(event.exception)
        assert task.runs == 0
    with running(tmp_path, locks={"named": {"name": "5m"}}, lock_all=True, default_lock_at_most_for="7m") as app:
        for job_id, name in (("named", "5m"), ("1h", "1h")):
            task = app.task()
            task.id = job_id
            assert lock_of(app, task, **unlocked(app, task)) == (name, timedelta(minutes=7), ZERO)


def test_partials_and_callable_objects(tmp_path: Path) -> None:
    with running(tmp_path) as app:
        task = app.task()
        assert lock_of(app, task, jobs.partial_of_locked(task.lock), args=(task.log,)) == (task.lock, MINUTE, ZERO)
        task = app.task()
        assert lock_of(app, task, jobs.CallableObject()) == (task.lock, MINUTE, ZERO)


def test_a_decorator_put_above_scheduled_job_by_mistake(tmp_path: Path) -> None:
    with running(tmp_path) as app:
        task = app.task()

        @scheduler_lock(task.lock, "1m")
        @app.scheduler.scheduled_job("date", id=task.id, run_date=now(), misfire_grace_time=None)
        def function() -> str:
            return jobs.unlocked(task.log)

        app.wait(task, EVENT_JOB_EXECUTED)  # it may have run before the decorator left its spec
        with hold(task.lock, lock_at_most_for="1m", provider=app.provider):
            app.events.clear()
            job = app.scheduler.add_job(function.__wrapped__, id=task.id)
            assert job.func is not function
            app.wait(task, EVENT_JOB_SKIPPED)


def test_the_decorators_provider_goes_before_the_executors(tmp_path: Path) -> None:
    own = InMemoryLockProvider()

    @scheduler_lock("own", "1m", provider=own)
    def function() -> None: ...

    with running(tmp_path) as app:
        app.run_once(app.task(), function, args=())
        assert app.provider.records() == []
        assert [record.name for record in own.records()] == ["own"]


def test_the_configured_provider_is_looked_up_when_the_job_runs(tmp_path: Path) -> None:
    scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor("debug")}, timezone="UTC")
    app = App(scheduler, InMemoryLockProvider(), tmp_path, "debug")
    scheduler.start()
    try:
        event = app.run_once(app.task())
        assert isinstance(event.exception, ProviderNotConfigured)
        with configure(app.provider):
            task = app.task()
            assert lock_of(app, task) == (task.lock, MINUTE, ZERO)
    finally:
        scheduler.shutdown()


def test_lock_all_refuses_automatic_ids(tmp_path: Path) -> None:
    with running(tmp_path, lock_all=True) as app:
        task = app.task()
        task.id = app.scheduler.add_job(jobs.unlocked, args=(task.log,)).id
        [event] = app.wait(task, *ENDS)
        assert isinstance(event.exception, ConfigurationError)
        assert "give the job an id" in str(event.exception)
        assert task.runs == 0


@pytest.mark.parametrize("kind", ["thread", "coroutine", "debug"])
def test_a_lock_that_cannot_work_is_an_error_event(kind: str, tmp_path: Path) -> None:
    def extract(job: Any) -> Any:
        if job.name == "raises":
            raise KeyError("no such tenant")
        return 42

    with running(tmp_path, kind, lock_extractor=extract, default_lock_at_most_for="1m") as app:
        for name, text in (("raises", "no such tenant"), ("returns", "42")):
            task = app.task()
            event = app.run_once(task, name=name, **unlocked(app, task))
            assert isinstance(event.exception, ConfigurationError)
            assert text in str(event.exception)
            assert task.runs == 0
        task = app.task()
        event = app.run_once(task, args=("n" * 65, task.log))
        assert isinstance(event.exception, ConfigurationError)
        assert "64" in str(event.exception)
        assert task.runs == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"executor": 5}, ["executor", "5"]),
        ({"executor": InMemoryLockProvider()}, ["executor", "provider=…"]),
        ({"executor": "sqlite:///locks.db"}, ["executor", "not a URL: ", "the URL of a store is the second argument"]),
        ({"executor": BackgroundScheduler()}, ["executor", "install(scheduler)"]),
        ({"executor": SimpleNamespace(scheduler=BackgroundScheduler())}, ["executor", "install(scheduler)"]),
        ({"lock_all": "maybe"}, ["lock_all", "true", "false", "maybe"]),
        ({"once_per_fire_time": 2}, ["once_per_fire_time", "true", "false", "2"]),
        ({"on_provider_error": "run"}, ["on_provider_error", "error", "skip", "run"]),
        ({"locks": {"a": 5}}, ["locks['a']", "5", "name"]),
        ({"locks": {"a": {"lock_at_most_for": "1m"}}}, ["locks['a']", "name"]),
        ({"locks": {"a": {"name": "x", "at_most": "1m"}}}, ["locks['a']", "lock_at_most_for"]),
        ({"locks": {"a": ""}}, ["name", "empty"]),
        (
            {"locks": {"a": "30s"}},
            [
                "locks['a'] is '30s'",
                "this is a lock name; a duration goes into {'lock_at_most_for': '30s', 'name': 'a'}",
            ],
        ),
        ({"locks": {"a": "PT10M"}}, ["this is a lock name", "{'lock_at_most_for': 'PT10M', 'name': 'a'}"]),
        ({"default_lock_at_most_for": "10"}, ["lock_at_most_for", "10"]),
        ({"default_lock_at_least_for": -1}, ["lock_at_least_for", "-1"]),
        ({"lock_extractor": "no.such.module:function"}, ["no.such.module:function", "pkg.module:name"]),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        ShedLockExecutor(**options)
    for word in words:
        assert word in str(refusal.value)


# The executor's lock counts as the decorator's lock: a job must never skip itself

inside = pytest.mark.parametrize("kind", ["thread", "coroutine", "debug"])


@inside
def test_two_provider_objects_of_one_store(tmp_path: Path, kind: str) -> None:
    with (
        sqlite_locks(tmp_path) as (url, executors),
        closing(SqlAlchemyLockProvider(url)) as configured,
        configure(provider=configured),
        running(tmp_path, kind, provider=executors) as app,
    ):
        task = app.task()
        assert app.run_once(task).code == EVENT_JOB_EXECUTED
        assert task.runs == 1
        assert not app.is_held(task)


@inside
def test_another_lock_than_the_decorators(tmp_path: Path, kind: str) -> None:
    provider, task = InMemoryLockProvider(), Task(tmp_path)
    locks = {task.id: {"name": "other", "lock_at_most_for": "1m"}}
    provider.acquire(LockRequest(task.lock, "1m"))  # the decorator's own lock, which the job does not request
    with configure(provider=provider), running(tmp_path, kind, provider=provider, locks=locks) as app:
        assert app.run_once(task).code == EVENT_JOB_EXECUTED
        assert task.runs == 1
        provider.acquire(LockRequest("other", "1m"))
        app.events.clear()
        assert app.run_once(task).code == EVENT_JOB_SKIPPED
        assert task.runs == 1


def in_a_new_thread(function: Any) -> Any:
    """A third-party decorator, such as a time limit."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(function, *args).result(10)

    return call


def on_a_new_event_loop(function: Any) -> Any:
    @functools.wraps(function)
    async def call(*args: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: asyncio.run(function(*args)))  # without the context

    return call


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_job_that_its_own_lock_skips_is_warned_of_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A decorator calls it in another thread, outside the executor's lease. The job never ran, without a warning."""
    ran: list[int] = []

    def job() -> None:
        ran.append(1)

    async def job_async() -> None:
        ran.append(1)

    lock = scheduler_lock("job", "1m")
    function = in_a_new_thread(lock(job)) if kind == "thread" else on_a_new_event_loop(lock(job_async))
    with running(tmp_path, kind) as app, configure(provider=app.provider):
        task = Task(tmp_path)
        for _ in range(2):
            app.events.clear()
            assert app.run_once(task, function, args=()).code == EVENT_JOB_EXECUTED
    assert ran == []
    assert len(warnings_of(caplog, "'job'", "in another thread or context", "copy_context")) == 1


def test_a_call_beside_the_run_of_a_job_is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    @scheduler_lock("job", "1m")
    def job() -> None:
        has_begun.set()
        assert may_end.wait(10)

    with running(tmp_path, "thread") as app, configure(provider=app.provider):
        task = Task(tmp_path)
        app.add(task, job, args=())
        assert has_begun.wait(10)
        assert job.attempt() == Skipped("job", "held")
        may_end.set()
        app.wait(task, *ENDS)
    assert warnings_of(caplog, "another thread") == []


# A submitted run locks by the arguments of that run, even if its job is changed meanwhile


@pytest.mark.parametrize("kind", ["thread", SLOW_PROCESS])
def test_i1_a_job_that_is_changed_while_it_waits_for_a_worker(kind: str, tmp_path: Path) -> None:
    with running(tmp_path, kind) as app:
        fillers = [app.task() for _ in range(8)]  # more than the pool's workers and queued calls
        for filler in fillers:
            app.add(filler, args=(filler.lock, filler.log, filler.gate))
        task, other = app.task(), app.task()
        app.add(task, trigger="cron", year=2090, next_run_time=now())
        app.wait(task, EVENT_JOB_SUBMITTED)
        app.scheduler.modify_job(task.id, args=(other.lock, other.log))
        app.scheduler.reschedule_job(task.id, trigger="interval", hours=1)
        for filler in fillers:
            filler.open_gate()
        [event] = app.wait(task, *ENDS)
        record = app.provider.record(task.lock)
        assert event.code == EVENT_JOB_EXECUTED
        assert (task.runs, other.runs) == (1, 0)
        assert record is not None
        assert record.last_fire_time == event.scheduled_run_time
        assert app.provider.record(other.lock) is None


def test_i1_a_list_of_arguments_that_is_changed_while_its_job_waits_for_a_worker(tmp_path: Path) -> None:
    """APScheduler keeps the list object from ``modify_job()``."""
    with running(tmp_path, "thread") as app:
        fillers = [app.task() for _ in range(8)]
        for filler in fillers:
            app.add(filler, args=(filler.lock, filler.log, filler.gate))
        task, other = app.task(), app.task()
        arguments = [task.lock, task.log]
        app.add(task, trigger="cron", year=2090)
        app.scheduler.modify_job(task.id, args=arguments, next_run_time=now())
        app.wait(task, EVENT_JOB_SUBMITTED)
        arguments[:] = [other.lock, other.log]
        for filler in fillers:
            filler.open_gate()
        app.wait(task, EVENT_JOB_EXECUTED)
        assert (task.runs, other.runs) == (1, 0)
        assert app.provider.record(other.lock) is None


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_i1_a_job_that_is_changed_between_its_run_times(kind: str, tmp_path: Path) -> None:
    with running(tmp_path, kind) as app:
        task, other = app.task(), app.task()
        options = {"coalesce": False, "next_run_time": now() - timedelta(hours=2, minutes=1)}
        app.add(task, trigger="interval", hours=1, args=(task.lock, task.log, task.gate), **options)
        app.wait(task, EVENT_JOB_SUBMITTED)
        app.scheduler.modify_job(task.id, args=(other.lock, other.log))
        task.open_gate()
        app.wait(task, EVENT_JOB_EXECUTED, count=3)
        assert (task.runs, other.runs) == (3, 0)
        assert app.provider.record(other.lock) is None


# Jobs without a lock


@pytest.mark.parametrize("kind", ["thread", SLOW_PROCESS, "coroutine"])
def test_a_job_without_a_lock_is_warned_of_once_in_a_process(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(tmp_path)
    for _ in range(2):
        with running(tmp_path, kind, lock_extractor=name_none) as app:
            for _ in range(2):
                app.events.clear()
                app.run_once(task, **unlocked(app, task))
    assert task.runs == 4
    (line,) = warnings_of(caplog, f'(id "{task.id}")', logger="apscheduler")
    assert "every replica runs it" in line
    assert "locks={job id: None}" in line


def name_none(job: Any) -> Any:
    return None


def test_jobs_with_automatic_ids_are_warned_of_by_their_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as app:
        task = app.task()
        for _ in range(3):
            options = {"name": f"name of {task.id}", "misfire_grace_time": None, "max_instances": 3}
            app.scheduler.add_job(jobs.unlocked, args=(task.log,), **options)
        wait_until(lambda: task.runs == 3, what="three runs")
    assert len(warnings_of(caplog, f"name of {task.id}", logger="apscheduler")) == 1


def test_what_is_meant_to_run_without_a_lock_is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    locks: dict[str, Lock] = {}
    task = Task(tmp_path)
    locks[task.id] = None
    with running(tmp_path, locks=locks) as app:
        app.run_once(task, **unlocked(app, task))
        other = app.task()
        app.run_once(other)
        app.settle()
    with running(tmp_path, elector=LeaderElector(InMemoryLockProvider(), "jobs")) as app:
        app.run_once(app.task(), **unlocked(app, task))  # on the leader only
    assert (
        warnings_of(caplog, task.id, logger="apscheduler") == warnings_of(caplog, other.id, logger="apscheduler") == []
    )


@pytest.mark.not_quick("waits twice for the grace period")
def test_a_lock_for_a_job_id_that_is_not_there_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The application first gets a second to add its jobs."""
    often, late = Task(tmp_path), Task(tmp_path)
    typo = f"typo-of-{often.id}"
    locks = {job_id: {"name": job_id, "lock_at_most_for": "1m"} for job_id in (often.id, late.id, typo)}
    for _ in range(2):
        with running(tmp_path, locks=locks) as app:
            app.add(often, trigger="interval", seconds=0.1)
            app.add(late, trigger="date", run_date=now() + timedelta(hours=1))
            grace_ends = time.monotonic() + GRACE_SECONDS
            wait_until(lambda end=grace_ends: time.monotonic() > end, what="the end of the grace period")  # type: ignore[misc]  # a default binds it now
            runs = often.runs
            wait_until(lambda runs=runs: often.runs > runs + 1, what="a run that was submitted after it")  # type: ignore[misc]  # likewise
    (line,) = warnings_of(caplog, typo, logger="apscheduler")
    assert "check the spelling" in line
    assert warnings_of(caplog, late.id, logger="apscheduler") == []


def test_a_typo_is_named_together_with_the_job_that_has_no_lock_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(tmp_path)
    with running(tmp_path, locks={f"typo-of-{task.id}": "lock"}) as app:
        app.run_once(task, **unlocked(app, task))
    assert len(warnings_of(caplog, f'"typo-of-{task.id}"', logger="apscheduler")) == 1
    assert len(warnings_of(caplog, f'(id "{task.id}")', logger="apscheduler")) == 1
