"""Every way into a guard, so that one scenario can run through all ways."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from apscheduler.events import EVENT_ALL
from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import (
    AsyncInMemoryLockProvider,
    Event,
    InMemoryLockProvider,
    LeaseLost,
    LockRequest,
    LockSkipped,
    ProviderFailed,
    TaskFinished,
    attempt,
    attempt_async,
    current_lease,
    extend_lock,
    extend_lock_async,
    scheduler_lock,
    try_hold,
    try_hold_async,
)
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor
from shedlock_py.testing.contract.base import failing

DEADLINE = 10.0  # seconds

ELECTION: dict[str, Any] = {"lease_duration": "600ms", "renew_deadline": "400ms", "retry_period": "100ms"}
"""Short, because tests wait for them."""


REPEATED = ("LockExtended", "ProviderFailed extend", "ProviderFailed record")
"""Events that heartbeats and elections emit an unknown number of times."""


def summary(events: list[Event]) -> list[str]:
    """Return the events in the short form of the tests: "LockSkipped held". Repeated events count once."""
    words: list[str] = []
    for event in events:
        kind = type(event).__name__
        match event:
            case LockSkipped(_, reason, _) | LeaseLost(_, _, reason):
                kind += f" {reason}"
            case ProviderFailed(_, operation):
                kind += f" {operation}"
            case TaskFinished(_, _, _, outcome):
                kind += f" {outcome}"
        if not (words[-1:] == [kind] and kind in REPEATED):
            words.append(kind)
    return words


class Job:
    """Actions of a scenario's body. In an ordinary function its coroutines never wait."""

    def __init__(self, provider: Any, store: InMemoryLockProvider, is_async: bool, recorder: Any) -> None:
        self.provider = provider
        self.store = store
        self.is_async = is_async
        self.recorder = recorder

    async def again(self) -> None:
        """Guard the same lock again, from inside."""
        if self.is_async:
            await attempt_async("job", lambda: asyncio.sleep(0), provider=self.provider)
        else:
            attempt("job", lambda: None, provider=self.provider)

    async def extend(self) -> None:
        if self.is_async:
            await extend_lock_async("5m")
        else:
            extend_lock("5m")

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline
            if self.is_async:
                await asyncio.sleep(0.002)
            else:
                time.sleep(0.002)  # noqa: ASYNC251 (this coroutine runs in an ordinary function)


Body = Callable[[Job], Awaitable[object]]
KEPT_ALIVE: dict[str, Any] = {"lock_at_most_for": 3, "keep_alive": True}
"""A heartbeat is due after a second, and may be two seconds late."""


async def succeeds(job: Job) -> None: ...


async def fails(job: Job) -> None:
    raise ZeroDivisionError("bad feed")


async def never(job: Job) -> None:
    raise AssertionError("the task ran")


async def is_taken_over(job: Job) -> None:
    job.store.take_over(LockRequest("job", "10m"))


async def is_taken_over_and_waits(job: Job) -> None:
    lease = current_lease()
    assert lease
    await is_taken_over(job)
    await job.until(lease.is_lost)


async def releases(job: Job) -> None:
    lease = current_lease()
    assert lease
    assert job.store.release(lease)


@dataclass(frozen=True)
class Way:
    """``enter(provider, task, options)`` runs ``task`` under the lock "job"."""

    name: str
    enter: Callable[..., Any]
    is_async: bool

    def __str__(self) -> str:
        return self.name

    def run(self, body: Body, store: InMemoryLockProvider, *broken: str, **options: Any) -> None:
        """Run a scenario. Events report the errors of its body."""
        provider: Any = AsyncInMemoryLockProvider(shared_with=store) if self.is_async else store
        provider = options.pop("provider", provider)
        if broken:
            provider = failing(provider, *broken)
        job = Job(provider, store, self.is_async, options.pop("recorder", None))

        def task() -> None:
            run_at_once(body(job))

        async def task_async() -> None:
            await body(job)

        options = {"lock_at_most_for": "10m"} | options
        try:
            done = self.enter(provider, task_async if self.is_async else task, options)
            if inspect.iscoroutine(done):
                asyncio.run(done)
        except (Exception, asyncio.CancelledError):
            pass


def run_at_once(work: Awaitable[object]) -> None:
    """Await, in an ordinary function, work that never waits."""
    assert isinstance(work, Coroutine)
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it did wait")


def by_decorator(provider: Any, task: Any, options: Any) -> Any:
    return scheduler_lock("job", provider=provider, **options)(task)()


def by_hold(provider: Any, task: Any, options: Any) -> None:
    with try_hold("job", provider=provider, **options) as lease:
        if lease:
            task()


async def by_hold_async(provider: Any, task: Any, options: Any) -> None:
    async with try_hold_async("job", provider=provider, **options) as lease:
        if lease:
            await task()


def by_attempt(provider: Any, task: Any, options: Any) -> None:
    attempt("job", task, provider=provider, **options)


async def by_attempt_async(provider: Any, task: Any, options: Any) -> None:
    await attempt_async("job", task, provider=provider, **options)


PLAIN: dict[str, Any] = {"once_per_fire_time": False}


def by_executor(provider: Any, task: Any, options: Any, **executor_options: Any) -> Any:
    """Run as a job of APScheduler, and stop the scheduler after it. With a plain lock, a store fails only once."""
    executor = ShedLockExecutor(ThreadPoolExecutor(1), **PLAIN | executor_options)
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone="UTC")
    seen = listen(scheduler)
    scheduler.add_job(scheduler_lock("job", provider=provider, **options)(task), misfire_grace_time=None)
    scheduler.start()
    try:
        deadline = time.monotonic() + DEADLINE
        while (
            not seen or scheduler.get_jobs()
        ):  # APScheduler's thread logs an error if the shutdown comes before it removes the job
            assert time.monotonic() < deadline, "the job did not end"
            time.sleep(0.002)
    finally:
        scheduler.shutdown()
    return seen


async def by_executor_async(provider: Any, task: Any, options: Any, **executor_options: Any) -> Any:
    executor = ShedLockExecutor(AsyncIOExecutor(), **PLAIN | executor_options)
    scheduler = AsyncIOScheduler(executors={"default": executor}, timezone="UTC")
    seen = listen(scheduler)
    scheduler.add_job(scheduler_lock("job", provider=provider, **options)(task), misfire_grace_time=None)
    scheduler.start()
    try:
        async with asyncio.timeout(DEADLINE):
            while not seen:  # noqa: ASYNC110 (APScheduler calls a listener)
                await asyncio.sleep(0.002)
    finally:
        scheduler.shutdown()
        await asyncio.sleep(0)
    return seen


def listen(scheduler: Any) -> list[Any]:
    seen: list[Any] = []
    scheduler.add_listener(
        lambda event: seen.append(event) if hasattr(event, "scheduled_run_time") else None,
        EVENT_ALL | EVENT_JOB_SKIPPED,
    )
    return seen


SYNC = [
    Way("decorator", by_decorator, False),
    Way("hold", by_hold, False),
    Way("attempt", by_attempt, False),
    Way("executor", by_executor, False),
]
ASYNC = [
    Way("async decorator", by_decorator, True),
    Way("hold_async", by_hold_async, True),
    Way("attempt_async", by_attempt_async, True),
    Way("asyncio executor", by_executor_async, True),
]
WAYS = SYNC + ASYNC
