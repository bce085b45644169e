"""The jobs of a scheduler by their lock names: which share one, and which of these run now.

Two jobs with one lock name would use up each other's fire times. So they get plain locks, and in one process they wait
for one another: a plain lock alone would skip each job that is due while another one runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from threading import Lock
from typing import Any

from apscheduler.events import (
    EVENT_ALL_JOBS_REMOVED,
    EVENT_JOB_REMOVED,
    EVENT_JOBSTORE_REMOVED,
    EVENT_SCHEDULER_STARTED,
)
from apscheduler.executors.base import BaseExecutor

from shedlock_py.events import logger
from shedlock_py.request import LockRequest

JobKey = tuple[str, str]
"""Job store and job id."""

_REMOVALS = EVENT_JOB_REMOVED | EVENT_ALL_JOBS_REMOVED | EVENT_JOBSTORE_REMOVED


class JobObserver(BaseExecutor):
    """An executor that decides about the locks of its jobs."""

    def before_add(self, job: Any) -> None:
        """:raises ConfigurationError: the scheduler must not add the job."""
        raise NotImplementedError

    def observe(self, job: Any) -> None:
        """Note the lock name of a job that the scheduler has, and log what is wrong with its lock."""
        raise NotImplementedError


class LockNames:
    """The lock names of a scheduler's jobs. For any thread."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._name_of: dict[JobKey, str] = {}
        self._jobs: dict[str, dict[JobKey, bool]] = {}
        """For each lock name its jobs, and whether each is still scheduled.

        A scheduler removes a job when it submits the last run. Until another job gets the lock name, such a job
        still counts, or the last one of several jobs with one fire time would seem to be alone.
        """
        self._runs: dict[str, list[tuple[JobKey, Future[None]]]] = {}

    def add(self, key: JobKey, name: str) -> list[str]:
        """Note the lock name of a job. Returns the ids of the other jobs that have it."""
        with self._mutex:
            if self._name_of.get(key) != name:
                self._remove(key)
                self._name_of[key] = name
                jobs = self._jobs.setdefault(name, {})
                for other in [other for other, is_scheduled in jobs.items() if not is_scheduled]:
                    del jobs[other]
            self._jobs[name][key] = True
            return [job_id for store, job_id in self._jobs[name] if (store, job_id) != key]

    def remove(self, store: str | None, job_id: str | None = None) -> None:
        """A job, or all jobs of a job store or of all job stores, are not scheduled any more."""
        with self._mutex:
            for key in [key for key in self._name_of if store in (None, key[0]) and job_id in (None, key[1])]:
                self._remove(key)

    def _remove(self, key: JobKey) -> None:
        name = self._name_of.pop(key, None)
        if name is not None:
            jobs = self._jobs[name]
            jobs[key] = False
            if not any(jobs.values()):
                del self._jobs[name]

    # Runs of this process

    @contextmanager
    def run(self, key: JobKey, request: LockRequest, *, waits: bool) -> Iterator[None]:
        """Count a run of ``request``'s lock. With ``waits``, begin after the runs of other jobs that began before.

        Wait no longer than ``lock_at_most_for``: by then the lease of a run that hangs has expired.
        """
        run, others = self._begin(key, request.name)
        try:
            if waits and others:
                wait(others, request.lock_at_most_for.total_seconds())
            yield
        finally:
            self._end(key, request.name, run)

    @asynccontextmanager
    async def run_async(self, key: JobKey, request: LockRequest, *, waits: bool) -> AsyncIterator[None]:
        """:meth:`run` for an event loop."""
        run, others = self._begin(key, request.name)
        try:
            if waits and others:
                futures = [asyncio.wrap_future(other) for other in others]
                await asyncio.wait(futures, timeout=request.lock_at_most_for.total_seconds())
            yield
        finally:
            self._end(key, request.name, run)

    def _begin(self, key: JobKey, name: str) -> tuple[Future[None], list[Future[None]]]:
        run: Future[None] = Future()
        with self._mutex:
            runs = self._runs.setdefault(name, [])
            others = [other for other_key, other in runs if other_key != key]
            runs.append((key, run))
        return run, others

    def _end(self, key: JobKey, name: str, run: Future[None]) -> None:
        with self._mutex:
            self._runs[name].remove((key, run))
            if not self._runs[name]:
                del self._runs[name]
        run.set_result(None)


def lock_names_of(scheduler: Any) -> LockNames:
    """The lock names of the scheduler's jobs, kept up to date: one object for all executors of a scheduler."""
    names: LockNames | None = getattr(scheduler, "shedlock_lock_names", None)
    if names is None:
        names = scheduler.shedlock_lock_names = LockNames()
        # A listener could not refuse the job, and would have to read it from the job store.
        scheduler._real_add_job = partial(_add_job, scheduler, scheduler._real_add_job)
        scheduler.add_listener(partial(_on_start, scheduler), EVENT_SCHEDULER_STARTED)
        scheduler.add_listener(partial(_on_removal, names), _REMOVALS)
    return names


def observe_jobs(scheduler: Any) -> None:
    """Let the executors observe the jobs that the scheduler has, also in its job stores."""
    try:
        jobs = scheduler.get_jobs()
    except Exception:  # the scheduler meets it, too, and logs it
        logger.debug("the jobs of the scheduler cannot be read", exc_info=True)
        return
    for job in jobs:
        _observe(scheduler, job)


def key_of(job: Any) -> JobKey:
    return job._jobstore_alias, job.id


def _observe(scheduler: Any, job: Any) -> None:
    executor = scheduler._executors.get(job.executor)
    if isinstance(executor, JobObserver):
        executor.observe(job)


def _add_job(
    scheduler: Any, add: Callable[[Any, str, bool], None], job: Any, jobstore_alias: str, replace_existing: bool
) -> None:
    executor = scheduler._executors.get(job.executor)
    if isinstance(executor, JobObserver):
        executor.before_add(job)
    add(job, jobstore_alias, replace_existing)
    _observe(scheduler, job)


def _on_start(scheduler: Any, _event: object) -> None:
    observe_jobs(scheduler)


def _on_removal(names: LockNames, event: Any) -> None:
    if event.code == EVENT_JOB_REMOVED:
        names.remove(event.jobstore, event.job_id)
    else:
        names.remove(event.alias)  # None: all job stores
