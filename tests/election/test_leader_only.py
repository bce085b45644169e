"""``@leader_only`` with locks: a follower takes no lock, and logs why it skips the task."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import (
    Executed,
    InMemoryLockProvider,
    LeaderElector,
    LockSkipped,
    Skipped,
    attempt,
    attempt_async,
    configure,
    current_lease,
    leader_only,
    scheduler_lock,
)
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor
from shedlock_py.integrations.fastapi import repeat_every
from shedlock_py.testing import RecordingListener
from tests.election.conftest import MakeElector
from tests.election.electors import LONG
from tests.support.polling import until, wait_until

pytestmark = pytest.mark.parametrize("kind", ["threads"])

lock = scheduler_lock("job", "1m")
ORDERS: list[Callable[[LeaderElector, Any], Any]] = [
    lambda elector, function: leader_only(elector)(lock(function)),
    lambda elector, function: lock(leader_only(elector)(function)),
]
in_both_orders = pytest.mark.parametrize("guard", ORDERS, ids=["above the lock", "below the lock"])


def lead(elector: LeaderElector) -> None:
    elector.start()
    assert elector.wait_until_leader("10s")


def lock_name() -> str | None:
    lease = current_lease()
    return lease.name if lease else None


def call_of_an_object(self: object) -> str | None:
    return lock_name()


def new_job(ran: list[Any] | None = None) -> Callable[[], Any]:
    """Return a new function: ``@scheduler_lock`` stores its spec on the function."""

    def job() -> str | None:
        if ran is not None:
            ran.append(lock_name())
        return lock_name()

    return job


def new_async_job(ran: list[Any] | None = None) -> Callable[[], Any]:
    job = new_job(ran)

    async def job_async() -> Any:
        return job()

    return job_async


both_kinds = pytest.mark.parametrize("new", [new_job, new_async_job])


def result_of(result: Any) -> Any:
    async def awaited() -> Any:
        return await result

    return asyncio.run(awaited()) if inspect.isawaitable(result) else result


@pytest.fixture
def provider() -> Any:
    """The locks' store, which differs from the election's."""
    provider = InMemoryLockProvider()
    with configure(provider=provider):
        yield provider


@in_both_orders
@both_kinds
def test_a_follower_takes_no_lock(
    make_elector: MakeElector, provider: InMemoryLockProvider, guard: Any, new: Any
) -> None:
    elector = make_elector(**LONG)
    job = guard(elector, new())
    assert result_of(job()) is None
    assert result_of(job.attempt()) == Skipped("job", "not_leader")
    assert provider.records() == []
    lead(elector)
    assert result_of(job()) == "job"
    result = result_of(job.attempt())
    assert isinstance(result, Executed)
    assert result.value == "job"


def test_a_skip_on_a_follower_is_one_of_the_lock(make_elector: MakeElector, listener: RecordingListener) -> None:
    on_leader = leader_only(make_elector(**LONG))
    job = scheduler_lock("job-{number}", "1m", on_skip=lambda skip: skip)(on_leader(lambda number: 0))
    assert job(7) == Skipped("job-7", "not_leader")
    assert [(event.lock_name, event.elapsed) for event in listener.of(LockSkipped)] == [("job-7", timedelta(0))]


def test_the_attempt_of_a_template(make_elector: MakeElector, provider: InMemoryLockProvider) -> None:
    elector = make_elector(**LONG)
    job: Any = leader_only(elector)(scheduler_lock("job-{number}", "1m")(lambda number: number))
    assert job.attempt(number=7) == Skipped("job-7", "not_leader")
    lead(elector)
    assert job.attempt(7).value == 7


def test_every_kind_of_method_runs_on_the_leader_only(
    make_elector: MakeElector, provider: InMemoryLockProvider
) -> None:
    elector = make_elector(**LONG)

    class Service:
        tenant = "acme"

        @leader_only(elector)
        @scheduler_lock("of-{self.tenant}", "1m")
        def method(self) -> Any:
            return lock_name()

        @leader_only(elector)
        @staticmethod
        def static(number: int) -> Any:
            return number

        @leader_only(elector)
        @classmethod
        def of_class(cls) -> Any:
            return cls.tenant

        @leader_only(elector)
        @classmethod
        @scheduler_lock("class", "1m")
        def locked(cls) -> Any:
            return lock_name()

    service: Any = Service()
    calls: list[Callable[[], object]] = [service.method, lambda: service.static(7), service.of_class, Service.locked]
    assert [call() for call in calls] == [None] * 4
    assert service.method.attempt() == Skipped("of-acme", "not_leader")
    assert service.locked.attempt() == Skipped("class", "not_leader")
    lead(elector)
    assert [call() for call in calls] == ["of-acme", 7, "acme", "class"]
    assert service.method.attempt().value == "of-acme"


def test_attempt_of_a_function_for_the_leader(make_elector: MakeElector, provider: InMemoryLockProvider) -> None:
    elector = make_elector(**LONG)
    job, job_async = leader_only(elector)(new_job()), leader_only(elector)(new_async_job())

    def results() -> list[Any]:
        return [attempt("one", job), attempt("one", partial(job)), asyncio.run(attempt_async("two", job_async))]

    assert results() == [Skipped(name, "not_leader") for name in ("one", "one", "two")]
    assert provider.records() == []
    lead(elector)
    assert [result.value for result in results()] == ["one", "one", "two"]


def traced(function: Any) -> Any:
    """A third-party decorator that keeps the wrapped function."""

    @wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@pytest.mark.parametrize(
    "guard",
    [
        *ORDERS,
        lambda elector, function: leader_only(elector)(function),
        lambda elector, function: partial(leader_only(elector)(lock(function))),
        lambda elector, function: traced(leader_only(elector)(lock(function))),
        lambda elector, function: type("Job", (), {"__call__": leader_only(elector)(call_of_an_object)})(),
    ],
    ids=["above", "below", "without the decorator", "partial", "wrapped", "callable object"],
)
def test_a_follower_leaves_the_fire_time_to_the_leader(
    make_elector: MakeElector, provider: InMemoryLockProvider, guard: Any
) -> None:
    """The follower once took the lock without running the job; then the leader got "already_ran", and nobody ran it."""
    elector = make_elector(**LONG)
    events: list[Any] = []
    executor = ShedLockExecutor(locks={"other": "job"})
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone="UTC")
    scheduler.add_listener(events.append, RUNS)
    scheduler.start()
    try:
        run_now(scheduler, guard(elector, new_job()))
        wait_until(lambda: outcomes(events))
        assert outcomes(events) == [("job", "not_leader")]
        assert provider.records() == []
        lead(elector)
        run_now(scheduler, guard(elector, new_job()))
        wait_until(lambda: len(outcomes(events)) == 2)
        assert outcomes(events)[1] == "job"
    finally:
        scheduler.shutdown()


async def test_a_follower_leaves_the_fire_time_to_the_leader_on_an_event_loop(
    make_elector: MakeElector, provider: InMemoryLockProvider
) -> None:
    events: list[Any] = []
    scheduler = AsyncIOScheduler(executors={"default": ShedLockExecutor()}, timezone="UTC")
    scheduler.add_listener(events.append, RUNS)
    scheduler.start()
    run_now(scheduler, leader_only(make_elector(**LONG))(lock(new_async_job())))
    await until(lambda: outcomes(events))
    scheduler.shutdown()
    assert outcomes(events) == [("job", "not_leader")]
    assert provider.records() == []


RUNS = EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_SKIPPED


def run_now(scheduler: Any, function: Any) -> None:
    scheduler.add_job(function, "date", id="other", misfire_grace_time=None)


def outcomes(events: list[Any]) -> list[Any]:
    """Return each run's result; for a skip, its lock and reason."""
    return [(event.lock_name, event.reason) if event.code == EVENT_JOB_SKIPPED else event.retval for event in events]


@both_kinds
def test_repeat_every_leaves_the_slot_to_the_leader(
    make_elector: MakeElector, listener: RecordingListener, new: Any
) -> None:
    elector = make_elector(**LONG)
    ran: list[Any] = []
    provider = InMemoryLockProvider()

    async def repeat() -> None:
        begin = repeat_every(seconds=3600, lock="job", provider=provider)(leader_only(elector)(new(ran)))
        task = await begin()
        await until(lambda: listener.of(LockSkipped) or ran)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(repeat())
    assert ran == []
    assert provider.records() == []
    lead(elector)
    listener.events.clear()
    asyncio.run(repeat())
    assert ran == ["job"]
