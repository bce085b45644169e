"""Which lock a job gets, for how long, from which provider; and what is refused."""

import logging
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LeaderElector,
    Lease,
    LockRequest,
    ProviderNotConfigured,
    configure,
    hold,
    scheduler_lock,
)
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, Lock, ShedLockExecutor
from shedlock_py.integrations.apscheduler.job_warnings import GRACE_SECONDS
from tests.apscheduler import jobs
from tests.apscheduler.rig import Rig, Task, now, running
from tests.support.polling import wait_until

ENDS = (EVENT_JOB_EXECUTED, EVENT_JOB_ERROR, EVENT_JOB_SKIPPED)


def run_once(rig: Rig, task: Task, function: Any = None, **options: Any) -> Any:
    rig.add(task, function, **options)
    [event] = rig.wait(task, *ENDS)
    return event


def lock_of(rig: Rig, task: Task, function: Any = None, **options: Any) -> tuple[str, timedelta, timedelta] | None:
    """Name and hold times of the lock that a job asked for, or None."""
    asked: list[LockRequest] = []
    acquire = rig.provider.acquire

    def noting_acquire(request: LockRequest) -> Lease | None:
        asked.append(request)
        return acquire(request)

    rig.provider.acquire = noting_acquire  # type: ignore[method-assign]  # a spy
    try:
        assert run_once(rig, task, function, **options).code == EVENT_JOB_EXECUTED
    finally:
        del rig.provider.acquire
    assert len(asked) <= 1, asked
    return (asked[0].name, asked[0].lock_at_most_for, asked[0].lock_at_least_for) if asked else None


def unlocked(rig: Rig, task: Task) -> dict[str, Any]:
    return {"function": rig.function("unlocked"), "args": (task.log,)}


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
    durations = {"default_lock_at_most_for": "7m", "default_lock_at_least_for": "7s"}
    with running(tmp_path, kind, locks={task.id: lock}, lock_all=True, **durations) as rig:
        assert lock_of(rig, task, **unlocked(rig, task)) == expected


def test_the_order_is_locks_decorator_extractor_lock_all(tmp_path: Path) -> None:
    def extract(job: Any) -> Any:
        return "by-extractor" if "pick-me" in job.name else None

    task = Task(tmp_path)
    options: dict[str, Any] = {"locks": {task.id: "by-locks"}, "lock_extractor": extract, "lock_all": True}
    with running(tmp_path, **options) as rig, configure(rig.provider):
        # It counts as the decorator's, which asks for none of its own.
        run_once(rig, task, name="pick-me")
        assert [record.name for record in rig.provider.records()] == ["by-locks"]
        other = rig.task()
        assert lock_of(rig, other, name="pick-me") == (other.lock, MINUTE, ZERO)
        other = rig.task()
        lock = lock_of(rig, other, name="pick-me", **unlocked(rig, other))
        assert lock is not None
        assert lock[0] == "by-extractor"
        other = rig.task()
        lock = lock_of(rig, other, name="else", **unlocked(rig, other))
        assert lock is not None
        assert lock[0] == other.id


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_the_decorator_inside_takes_no_second_lock(kind: str, tmp_path: Path) -> None:
    with running(tmp_path, kind) as rig, configure(rig.provider):
        task = rig.task()
        assert lock_of(rig, task) == (task.lock, MINUTE, ZERO)


def test_defaults_fill_what_the_decorator_leaves_open(tmp_path: Path) -> None:
    @scheduler_lock("open")
    def function() -> None: ...

    with running(tmp_path, default_lock_at_most_for="5m", default_lock_at_least_for="0.001s") as rig:
        lock = ("open", timedelta(minutes=5), timedelta(milliseconds=1))
        assert lock_of(rig, rig.task(), function, args=()) == lock
    with running(tmp_path) as rig, configure(default_lock_at_most_for="6m"):
        assert lock_of(rig, rig.task(), function, args=()) == ("open", timedelta(minutes=6), ZERO)


