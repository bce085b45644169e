"""An application for tests: a running scheduler with a ShedLockExecutor, on any executor and job store."""

import concurrent.futures
import itertools
import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_ALL, EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.executors.base import BaseExecutor
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import BasePoolExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from apscheduler.jobstores.base import BaseJobStore
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import InMemoryLockProvider, LockProvider
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.apscheduler import jobs
from tests.apscheduler.nodes import sql_job_store
from tests.support.loop_threads import EventLoopThread
from tests.support.polling import wait_until

KINDS = ("thread", "process", "asyncio", "coroutine", "debug")
"""Inner executors. "coroutine" is the asyncio executor with coroutine functions as jobs."""
PROCESS = pytest.param("process", marks=pytest.mark.not_quick("starts worker processes"))
SLOW_PROCESS = pytest.param("process", marks=pytest.mark.slow("starts worker processes; a test of test_matrix.py does"))
ENDS = (EVENT_JOB_EXECUTED, EVENT_JOB_ERROR, EVENT_JOB_MISSED, EVENT_JOB_SKIPPED)
"""Each run ends with exactly one of these events."""

_numbers = itertools.count()


def now() -> datetime:
    return datetime.now(UTC)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


class Task:
    """One job of a test: its id, its lock, its log, and an optional file to wait for."""

    def __init__(self, directory: Path) -> None:
        self.id = self.lock = f"job-{next(_numbers)}"
        self.log = str(directory / f"{self.id}.log")
        self.gate = str(directory / f"{self.id}.gate")

    @property
    def runs(self) -> int:
        return jobs.runs(self.log)

    def open_gate(self) -> None:
        Path(self.gate).touch()


class App:
    def __init__(self, scheduler: Any, provider: LockProvider, directory: Path, kind: str) -> None:
        self.scheduler = scheduler
        self.provider = provider
        self.events: list[Any] = []
        self._directory = directory
        self.kind = kind
        scheduler.add_listener(self.events.append, EVENT_ALL | EVENT_JOB_SKIPPED)

    def task(self) -> Task:
        return Task(self._directory)

    def function(self, name: str) -> Any:
        """Return the job function of this name, or its coroutine function."""
        if self.kind != "coroutine":
            return getattr(jobs, name)
        return getattr(jobs, f"Async{name}" if name[0].isupper() else f"{name}_async")

    def add(self, task: Task, function: Any = None, trigger: Any = None, **options: Any) -> Any:
        """Schedule the locked job of ``task``; by default once and at once."""
        options = {"args": (task.lock, task.log), "misfire_grace_time": None} | options
        return self.scheduler.add_job(function or self.function("locked"), trigger, id=task.id, **options)

    def codes(self, task: Task, *codes: int) -> list[Any]:
        """Return this task's events with these codes, in order."""
        return [event for event in list(self.events) if getattr(event, "job_id", "") == task.id and event.code in codes]

    def wait(self, task: Task, *codes: int, count: int = 1) -> list[Any]:
        """Wait until there are ``count`` such events. Fail if there are more."""
        wait_until(
            lambda: len(self.codes(task, *codes)) >= count,
            timeout=60,  # the first job of a process pool waits for its workers, and from Python 3.14 for a fork server
            what=f"{count} event(s) {codes} of {task.id}",
        )
        events = self.codes(task, *codes)
        assert len(events) == count, [vars(event) for event in events]
        return events

    def run_once(self, task: Task, function: Any = None, trigger: Any = None, **options: Any) -> Any:
        """Schedule a job, wait for its only event, and return the event."""
        self.add(task, function, trigger, **options)
        [event] = self.wait(task, *ENDS)
        return event

    def settle(self, after: float = 0.0) -> None:
        """Run a job that is due ``after`` seconds from now, so that all earlier jobs have run.

        The scheduler has then removed that job from its store, so its pass is over.
        """
        sentinel = self.task()
        self.add(sentinel, self.function("unlocked"), "date", run_date=now() + seconds(after), args=(sentinel.log,))
        wait_until(lambda: sentinel.runs and not self.scheduler.get_job(sentinel.id), what="the sentinel job")

    def is_held(self, task: Task) -> bool:
        record = self.provider.record(task.lock)
        return record is not None and record.is_held


class ProcessPool(BasePoolExecutor):
    """A process pool with options that APScheduler 3.10 does not pass on."""

    def __init__(self, method: str = "spawn", **options: Any) -> None:
        context = multiprocessing.get_context(method)
        super().__init__(concurrent.futures.ProcessPoolExecutor(1, context, **options))


def make_inner(kind: str) -> BaseExecutor | None:
    match kind:
        case "thread":
            return ThreadPoolExecutor(6)
        case "process":
            return ProcessPoolExecutor(2)
        case "asyncio" | "coroutine":
            return AsyncIOExecutor()
        case "debug":
            return DebugExecutor()
    return None


def make_store(store: str, directory: Path) -> BaseJobStore:
    return MemoryJobStore() if store == "memory" else sql_job_store(f"sqlite:///{directory}/jobs-{next(_numbers)}.db")


@contextmanager
def running(
    directory: Path,
    kind: str = "thread",
    store: str = "memory",
    provider: Any = None,
    url_options: str = "",
    executor: ShedLockExecutor | None = None,
    **options: Any,
) -> Iterator[App]:
    """Run a scheduler. A process pool gets its locks from a SQLite file, other executors from memory."""
    with ExitStack() as stack:
        given: Any
        if kind == "process":
            given, provider = stack.enter_context(sqlite_locks(directory, url_options))
        else:
            given = provider = provider or InMemoryLockProvider()
        settings: dict[str, Any] = {
            "executors": {"default": executor or ShedLockExecutor(make_inner(kind), given, **options)},
            "jobstores": {"default": make_store(store, directory)},
            "timezone": "UTC",
        }
        if kind in ("asyncio", "coroutine"):
            loop = stack.enter_context(closing(EventLoopThread()))
            app = App(AsyncIOScheduler(**settings), provider, directory, kind)
            loop.call(app.scheduler.start)
        else:
            app = App(BackgroundScheduler(**settings), provider, directory, kind)
            app.scheduler.start()
        stack.callback(stop, app)
        yield app


@contextmanager
def sqlite_locks(directory: Path, options: str = "") -> Iterator[tuple[str, SqlAlchemyLockProvider]]:
    """Yield the URL of a lock table in a new file, and a provider for the test."""
    url = f"sqlite:///{directory}/locks-{next(_numbers)}.db{options}"
    with closing(SqlAlchemyLockProvider(url, timeout="60s")) as provider:  # however busy the disk is
        provider.create_schema()
        yield url, provider


def stop(app: App) -> None:
    """Call ``shutdown(wait=True)`` and wait for its end. Do nothing if the scheduler has been stopped."""
    if app.scheduler.running:
        # If the scheduler stops while it removes a finished job, APScheduler's thread dies with a JobLookupError.
        app.scheduler.pause()
        app.scheduler.get_jobs()  # waits for the lock of the job stores, which the thread holds during a pass
        app.scheduler.shutdown(wait=True)
        wait_until(lambda: not app.scheduler.running, what="the scheduler shut down")
