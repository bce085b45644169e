"""Locked jobs on every executor and every job store."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_SUBMITTED,
)
from apscheduler.triggers.interval import IntervalTrigger

from shedlock_py import ProviderError, hold
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED
from tests.apscheduler.app import ENDS, KINDS, App, Task, now, running, seconds, stop
from tests.support.polling import wait_until


def combination(kind: str, store: str) -> Any:
    """Combine an executor with a job store. The job store pickles jobs, which affects all executors alike."""
    marks = [pytest.mark.not_quick("starts worker processes")] if kind == "process" else []
    if store == "sqlalchemy" and kind != "thread":
        marks = [pytest.mark.matrix("the same with the job store of the thread pool, and without it")]
    return pytest.param(f"{kind}-{store}", marks=marks)


COMBINATIONS = [combination(kind, store) for kind in KINDS for store in ("memory", "sqlalchemy")]


@pytest.fixture(scope="module", params=COMBINATIONS)
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Share a scheduler among all tests of a combination; each test has its own jobs and locks."""
    kind, store = request.param.split("-")
    with running(tmp_path_factory.mktemp("app"), kind, store) as made:
        yield made


@pytest.mark.parametrize("is_locked", [True, False])
def test_a_job_runs_with_its_lock_or_without_one(app: App, is_locked: bool) -> None:
    task = app.task()
    event = app.run_once(task) if is_locked else app.run_once(task, app.function("unlocked"), args=(task.log,))
    assert (event.code, event.retval, task.runs) == (EVENT_JOB_EXECUTED, "done", 1)
    assert (app.provider.record(task.lock) is not None) is is_locked
    assert not app.is_held(task)


def test_is_skipped_and_runs_after_the_release(app: App) -> None:
    task = app.task()
    run_date = now()
    with hold(task.lock, lock_at_most_for="1m", provider=app.provider) as lease:
        assert lease is not None
        event = app.run_once(task, None, "date", run_date=run_date)
    assert event.code == EVENT_JOB_SKIPPED
    assert (event.lock_name, event.reason, event.scheduled_run_time) == (task.lock, "held", run_date)
    assert (event.retval, event.exception, event.jobstore) == (None, None, "default")
    assert task.runs == 0
    app.add(task)
    app.wait(task, EVENT_JOB_EXECUTED)
    assert task.runs == 1


def test_an_error_releases(app: App) -> None:
    task = app.task()
    event = app.run_once(task, kwargs={"fail": "as planned"})
    assert event.code == EVENT_JOB_ERROR
    assert isinstance(event.exception, ValueError)
    assert str(event.exception) == "as planned"
    assert "_end" in event.traceback
    assert not app.is_held(task)
    app.add(task)
    app.wait(task, EVENT_JOB_EXECUTED)


@pytest.mark.parametrize("form", ["method", "class_method", "static_method", "text"])
def test_methods_and_text_references(app: App, form: str) -> None:
    task = app.task()
    if app.kind == "coroutine" and form in ("class_method", "static_method"):
        pytest.skip("the same as without coroutine functions")
    name = app.function("locked").__name__
    function = f"tests.apscheduler.jobs:{name}" if form == "text" else getattr(app.function("Methods")(), form)
    with hold(task.lock, lock_at_most_for="1m", provider=app.provider):
        app.add(task, function)
        app.wait(task, EVENT_JOB_SKIPPED)
    app.add(task, function)
    app.wait(task, EVENT_JOB_EXECUTED)
    assert task.runs == 1


def test_an_instance_above_max_instances_is_refused(app: App) -> None:
    if app.kind == "debug":
        pytest.skip("the debug executor runs one job at a time")
    task = app.task()
    job = app.add(task, None, "interval", seconds=0.2, next_run_time=now(), kwargs={"until": task.gate})
    try:
        wait_until(lambda: app.codes(task, EVENT_JOB_MAX_INSTANCES), what="a second instance refused")
        wait_until(lambda: task.runs, what="the first instance at work")  # a busy machine rejects it before that
        assert task.runs == 1
        assert app.codes(task, *ENDS) == []
        task.open_gate()
        wait_until(lambda: len(app.codes(task, EVENT_JOB_EXECUTED)) >= 2, what="it runs again")
    finally:
        job.remove()
        task.open_gate()


def test_a_second_instance_is_not_inside_the_first_ones_lock(app: App) -> None:
    if app.kind == "debug":
        pytest.skip("the debug executor runs one job at a time")
    task = app.task()
    trigger = IntervalTrigger(seconds=0.2)
    job = app.add(task, None, trigger, next_run_time=now(), kwargs={"until": task.gate}, max_instances=2, coalesce=True)
    try:
        try:
            wait_until(lambda: app.codes(task, EVENT_JOB_SKIPPED), what="the second instance skipped")
        finally:
            job.remove()
        app.settle()
        wait_until(lambda: are_others_skipped(app, task), what="all other instances skipped")
    finally:
        task.open_gate()
    app.wait(task, EVENT_JOB_EXECUTED)
    assert task.runs == 1