def test_partials_and_callable_objects(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        task = rig.task()
        assert lock_of(rig, task, jobs.partial_of_locked(task.lock), args=(task.log,)) == (task.lock, MINUTE, ZERO)
        task = rig.task()
        assert lock_of(rig, task, jobs.CallableObject()) == (task.lock, MINUTE, ZERO)


def test_a_decorator_put_above_scheduled_job_by_mistake(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        task = rig.task()

        @scheduler_lock(task.lock, "1m")
        @rig.scheduler.scheduled_job("date", id=task.id, run_date=now(), misfire_grace_time=None)
        def function() -> str:
            return jobs.unlocked(task.log)

        rig.wait(task, EVENT_JOB_EXECUTED)  # it may have run before the decorator had marked it
        with hold(task.lock, lock_at_most_for="1m", provider=rig.provider):
            rig.events.clear()
            job = rig.scheduler.add_job(function.__wrapped__, id=task.id)  # type: ignore[attr-defined]  # on purpose
            assert job.func is not function
            rig.wait(task, EVENT_JOB_SKIPPED)


def test_the_decorators_provider_goes_before_the_executors(tmp_path: Path) -> None:
    own = InMemoryLockProvider()

    @scheduler_lock("own", "1m", provider=own)
    def function() -> None: ...

    with running(tmp_path) as rig:
        run_once(rig, rig.task(), function, args=())
        assert rig.provider.records() == []
        assert [record.name for record in own.records()] == ["own"]


def test_the_configured_provider_is_looked_up_when_the_job_runs(tmp_path: Path) -> None:
    scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor("debug")}, timezone="UTC")
    rig = Rig(scheduler, InMemoryLockProvider(), tmp_path, "debug")
    scheduler.start()
    try:
        event = run_once(rig, rig.task())
        assert isinstance(event.exception, ProviderNotConfigured)
        with configure(rig.provider):
            task = rig.task()
            assert lock_of(rig, task) == (task.lock, MINUTE, ZERO)
    finally:
        scheduler.shutdown()


def test_lock_all_refuses_automatic_ids(tmp_path: Path) -> None:
    with running(tmp_path, lock_all=True) as rig:
        task = rig.task()
        task.id = rig.scheduler.add_job(jobs.unlocked, args=(task.log,)).id
        [event] = rig.wait(task, *ENDS)
        assert isinstance(event.exception, ConfigurationError)
        assert "give the job an id" in str(event.exception)
        assert task.runs == 0


@pytest.mark.parametrize("kind", ["thread", "coroutine", "debug"])
def test_a_lock_that_cannot_work_is_an_error_event(kind: str, tmp_path: Path) -> None:
    def extract(job: Any) -> Any:
        if job.name == "raises":
            raise KeyError("no such tenant")
        return 42

    with running(tmp_path, kind, lock_extractor=extract, default_lock_at_most_for="1m") as rig:
        for name, text in (("raises", "no such tenant"), ("returns", "42")):
            task = rig.task()
            event = run_once(rig, task, name=name, **unlocked(rig, task))
            assert isinstance(event.exception, ConfigurationError)
            assert text in str(event.exception)
            assert task.runs == 0
        task = rig.task()
        event = run_once(rig, task, args=("n" * 65, task.log))
        assert isinstance(event.exception, ConfigurationError)
        assert "64" in str(event.exception)
        assert task.runs == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"executor": 5}, ["executor", "5"]),
        ({"executor": InMemoryLockProvider()}, ["executor", "provider=…"]),
        ({"executor": BackgroundScheduler()}, ["executor", "install(scheduler)"]),
        ({"executor": SimpleNamespace(scheduler=BackgroundScheduler())}, ["executor", "which has a scheduler"]),
        ({"lock_all": "maybe"}, ["lock_all", "true", "false", "maybe"]),
        ({"once_per_fire_time": 2}, ["once_per_fire_time", "true", "false", "2"]),
        ({"on_provider_error": "run"}, ["on_provider_error", "error", "skip", "run"]),
        ({"skip_event": "none"}, ["skip_event", "skipped", "missed", "executed", "none"]),
        ({"locks": {"a": 5}}, ["locks['a']", "5", "name"]),
        ({"locks": {"a": {"lock_at_most_for": "1m"}}}, ["locks['a']", "name"]),
        ({"locks": {"a": {"name": "x", "at_most": "1m"}}}, ["locks['a']", "lock_at_most_for"]),
        ({"locks": {"a": ""}}, ["name", "empty"]),
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


