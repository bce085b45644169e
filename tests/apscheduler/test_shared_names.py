"""Jobs of one scheduler with the same lock name: each job runs, and one WARNING explains the fix."""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED, EVENT_JOB_MAX_INSTANCES
from apscheduler.executors.pool import ThreadPoolExecutor

from shedlock_py import InMemoryLockProvider, LockRequest, hold, scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor
from shedlock_py.integrations.apscheduler.lock_names import MOST_NAMES, LockNames
from tests.apscheduler.app import ENDS, App, Task, make_inner, now, running, stop
from tests.support.logs import warnings_of
from tests.support.polling import wait_until

MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
TENANTS = ("acme", "globex", "initech", "umbrella")


def name_of(tmp_path: Path) -> str:
    """Return a lock name for this test: a process warns only once of each name."""
    return f"sync-{Task(tmp_path).id}"


def end_of(app: App, job_id: str, count: int = 1) -> list[Any]:
    task = app.task()
    task.id = job_id
    return app.wait(task, *ENDS, count=count)


def sync_of(lock: str, ran: list[str], kind: str) -> Any:
    """Return a function for all tenants. Its lock name does not distinguish them."""

    @scheduler_lock(lock, "1m")
    def sync(tenant: str) -> None:
        time.sleep(0.02)  # so that the runs would overlap
        ran.append(tenant)

    @scheduler_lock(lock, "1m")
    async def sync_async(tenant: str) -> None:
        await asyncio.sleep(0.02)
        ran.append(tenant)

    return sync_async if kind == "coroutine" else sync


