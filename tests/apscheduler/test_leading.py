"""Schedulers that run jobs on the leader only: two of them on one job store, and ShedLockExecutor(elector=…)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.executors.pool import ProcessPoolExecutor, ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_PAUSED, STATE_RUNNING, STATE_STOPPED
from apscheduler.schedulers.blocking import BlockingScheduler

from shedlock_py import (
    AsyncLeaderElector,
    ConfigurationError,
    InMemoryLockProvider,
    LeaderElector,
    LockRequest,
)
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor, lead
from tests.apscheduler.nodes import DURATIONS, Node, sql_job_store
from tests.support.doubles import FaultyProvider
from tests.support.polling import wait_until

ran: list[tuple[str, str]] = []
"""Runs of jobs: the name, and the scheduled time or a number."""
gate = threading.Event()


def note(what: str, number: str = "") -> None:
    ran.append((what, number))


def wait_at_the_gate() -> None:
    note("began")
    gate.wait(20)
    note("ended")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    ran.clear()
    gate.clear()
    yield
    gate.set()


@pytest.fixture
def nodes(store: FaultyProvider, tmp_path: Path) -> Iterator[Callable[[int], list[Node]]]:
    with ExitStack() as stack:

        def start(count: int) -> list[Node]:
            made = [
                Node(f"node-{n}", store, sql_job_store(f"sqlite:///{tmp_path}/jobs.db"), executor=ShedLockExecutor)
                for n in range(count)
            ]
            for node in made:
                node.lead.start()
                stack.callback(node.lead.stop)
            wait_until(lambda: any(node.elector.is_leader() for node in made))
            return made

        yield start
        gate.set()


def leader_and_follower(nodes: list[Node]) -> tuple[Node, Node]:
    wait_until(lambda: sum(node.elector.is_leader() for node in nodes) == 1)
    one, other = nodes
    return (one, other) if one.elector.is_leader() else (other, one)


def test_the_leader_works_and_the_follower_does_not(nodes: Callable[[int], list[Node]]) -> None:
    leader, follower = leader_and_follower(nodes(2))
    wait_until(lambda: leader.scheduler.state == STATE_RUNNING)
    assert follower.scheduler.state == STATE_PAUSED
    # A follower adds a job. The leader finds it at a renewal, without a notification.
    follower.scheduler.add_job(note, "date", id="added", args=["added by the follower"])
    wait_until(lambda: bool(ran), timeout=5)
    assert ran == [("added by the follower", "")]
    assert follower.executed() == []


@pytest.mark.not_quick("three leaders in real time")
def test_nothing_runs_twice_and_nothing_is_lost_when_the_leader_changes(
    nodes: Callable[[int], list[Node]],
) -> None:
    both = nodes(2)
    start = datetime.now(UTC) + timedelta(seconds=0.5)
    first = both[0].scheduler
    first.add_job(note, "interval", seconds=0.25, id="interval", args=["interval"], start_date=start)
    first.add_job(note, "cron", second="*", id="cron", args=["cron"])
    for number in range(20):
        moment = start + timedelta(seconds=number * 0.2)
        first.add_job(note, "date", run_date=moment, id=f"date-{number}", args=["date", str(number)])
    for change in range(3):
        leader, follower = leader_and_follower(both)
        before = len(ran)
        wait_until(lambda before=before: len(ran) > before + 3)  # type: ignore[misc]  # a default binds it now
        if change == 1:
            leader.provider.fail()  # it loses its leadership, and cannot read the new leader
            wait_until(follower.elector.is_leader)
            reads = leader.provider.calls["record"]
            leader.provider.recover()
            wait_until(lambda provider=leader.provider, reads=reads: provider.calls["record"] > reads + 2)  # type: ignore[misc]  # likewise
        else:
            leader.elector.resign()
            wait_until(follower.elector.is_leader)
    wait_until(lambda: sum(what == "date" for what, _ in ran) >= 20)
    stop = datetime.now(UTC)
    for node in both:
        node.lead.stop()
    runs = [event for node in both for event in node.executed()]
    times = Counter((event.job_id, event.scheduled_run_time) for event in runs)
    assert max(times.values()) == 1
    assert sorted(int(number) for what, number in ran if what == "date") == list(range(20))
    interval = sorted(time for job, time in times if job == "interval")
    assert interval == [interval[0] + timedelta(seconds=0.25) * number for number in range(len(interval))]
    assert interval[0] == start
    assert stop - interval[-1] < timedelta(seconds=2.5)
    seconds = sorted(time for job, time in times if job == "cron")
    assert seconds == [seconds[0] + timedelta(seconds=number) for number in range(len(seconds))]


@pytest.mark.not_quick("waits for leases in real time")
def test_leadership_is_released_after_the_running_job_has_ended(
    nodes: Callable[[int], list[Node]], store: FaultyProvider
) -> None:
    leader, follower = leader_and_follower(nodes(2))
    leader.scheduler.add_job(wait_at_the_gate, "date", id="job")
    wait_until(lambda: ran == [("began", "")])
    stopping = threading.Thread(target=leader.lead.stop)
    stopping.start()
    wait_until(lambda: not leader.elector.is_leader())
    until = time.monotonic() + 2  # more than two leases
    while time.monotonic() < until:
        assert not leader.elector.is_leader()
        assert not follower.elector.is_leader()
        assert store.inner.acquire(LockRequest("scheduler", "1m")) is None
        time.sleep(0.01)
    gate.set()
    wait_until(follower.elector.is_leader)
    assert ran == [("began", ""), ("ended", "")]
    stopping.join(10)
    assert leader.scheduler.state == STATE_STOPPED


def test_a_job_that_was_submitted_runs_although_the_leader_resigns(store: FaultyProvider) -> None:
    """It waits for a thread. The job store counts it as done, so the next leader would not run it."""
    node = Node("me", store, MemoryJobStore(), executor=partial(ShedLockExecutor, ThreadPoolExecutor(1), store.inner))
    for job, function in (("first", wait_at_the_gate), ("waiting", note)):
        node.scheduler.add_job(function, "date", args=() if job == "first" else (job,), id=job)
    with node.lead:
        wait_until(lambda: ran == [("began", "")] and not node.scheduler.get_jobs(), what="both were submitted")
        node.elector.resign()
        assert not node.elector.is_leader()
        gate.set()
        wait_until(lambda: len(ran) == 3, what="the job that waited")
        assert node.times("waiting")


def test_elector_of_the_executor_sends_no_request(store: FaultyProvider) -> None:
    """The leader runs jobs without a lock and sends no request for them; other nodes skip them."""
    leader, follower = (
        LeaderElector(FaultyProvider(store.inner), "jobs", holder=holder, **DURATIONS) for holder in "ab"
    )
    with leader:
        assert leader.wait_until_leader("10s")
        with follower, ExitStack() as stack:
            events: dict[str, list[Any]] = {}
            for elector in (leader, follower):
                executors = {"default": ShedLockExecutor(elector=elector, provider=ForbiddenProvider())}
                scheduler = BackgroundScheduler(executors=executors, timezone="UTC")
                events_of_node = events.setdefault(elector.holder, [])
                scheduler.add_listener(events_of_node.append, EVENT_JOB_EXECUTED | EVENT_JOB_SKIPPED)
                scheduler.add_job(note, "date", id="job", args=[elector.holder], misfire_grace_time=None)
                scheduler.start()
                stack.callback(scheduler.shutdown)
            wait_until(lambda: all(events.values()))
    assert ran == [("a", "")]
    [executed], [skipped] = events["a"], events["b"]
    assert executed.code == EVENT_JOB_EXECUTED
    assert (skipped.code, skipped.reason, skipped.lock_name) == (EVENT_JOB_SKIPPED, "not_leader", "jobs")


class ForbiddenProvider(InMemoryLockProvider):
    def acquire(self, request: Any) -> Any:
        raise AssertionError("a store call")


async def test_asyncio_scheduler_and_elector() -> None:
    store = InMemoryLockProvider()
    jobs: list[str] = []

    async def job(name: str) -> None:
        jobs.append(name)

    def node(name: str) -> tuple[AsyncIOScheduler, AsyncLeaderElector]:
        elector = AsyncLeaderElector(store, "scheduler", holder=name, **DURATIONS)
        scheduler = AsyncIOScheduler(
            executors={"default": ShedLockExecutor("asyncio", elector=elector)}, timezone="UTC"
        )
        scheduler.add_job(job, "interval", seconds=0.1, args=[name], id="job", misfire_grace_time=None)
        return scheduler, elector

    async with asyncio.timeout(30):
        first, first_elector = node("first")
        second, second_elector = node("second")
        async with lead(second, second_elector):
            assert await second_elector.wait_until_leader("10s")
            async with lead(first, first_elector):
                while len(jobs) < 3:  # noqa: ASYNC110 (a test)
                    await asyncio.sleep(0.01)
                assert set(jobs) == {"second"}
                assert first.state == STATE_PAUSED
                second_elector.resign()
                assert await first_elector.wait_until_leader("10s")
                while "first" not in jobs:  # noqa: ASYNC110 (a test)
                    await asyncio.sleep(0.01)
    assert first.state == second.state == STATE_STOPPED


def test_a_blocking_scheduler(store: FaultyProvider) -> None:
    elector = LeaderElector(store, "scheduler", **DURATIONS)
    scheduler = BlockingScheduler(timezone="UTC")
    scheduler.add_job(note, "interval", seconds=0.05, args=["job"], id="job")
    guided = lead(scheduler, elector)
    running = threading.Thread(target=guided.start, daemon=True)
    running.start()
    wait_until(lambda: len(ran) > 2)
    guided.stop()
    running.join(10)
    assert not running.is_alive()
    assert not elector.is_leader()


def test_what_cannot_work(store: FaultyProvider) -> None:
    elector = LeaderElector(store, "scheduler", **DURATIONS)
    with pytest.raises(ConfigurationError, match="elector"):
        lead(BackgroundScheduler(), "elector")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigurationError, match="elector"):
        ShedLockExecutor(elector="elector")  # type: ignore[arg-type]  # likewise
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.start()
    with pytest.raises(ConfigurationError, match="runs already"):
        lead(scheduler, elector)
    scheduler.shutdown()
    with pytest.raises(ConfigurationError, match="async with"):
        lead(BackgroundScheduler(), AsyncLeaderElector(store, "scheduler")).__enter__()
    with pytest.raises(ConfigurationError, match="process pool"):
        BackgroundScheduler(executors={"default": ShedLockExecutor(ProcessPoolExecutor(1), elector=elector)}).start()
