"""A leader hands over only after the scheduler's pass, and never waits for itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_SUBMITTED
from apscheduler.executors.debug import DebugExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.blocking import BlockingScheduler
from sqlalchemy import NullPool

from shedlock_py import AsyncLeaderElector, LockRequest
from shedlock_py.integrations.apscheduler import ShedLockExecutor, lead
from tests.apscheduler.nodes import LONG, Node, sql_job_store
from tests.support.doubles import FaultyProvider
from tests.support.loop_threads import EventLoopThread
from tests.support.polling import until, wait_until

REQUEST = LockRequest("scheduler", "1m")
"""Skipped as long as a node has the election's lease."""


def work() -> None: ...


class Stop:
    """A point that blocks a pass until the test opens it."""

    def __init__(self) -> None:
        self.is_reached, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, *_: Any) -> None:
        self.is_reached.set()
        self.may_go_on.wait(20)


class StopsBeforeSubmitting(ShedLockExecutor):
    def __init__(self, here: Stop, **options: Any) -> None:
        super().__init__(lock_all=True, default_lock_at_most_for="1m", **options)
        self._here = here

    def submit_job(self, job: Any, run_times: list[datetime]) -> None:
        self._here()
        super().submit_job(job, run_times)


@pytest.fixture
def here() -> Iterator[Stop]:
    stop = Stop()
    yield stop
    stop.may_go_on.set()


@pytest.fixture
def stack(here: Stop) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
        here.may_go_on.set()


def start(node: Node, stack: ExitStack) -> None:
    """Start a node. Its scheduler may block its thread, or need an event loop, which its first pass may block."""
    if isinstance(node.scheduler, AsyncIOScheduler):
        stack.enter_context(closing(EventLoopThread())).loop.call_soon_threadsafe(node.lead.start)
    else:
        threading.Thread(target=node.lead.start, daemon=True).start()
    stack.callback(node.lead.stop)
    wait_until(lambda: node.scheduler.running, what="it was started")


def keeps_its_lease(provider: Any) -> Callable[[], bool]:
    """Return a check: has the node kept renewing its lease since now?"""
    before = provider.calls["extend"]
    return lambda: provider.calls["extend"] > before + 3


def test_a_run_whose_update_is_slow_is_not_run_again_by_the_next_leader(
    store: FaultyProvider, stack: ExitStack, here: Stop, tmp_path: Path
) -> None:
    class Slow(SQLAlchemyJobStore):
        def update_job(self, job: Any) -> None:
            here()
            super().update_job(job)

    url = f"sqlite:///{tmp_path}/jobs.db"
    first = Node("first", store, Slow(url, engine_options={"poolclass": NullPool}), durations=LONG)
    second = Node("second", store, sql_job_store(url), durations=LONG)
    start(first, stack)
    wait_until(first.elector.is_leader)
    start(second, stack)
    first.scheduler.add_job(work, "interval", hours=1, id="job", next_run_time=datetime.now(UTC))
    wait_until(here.is_reached.is_set, what="the update")
    wait_until(first.times, what="the job is over")
    first.elector.resign()
    wait_until(keeps_its_lease(first.provider), what="the lease is kept for the pass")
    assert not second.elector.is_leader()
    here.may_go_on.set()
    wait_until(second.elector.is_leader)
    second.scheduler.add_job(work, "date", id="later")
    wait_until(lambda: second.times("later"), what="a pass that has read all due jobs")
    second.lead.stop()
    assert (len(first.times()), second.times()) == (1, [])


@pytest.mark.parametrize("scheduler", [BackgroundScheduler, BlockingScheduler, AsyncIOScheduler])
def test_a_job_that_a_pass_is_submitting_runs_before_another_node_can_lead(
    store: FaultyProvider, stack: ExitStack, here: Stop, scheduler: type[Any]
) -> None:
    refused: list[bool] = []
    executor = partial(StopsBeforeSubmitting, here, provider=store.inner)
    node = Node("me", store, MemoryJobStore(), scheduler, executor, durations=LONG)
    node.scheduler.add_job(lambda: refused.append(store.inner.acquire(REQUEST) is None), "date", id="job")
    start(node, stack)
    wait_until(here.is_reached.is_set, what="the job is being submitted")
    node.elector.resign()
    wait_until(keeps_its_lease(node.provider), what="the lease is kept for the pass")
    assert node.provider.calls["release"] == 0
    here.may_go_on.set()
    wait_until(lambda: refused == [True], what="the job ran while the node had the lease")
    wait_until(lambda: node.provider.calls["release"] == 1, what="the release")


