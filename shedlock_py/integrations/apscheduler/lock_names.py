"""The lock names of a scheduler's jobs, to find jobs that share a name.

Two jobs with one lock name would use up each other's fire times. So they get plain locks.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from operator import itemgetter
from threading import Lock
from typing import Any

from apscheduler.events import (
    EVENT_ALL_JOBS_REMOVED,
    EVENT_JOB_REMOVED,
    EVENT_JOBSTORE_REMOVED,
    EVENT_SCHEDULER_STARTED,
)

from shedlock_py.events import logger

MOST_NAMES = 1000
"""The last runs are kept for so many lock names. Without a limit, names made for each job would fill the memory."""
JobKey = tuple[str, str]
"""Job store and job id."""

_REMOVALS = EVENT_JOB_REMOVED | EVENT_ALL_JOBS_REMOVED | EVENT_JOBSTORE_REMOVED


class LockNames:
    """The lock names of a scheduler's jobs. For any thread."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._name_of: dict[JobKey, str] = {}
        self._jobs: dict[str, dict[JobKey, None]] = {}
        """The scheduled jobs of each lock name, oldest first."""
        self._runs: dict[str, dict[JobKey, datetime]] = {}
        """The two jobs of each lock name that ran last, and their run times.

        A scheduler removes a job when it submits the job's last run. That run may have used up later fire times of
        other jobs.
        """

    def add(self, key: JobKey, name: str) -> None:
        """Note the lock name of a scheduled job."""
        with self._mutex:
            if self._name_of.get(key) != name:
                self._remove(key)
                self._name_of[key] = name
                self._jobs.setdefault(name, {})[key] = None

    def add_run(self, key: JobKey, name: str, run_time: datetime) -> None:
        """Note a run of a job under its lock name."""
        with self._mutex:
            runs = self._runs.pop(name, {})
            runs[key] = max(run_time, runs.get(key, run_time))
            self._runs[name] = dict(sorted(runs.items(), key=itemgetter(1))[-2:])  # two, so that one is another job
            if len(self._runs) > MOST_NAMES:
                del self._runs[next(iter(self._runs))]  # the name that ran longest ago

    def sharing(self, key: JobKey, name: str, since: datetime | None = None) -> list[str]:
        """Return the ids of other jobs with this lock name that are scheduled, or ran at ``since`` or later."""
        with self._mutex:
            jobs = dict(self._jobs.get(name, {}))
            if since is not None:
                jobs |= {other: None for other, run_time in self._runs.get(name, {}).items() if run_time >= since}
        return [job_id for store, job_id in jobs if (store, job_id) != key]

    def remove(self, store: str | None, job_id: str | None = None) -> None:
        """Forget a job, all jobs of a job store, or all jobs: they are not scheduled any more."""
        with self._mutex:
            for key in [key for key in self._name_of if store in (None, key[0]) and job_id in (None, key[1])]:
                self._remove(key)

    def _remove(self, key: JobKey) -> None:
        name = self._name_of.pop(key, None)
        if name is not None:
            del self._jobs[name][key]
            if not self._jobs[name]:
                del self._jobs[name]


def lock_names_of(scheduler: Any) -> LockNames:
    """Return the lock names of the scheduler's jobs: one object, kept up to date, for all executors of a scheduler."""
    names: LockNames | None = getattr(scheduler, "shedlock_lock_names", None)
    if names is None:
        names = scheduler.shedlock_lock_names = LockNames()
        # A listener could not refuse the job, and would have to read the job from the job store.
        scheduler._real_add_job = partial(_add_job, scheduler, scheduler._real_add_job)
        scheduler.add_listener(lambda _: observe_jobs(scheduler), EVENT_SCHEDULER_STARTED)
        scheduler.add_listener(partial(_on_removal, names), _REMOVALS)
    return names


def observe_jobs(scheduler: Any) -> None:
    """Let the executors observe the scheduler's present jobs, also in its job stores."""
    try:
        jobs = scheduler.get_jobs()
    except Exception:  # the scheduler fails in the same way, and logs it
        logger.debug("the jobs of the scheduler cannot be read", exc_info=True)
        return
    for job in jobs:
        _observe(scheduler, job)


def key_of(job: Any) -> JobKey:
    return job._jobstore_alias, job.id


def _observe(scheduler: Any, job: Any) -> None:
    executor = scheduler._executors.get(job.executor)
    if hasattr(executor, "observe"):  # a ShedLockExecutor
        executor.observe(job)


def _add_job(
    scheduler: Any, add: Callable[[Any, str, bool], None], job: Any, jobstore_alias: str, replace_existing: bool
) -> None:
    executor = scheduler._executors.get(job.executor)
    if hasattr(executor, "observe"):  # a ShedLockExecutor
        executor.before_add(job)
    add(job, jobstore_alias, replace_existing)
    _observe(scheduler, job)


def _on_removal(names: LockNames, event: Any) -> None:
    if event.code == EVENT_JOB_REMOVED:
        names.remove(event.jobstore, event.job_id)
    else:
        names.remove(event.alias)  # None: all job stores