@pytest.mark.parametrize("kind", ["thread", "coroutine", "asyncio", "debug"])
def test_i14_each_of_four_tenants_runs(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock, ran = name_of(tmp_path), list[str]()
    with running(tmp_path, kind) as app:
        function = sync_of(lock, ran, kind)
        app.scheduler.pause()
        for tenant in TENANTS:
            options = {"id": f"{lock}/{tenant}", "args": (tenant,), "misfire_grace_time": None}
            app.scheduler.add_job(function, "cron", hour=0, next_run_time=MIDNIGHT, **options)
        app.scheduler.resume()
        for tenant in TENANTS:
            [event] = end_of(app, f"{lock}/{tenant}")
            assert event.code == EVENT_JOB_EXECUTED
        record = app.provider.record(lock)
        assert record is not None
        assert record.last_fire_time is None
    assert Counter(ran) == Counter(TENANTS)
    (line,) = warnings_of(caplog, f'share the lock "{lock}"', logger="apscheduler")
    assert f'"{lock}/acme" and "{lock}/globex"' in line
    assert f'"{lock}-{{tenant}}"' in line


def test_the_last_of_several_one_off_jobs_runs_as_well(tmp_path: Path) -> None:
    """A scheduler removes a one-off job when it submits it, so only the last job then has the name."""
    lock, ran = name_of(tmp_path), list[str]()
    with running(tmp_path) as app:
        function = sync_of(lock, ran, "thread")
        app.scheduler.pause()
        for tenant in TENANTS:
            options = {"id": f"{lock}/{tenant}", "args": (tenant,), "misfire_grace_time": None}
            app.scheduler.add_job(function, "date", run_date=MIDNIGHT, **options)
        app.scheduler.resume()
        events = [end_of(app, f"{lock}/{tenant}")[0] for tenant in TENANTS]
        assert [event.code for event in events] == [EVENT_JOB_EXECUTED] * len(TENANTS)
        record = app.provider.record(lock)
        assert record is not None
        assert record.last_fire_time is None


def test_a_fire_time_of_one_job_is_not_used_up_by_the_other(tmp_path: Path) -> None:
    """The other replica knows both jobs before either is due."""
    provider = InMemoryLockProvider()
    with running(tmp_path, provider=provider) as one, running(tmp_path, provider=provider) as other:
        first, second = one.task(), one.task()
        second.lock = first.lock
        for app in (one, other):
            for task in (first, second):
                app.add(task, None, "cron", year=2090)
        for app, task in ((one, first), (other, second), (one, second), (other, first)):
            app.scheduler.modify_job(task.id, next_run_time=MIDNIGHT)
            [event] = app.wait(task, *ENDS)
            assert event.code == EVENT_JOB_EXECUTED


def test_executors_of_one_scheduler(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as app:
        app.scheduler.add_executor(ShedLockExecutor("debug", app.provider), "other")
        first, second = app.task(), app.task()
        second.lock = first.lock
        app.add(first, None, "cron", year=2090)
        app.add(second, None, "cron", year=2090, executor="other")
    assert len(warnings_of(caplog, f'"{first.id}" and "{second.id}"', logger="apscheduler")) == 1


def test_jobs_that_a_job_store_has_already(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path, store="sqlalchemy") as app:
        first, second = app.task(), app.task()
        second.lock = first.lock
        plain = ShedLockExecutor("debug", app.provider, once_per_fire_time=False)
        app.scheduler.add_executor(plain, "plain")
        for task in (first, second):
            app.add(task, None, "cron", year=2090, executor="plain")
        assert warnings_of(caplog, first.id, logger="apscheduler") == []  # plain locks are intended here
        app.scheduler.remove_executor("plain")
        app.scheduler.add_executor(ShedLockExecutor("debug", app.provider), "plain")
        assert len(warnings_of(caplog, f'"{first.id}"', f'"{second.id}"', logger="apscheduler")) == 1


@pytest.mark.parametrize("how", ["replaced", "removed", "all removed", "modified", "ended"])
def test_a_job_that_takes_the_place_of_another_shares_nothing(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path) as app:
        old, new = app.task(), app.task()
        new.lock = old.lock
        match how:
            case "replaced":
                new.id = old.id
                app.add(old, None, "cron", year=2090)
            case "removed":
                app.add(old, None, "cron", year=2090)
                app.scheduler.remove_job(old.id)
            case "all removed":
                app.add(old, None, "cron", year=2090)
                app.scheduler.remove_all_jobs()
            case "modified":
                app.add(old, None, "cron", year=2090)
                app.scheduler.modify_job(old.id, args=("elsewhere", old.log), next_run_time=MIDNIGHT)
                app.wait(old, *ENDS)
                app.events.clear()
            case "ended":
                app.run_once(old, None, "date", run_date=MIDNIGHT - DAY)
                app.events.clear()
        app.add(new, None, "cron", year=2090, next_run_time=MIDNIGHT, replace_existing=True)
        app.wait(new, *ENDS)
        record = app.provider.record(new.lock)
        assert record is not None
        assert record.last_fire_time == MIDNIGHT
    assert warnings_of(caplog, old.id, logger="apscheduler") == []


def test_two_ids_with_one_lock_in_locks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = name_of(tmp_path)
    locks = {f"{lock}/a": lock, f"{lock}/b": lock}
    with running(tmp_path, locks=locks, default_lock_at_most_for="1m") as app:
        for job_id in locks:
            app.scheduler.add_job(now, "cron", year=2090, id=job_id)
    (line,) = warnings_of(caplog, f'share the lock "{lock}"', logger="apscheduler")
    assert f'"{lock}-{{tenant}}"' in line
    assert "locks={job id: lock name}" in line


# Waiting for another job


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_a_job_waits_for_the_other_one(kind: str, tmp_path: Path) -> None:
    with running(tmp_path, kind) as app:
        first, second = app.task(), app.task()
        second.lock = first.lock
        for task in (first, second):
            app.add(task, None, "cron", year=2090, args=(task.lock, task.log, task.gate))
        app.scheduler.modify_job(first.id, next_run_time=MIDNIGHT)
        wait_until(lambda: first.runs, what="the first job began")
        app.scheduler.modify_job(second.id, next_run_time=MIDNIGHT)
        app.settle()
        assert (second.runs, app.codes(second, *ENDS)) == (0, [])
        first.open_gate()
        second.open_gate()
        [event] = app.wait(second, *ENDS)
        assert (event.code, first.runs, second.runs) == (EVENT_JOB_EXECUTED, 1, 1)


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_each_job_runs_with_a_minimum_hold(kind: str, tmp_path: Path) -> None:
    with running(tmp_path, kind) as app:
        tasks = [app.task() for _ in range(3)]
        locks = {task.id: LockRequest(tasks[0].lock, "1m", "200ms") for task in tasks}
        app.scheduler.add_executor(ShedLockExecutor(make_inner(kind), app.provider, locks=locks), "holding")
        app.scheduler.pause()
        for task in tasks:
            app.add(task, app.function("unlocked"), "date", executor="holding", args=(task.log,))
        app.scheduler.resume()
        assert [app.wait(task, *ENDS)[0].code for task in tasks] == [EVENT_JOB_EXECUTED] * 3


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_no_job_waits_for_another_replica(kind: str, tmp_path: Path) -> None:
    """A plain lock does not name the job, so this could be the job's second run."""
    with running(tmp_path, kind) as app:
        first, second = app.task(), app.task()
        second.lock = first.lock
        with hold(LockRequest(first.lock, "1m", holder="web-2"), provider=app.provider):
            for task in (first, second):
                app.add(task, None, "cron", year=2090)
            app.scheduler.modify_job(first.id, next_run_time=MIDNIGHT)
            [event] = app.wait(first, *ENDS)
            assert (event.code, event.reason) == (EVENT_JOB_SKIPPED, "held")


def test_no_job_waits_any_more_when_the_scheduler_shuts_down(tmp_path: Path) -> None:
    with running(tmp_path) as app:
        first, second = app.task(), app.task()
        second.lock = first.lock
        with hold(LockRequest(first.lock, "1m"), provider=app.provider):
            for task in (first, second):
                app.add(task, None, "cron", year=2090)
            app.scheduler.modify_job(first.id, next_run_time=MIDNIGHT)
            app.settle()
            assert app.codes(first, *ENDS) == []
            stop(app)
            [event] = app.wait(first, *ENDS)
            assert (event.code, event.reason) == (EVENT_JOB_SKIPPED, "held")


def test_no_job_of_a_debug_executor_waits(tmp_path: Path) -> None:
    """Waiting would stop its scheduler."""
    with running(tmp_path) as app:
        app.scheduler.add_executor(ShedLockExecutor("debug", app.provider), "debug")
        first, second = app.task(), app.task()
        second.lock = first.lock
        app.add(second, None, "cron", year=2090, executor="debug")
        app.add(first, args=(first.lock, first.log, first.gate))
        wait_until(lambda: first.runs, what="the first job began")
        app.scheduler.modify_job(second.id, next_run_time=MIDNIGHT)
        [event] = app.wait(second, *ENDS)
        assert (event.code, event.reason) == (EVENT_JOB_SKIPPED, "held")
        first.open_gate()


@pytest.mark.not_quick("waits for two fire times")
def test_no_job_waits_beyond_its_next_fire_time(tmp_path: Path) -> None:
    """Its instance would block the next run."""
    with running(tmp_path) as app:
        first, second = app.task(), app.task()
        second.lock = first.lock
        with hold(LockRequest(first.lock, "1m"), provider=app.provider):
            app.add(second, None, "cron", year=2090)
            app.add(first, None, "interval", seconds=1)
            wait_until(  # a busy machine may be late for one fire time, but not for every second fire time
                lambda: (
                    [event.code for event in app.codes(first, *ENDS, EVENT_JOB_MAX_INSTANCES)][-2:]
                    == [EVENT_JOB_SKIPPED] * 2
                ),
                what="two fire times in a row are skipped, and no earlier instance blocks them",
            )


@pytest.mark.not_quick("waits for a second")
def test_a_run_that_waited_for_a_thread_is_not_missed(tmp_path: Path) -> None:
    """Another job with the same lock occupied its thread."""
    with running(tmp_path, executor=ShedLockExecutor(ThreadPoolExecutor(1), InMemoryLockProvider())) as app:
        first, second = app.task(), app.task()
        second.lock = first.lock
        app.scheduler.pause()
        for task in (first, second):
            app.add(task, None, args=(task.lock, task.log, first.gate), misfire_grace_time=1)
        app.scheduler.resume()
        wait_until(lambda: first.runs + second.runs, what="one of them runs")
        time.sleep(1.1)
        first.open_gate()
        for task in (first, second):
            [event] = app.wait(task, *ENDS)
            assert event.code == EVENT_JOB_EXECUTED


# Jobs that come and go


def test_i11_after_a_one_off_job_a_cron_job_runs_once_per_fire_time(tmp_path: Path) -> None:
    with running(tmp_path) as app:
        cron, one_off = app.task(), app.task()
        one_off.lock = cron.lock
        app.add(cron, None, "cron", year=2090)
        assert app.run_once(one_off, None, "date", run_date=MIDNIGHT).code == EVENT_JOB_EXECUTED
        for run_time, last in ((MIDNIGHT, None), (MIDNIGHT + DAY, MIDNIGHT + DAY)):
            app.scheduler.modify_job(cron.id, next_run_time=run_time)
            [event] = app.wait(cron, *ENDS)
            assert event.code == EVENT_JOB_EXECUTED
            app.events.clear()
            record = app.provider.record(cron.lock)
            assert record is not None
            assert record.last_fire_time == last


def test_one_off_jobs_that_follow_each_other_with_earlier_times(tmp_path: Path) -> None:
    with running(tmp_path) as app:
        tasks = [app.task() for _ in range(3)]
        for task, run_date in zip(tasks, (MIDNIGHT, MIDNIGHT - DAY, MIDNIGHT + DAY), strict=True):
            task.lock = tasks[0].lock
            assert app.run_once(task, None, "date", run_date=run_date).code == EVENT_JOB_EXECUTED


@pytest.mark.parametrize("once_per_fire_time", [None, True, False])
def test_each_of_four_tenants_runs_with_a_slot_of_the_decorator(
    once_per_fire_time: bool | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The decorator gives all these jobs the same fire time."""
    lock, ran = name_of(tmp_path), list[str]()
    function = scheduler_lock(lock, "1m", once_per="1h")(ran.append)
    with running(tmp_path, once_per_fire_time=once_per_fire_time) as app:
        app.scheduler.pause()
        for tenant in TENANTS:
            app.scheduler.add_job(function, id=f"{lock}/{tenant}", args=(tenant,), misfire_grace_time=None)
        app.scheduler.resume()
        events = [end_of(app, f"{lock}/{tenant}")[0] for tenant in TENANTS]
        assert [event.code for event in events] == [EVENT_JOB_EXECUTED] * len(TENANTS)
    assert Counter(ran) == Counter(TENANTS)
    assert len(warnings_of(caplog, f'share the lock "{lock}"', logger="apscheduler")) == 1


def test_a_job_store_that_is_removed() -> None:
    names = LockNames()
    first, second = ("one", "first"), ("two", "second")
    names.add(first, "lock")
    names.add(second, "lock")
    assert names.sharing(second, "lock") == ["first"]
    names.add_run(first, "lock", MIDNIGHT)
    names.remove("one")
    assert names.sharing(second, "lock") == []
    assert names.sharing(second, "lock", MIDNIGHT) == ["first"]
    assert names.sharing(second, "lock", MIDNIGHT + DAY) == []


def test_names_of_runs_do_not_fill_the_memory() -> None:
    names = LockNames()
    for number in range(MOST_NAMES + 10):
        names.add_run(("one", "first"), f"lock-{number}", MIDNIGHT)
        names.add_run(("one", f"job-{number}"), "lock", MIDNIGHT + number * DAY)
    assert names.sharing(("two", "second"), "lock-10", MIDNIGHT) == []
    last = [f"job-{MOST_NAMES + 8}", f"job-{MOST_NAMES + 9}"]
    assert names.sharing(("two", "second"), "lock", MIDNIGHT) == last


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_where_plain_locks_are_meant_no_job_waits(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path, kind, once_per_fire_time=False) as app:
        first, second = app.task(), app.task()
        second.lock = first.lock
        app.add(first, args=(first.lock, first.log, first.gate))
        wait_until(lambda: first.runs, what="the first job began")
        app.add(second)
        [event] = app.wait(second, *ENDS)
        assert (event.code, event.reason) == (EVENT_JOB_SKIPPED, "held")
        first.open_gate()
    assert first.runs == 1
    assert warnings_of(caplog, first.id, logger="apscheduler") == []


@pytest.mark.slow("starts worker processes")
def test_a_job_of_a_process_pool_waits_as_well(tmp_path: Path) -> None:
    with running(tmp_path, "process") as app:
        first, second = app.task(), app.task()
        second.lock = first.lock
        for task in (first, second):
            app.add(task, None, "cron", year=2090, args=(task.lock, task.log, first.gate))
        app.scheduler.modify_job(first.id, next_run_time=MIDNIGHT)
        wait_until(lambda: first.runs, timeout=60, what="the first job began")
        app.scheduler.modify_job(second.id, next_run_time=MIDNIGHT)
        time.sleep(0.5)
        assert (second.runs, app.codes(second, *ENDS)) == (0, [])
        first.open_gate()
        for task in (first, second):
            [event] = app.wait(task, *ENDS)
            assert event.code == EVENT_JOB_EXECUTED