def are_others_skipped(app: App, task: Task) -> bool:
    """Whether all instances but one were skipped, so that no instance can run later."""
    return len(app.codes(task, EVENT_JOB_SKIPPED)) == len(app.codes(task, EVENT_JOB_SUBMITTED)) - 1


def test_pause_and_resume(app: App) -> None:
    task = app.task()
    job = app.add(task, None, "interval", seconds=0.2, next_run_time=now())
    wait_until(lambda: task.runs >= 1, what="the first run")
    job.pause()
    app.settle()
    before = task.runs
    app.settle(after=0.5)
    assert task.runs == before
    job.resume()
    wait_until(lambda: task.runs > before, what="a run after resume()")
    job.remove()


def test_modify_and_reschedule(app: App) -> None:
    task = app.task()
    job = app.add(task, None, "cron", year=2090)
    job.modify(next_run_time=now(), kwargs={"fail": "modified"})
    [event] = app.wait(task, *ENDS)
    assert str(event.exception) == "modified"
    job.reschedule("cron", minute="*")
    job.modify(next_run_time=now() + seconds(0.1))
    app.wait(task, EVENT_JOB_ERROR, count=2)
    job.remove()
    assert task.runs == 2


def late_by_four(late: float = 0.5, **options: Any) -> dict[str, Any]:
    """Options of a job that is due for four run times at once, and never again."""
    start = now() - seconds(3 + late)
    trigger = IntervalTrigger(seconds=1, start_date=start, end_date=start + seconds(3), timezone="UTC")
    return {"trigger": trigger, "next_run_time": start, "coalesce": False} | options


def test_several_run_times_at_once(app: App) -> None:
    task = app.task()
    options = late_by_four()
    app.add(task, **options)
    events = app.wait(task, *ENDS, count=4)
    assert [event.code for event in events] == [EVENT_JOB_EXECUTED] * 4
    assert [event.scheduled_run_time for event in events] == [options["next_run_time"] + seconds(i) for i in range(4)]
    assert task.runs == 4
    with hold(task.lock, lock_at_most_for="1m", provider=app.provider):
        app.add(task, **late_by_four())
        app.wait(task, EVENT_JOB_SKIPPED, count=4)
    assert task.runs == 4


def test_a_misfire_takes_no_lock(app: App) -> None:
    task = app.task()
    event = app.run_once(task, None, "date", run_date=now() - seconds(30), misfire_grace_time=1)
    assert (event.code, task.runs) == (EVENT_JOB_MISSED, 0)
    assert app.provider.record(task.lock) is None


def test_only_the_run_times_that_misfired_are_missed(app: App) -> None:
    task = app.task()
    app.add(task, **late_by_four(misfire_grace_time=2))
    events = app.wait(task, *ENDS, count=4)
    codes = [event.code for event in events]
    assert codes[:2] == [EVENT_JOB_MISSED] * 2
    assert codes[3] == EVENT_JOB_EXECUTED
    assert task.runs == codes.count(EVENT_JOB_EXECUTED)


def test_each_run_time_that_misfired_has_its_event(app: App) -> None:
    task = app.task()
    options = late_by_four(10, misfire_grace_time=1)
    app.add(task, **options)
    events = app.wait(task, *ENDS, count=4)
    assert [event.code for event in events] == [EVENT_JOB_MISSED] * 4
    assert [event.scheduled_run_time for event in events] == [options["next_run_time"] + seconds(i) for i in range(4)]
    assert task.runs == 0


def test_i5_the_job_does_not_run_when_the_store_is_down(app: App) -> None:
    task = app.task()
    event = app.run_once(task, app.function("locked_by_nobody"))
    assert event.code == EVENT_JOB_ERROR
    assert isinstance(event.exception, ProviderError)
    assert event.exception.lock_name == task.lock
    assert "acquire" in event.traceback
    assert task.runs == 0


@pytest.mark.parametrize("executor", COMBINATIONS)
def test_a_shutdown_waits_for_the_job_or_cancels_it_and_its_lock_is_free(executor: str, tmp_path: Path) -> None:
    kind, store = executor.split("-")
    with running(tmp_path, kind, store) as app:
        task = app.task()
        # This job has a next run: APScheduler's thread dies if it removes a finished job during the shutdown.
        app.add(task, None, "interval", hours=1, next_run_time=now(), kwargs={"until": task.gate})
        wait_until(lambda: task.runs, what="the job began", timeout=20)
        assert app.is_held(task)
        if kind not in ("coroutine", "asyncio"):
            threading.Timer(0.2, task.open_gate).start()
        stop(app)
        if kind == "asyncio":  # its thread continues, without listeners
            assert app.is_held(task)
            task.open_gate()
        else:
            [event] = app.wait(task, *ENDS)
            assert event.code == (EVENT_JOB_ERROR if kind == "coroutine" else EVENT_JOB_EXECUTED)
        wait_until(lambda: not app.is_held(task), what="the lock is free")
        assert task.runs == 1
