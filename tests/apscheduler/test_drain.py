"""``drain``: no new run begins, and running jobs may end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import ConfigurationError, InMemoryLockProvider, LeaderElector
from shedlock_py.integrations.apscheduler import (
    EVENT_JOB_SKIPPED,
    ShedLockExecutor,
    drain,
    drain_async,
    lead,
)
from tests.support.polling import until, wait_until


class Job:
    """A job that runs until the test lets it end."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        assert self.may_end.wait(20)

    async def run(self) -> None:
        self.has_begun.set()
        await until(self.may_end.is_set)


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    job.may_end.set()


@pytest.fixture
def scheduler() -> Iterator[BackgroundScheduler]:
    """A scheduler with one worker thread."""
    executor = ShedLockExecutor(ThreadPoolExecutor(1), InMemoryLockProvider(), lock_all=True)
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone="UTC")
    scheduler.start()
    yield scheduler
    if scheduler.running:
        scheduler.shutdown(wait=False)


def run_now(scheduler: Any, function: Any, job_id: str) -> None:
    scheduler.add_job(function, "date", run_date=datetime.now(UTC), id=job_id, misfire_grace_time=60)


def test_it_waits_for_the_runs_and_names_those_that_go_on(scheduler: BackgroundScheduler, job: Job) -> None:
    run_now(scheduler, job, "long")
    assert job.has_begun.wait(10)
    assert drain(scheduler, "50ms") == ["long"]
    threading.Timer(0.05, job.may_end.set).start()
    assert drain(scheduler) == []
    assert drain(scheduler, 0) == []


def test_no_run_begins_also_of_those_that_wait_for_a_thread(scheduler: BackgroundScheduler, job: Job) -> None:
    events: list[Any] = []
    scheduler.add_listener(events.append, EVENT_JOB_EXECUTED | EVENT_JOB_SKIPPED)
    run_now(scheduler, job, "long")
    assert job.has_begun.wait(10)
    run_now(scheduler, lambda: None, "waiting")
    wait_until(lambda: scheduler.get_job("waiting") is None, what="its submission")
    assert drain(scheduler, 0) == ["long", "waiting"]
    run_now(scheduler, lambda: None, "later")
    job.may_end.set()
    assert drain(scheduler) == []
    wait_until(lambda: len(events) == 2, what="both events")
    (skip,) = [event for event in events if event.code == EVENT_JOB_SKIPPED]
    assert (skip.job_id, skip.lock_name, skip.reason) == ("waiting", "waiting", "shutting_down")
    scheduler.resume()
    wait_until(lambda: [event.job_id for event in events[2:]] == ["later"], what="the run after it was resumed")
    assert events[2].code == EVENT_JOB_EXECUTED


def test_on_asyncio_it_is_awaited_before_and_after_the_cancellation(job: Job) -> None:
    store = InMemoryLockProvider()

    async def main() -> None:
        scheduler = AsyncIOScheduler(executors={"default": ShedLockExecutor(None, store, lock_all=True)})
        scheduler.start()
        run_now(scheduler, job.run, "long")
        await until(job.has_begun.is_set)
        with pytest.raises(ConfigurationError, match="await drain_async"):
            drain(scheduler)
        assert await drain_async(scheduler, "50ms") == ["long"]
        scheduler.shutdown()
        assert await drain_async(scheduler) == []
        record = store.record("long")
        assert record is not None
        assert not record.is_held

    asyncio.run(main())


def test_what_cannot_be_drained() -> None:
    with pytest.raises(ConfigurationError, match="is not a scheduler of APScheduler"):
        drain("scheduler")
    leading = BackgroundScheduler(timezone="UTC")
    lead(leading, LeaderElector(InMemoryLockProvider(), "election"))
    with pytest.raises(ConfigurationError, match=r"its stop\(\) waits for the jobs"):
        drain(leading)
    with pytest.raises(ConfigurationError, match="within"):
        drain(BackgroundScheduler(timezone="UTC"), "soon")
    assert drain(BackgroundScheduler(timezone="UTC")) == []