async def test_a_scheduler_thread_and_an_elector_on_an_event_loop(store: FaultyProvider, here: Stop) -> None:
    refused: list[bool] = []
    executor = StopsBeforeSubmitting(here, provider=store.inner)
    elector = AsyncLeaderElector(store, "scheduler", **LONG)
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone="UTC")
    scheduler.add_job(
        lambda: refused.append(store.inner.acquire(REQUEST) is None), "date", id="job", misfire_grace_time=None
    )
    async with lead(scheduler, elector):
        await until(here.is_reached.is_set)
        elector.resign()
        await until(keeps_its_lease(store))
        assert store.calls["release"] == 0
        here.may_go_on.set()
        await until(lambda: refused == [True])


# Code that runs in a pass must not wait for the pass


@pytest.mark.parametrize("caller", ["listener", "job", "locked job"])
def test_stop_in_a_pass_does_not_wait_for_the_pass(store: FaultyProvider, stack: ExitStack, caller: str) -> None:
    stopped: list[bool] = []

    def stop(*_: Any) -> None:
        stopped.append(node.elector.stop("20s"))

    node = Node("me", store, MemoryJobStore(), durations=LONG)
    if caller == "listener":
        node.scheduler.add_listener(stop, EVENT_JOB_SUBMITTED)
    else:  # an executor that runs jobs in the pass
        locks = {"job": {"name": "job", "lock_at_most_for": "1m"}}
        is_locked = caller == "locked job"
        debug = ShedLockExecutor("debug", store.inner, locks=locks) if is_locked else DebugExecutor()
        node.scheduler.add_executor(debug)
    node.scheduler.add_job(work if caller == "listener" else stop, "date", id="job")
    start(node, stack)
    wait_until(lambda: stopped == [False], what="stop() has not waited")
    wait_until(lambda: store.inner.acquire(REQUEST), what="the lease is released after the pass")


def test_a_blocking_scheduler_that_is_stopped_in_a_pass(store: FaultyProvider) -> None:
    """A signal handler, which may interrupt a pass, does this. The lease is released when ``start()`` returns."""

    class Interrupted(MemoryJobStore):
        def get_due_jobs(self, now: Any) -> Any:
            node.lead.stop()
            return super().get_due_jobs(now)

    granted: list[Any] = []
    node = Node("me", store, Interrupted(), BlockingScheduler, durations=LONG)

    def run() -> None:
        node.lead.start()
        granted.append(store.inner.acquire(REQUEST))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert granted[0] is not None
    assert node.provider.calls["release"] == 1


async def test_stop_in_a_pass_with_an_elector_on_an_event_loop(store: FaultyProvider) -> None:
    """In the scheduler's thread, the listener stops the elector on its loop, and waits for the result."""
    loop, stopped = asyncio.get_running_loop(), []

    def stop(event: object) -> None:
        stopped.append(asyncio.run_coroutine_threadsafe(elector.stop(), loop).result(20))

    elector = AsyncLeaderElector(store, "scheduler", **LONG)
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_listener(stop, EVENT_JOB_SUBMITTED)
    scheduler.add_job(work, "date", id="job", misfire_grace_time=None)
    async with lead(scheduler, elector):
        await until(lambda: stopped == [False], 10)
        await until(lambda: store.inner.acquire(REQUEST))


async def test_a_task_that_a_pass_has_started_waits_in_stop(store: FaultyProvider) -> None:
    tasks: list[asyncio.Task[bool]] = []
    elector = AsyncLeaderElector(store, "scheduler", **LONG)
    scheduler = AsyncIOScheduler(timezone="UTC")
    scheduler.add_listener(lambda event: tasks.append(asyncio.create_task(elector.stop())), EVENT_JOB_SUBMITTED)
    scheduler.add_job(work, "date", id="job", misfire_grace_time=None)
    async with lead(scheduler, elector):
        await until(lambda: tasks)
        async with asyncio.timeout(10):
            assert await tasks[0] is True
        assert store.calls["release"] == 1