# Jobs without a lock


def warnings_of(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [line for line in lines if all(word in line for word in words)]


@pytest.mark.parametrize("kind", ["thread", "process", "coroutine"])
def test_a_job_without_a_lock_is_warned_of_once_in_a_process(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(tmp_path)
    for _ in range(2):
        with running(tmp_path, kind, lock_extractor=name_none) as rig:
            for _ in range(2):
                rig.events.clear()
                run_once(rig, task, **unlocked(rig, task))
    assert task.runs == 4
    (line,) = warnings_of(caplog, f'(id "{task.id}")')
    assert "every replica runs it" in line
    assert "locks={job id: None}" in line


def name_none(job: Any) -> Any:
    return None


def test_jobs_with_automatic_ids_are_warned_of_by_their_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as rig:
        task = rig.task()
        for _ in range(3):
            options = {"name": f"name of {task.id}", "misfire_grace_time": None, "max_instances": 3}
            rig.scheduler.add_job(jobs.unlocked, args=(task.log,), **options)
        wait_until(lambda: task.runs == 3, what="three runs")
    assert len(warnings_of(caplog, f"name of {task.id}")) == 1


def test_what_is_meant_to_run_without_a_lock_is_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    locks: dict[str, Lock] = {}
    task = Task(tmp_path)
    locks[task.id] = None
    with running(tmp_path, locks=locks) as rig:
        run_once(rig, task, **unlocked(rig, task))
        other = rig.task()
        run_once(rig, other)
        rig.settle()
    with running(tmp_path, elector=LeaderElector(InMemoryLockProvider(), "jobs")) as rig:
        run_once(rig, rig.task(), **unlocked(rig, task))  # on the leader only
    assert warnings_of(caplog, task.id) == warnings_of(caplog, other.id) == []


def test_a_lock_for_a_job_id_that_is_not_there_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the application has had a second to add its jobs."""
    often, late = Task(tmp_path), Task(tmp_path)
    typo = f"typo-of-{often.id}"
    locks = {job_id: {"name": job_id, "lock_at_most_for": "1m"} for job_id in (often.id, late.id, typo)}
    for _ in range(2):
        with running(tmp_path, locks=locks) as rig:
            rig.add(often, trigger="interval", seconds=0.1)
            rig.add(late, trigger="date", run_date=now() + timedelta(hours=1))
            grace_ends = time.monotonic() + GRACE_SECONDS
            wait_until(lambda end=grace_ends: time.monotonic() > end, what="the end of the grace period")  # type: ignore[misc]  # a default binds it now
            runs = often.runs
            wait_until(lambda runs=runs: often.runs > runs + 1, what="a run that was submitted after it")  # type: ignore[misc]  # likewise
    (line,) = warnings_of(caplog, typo)
    assert "misspelt" in line
    assert warnings_of(caplog, late.id) == []


def test_a_typo_is_named_together_with_the_job_that_has_no_lock_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(tmp_path)
    with running(tmp_path, locks={f"typo-of-{task.id}": "lock"}) as rig:
        run_once(rig, task, **unlocked(rig, task))
    assert len(warnings_of(caplog, f'"typo-of-{task.id}"')) == 1
    assert len(warnings_of(caplog, f'(id "{task.id}")')) == 1
