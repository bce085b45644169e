"""The events that ShedLockExecutor adds to APScheduler, and the way of a job's events to the listeners."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from traceback import format_tb
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, JobExecutionEvent

from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest

EVENT_JOB_SKIPPED = 2**24
"""The job did not run here because of its lock. Not in ``EVENT_ALL``: listen for ``EVENT_ALL | EVENT_JOB_SKIPPED``."""


class JobSkippedEvent(JobExecutionEvent):
    """The job did not run here at a fire time (code :data:`EVENT_JOB_SKIPPED`). The run has no other event.

    :ivar lock_name: the lock that the run did not get.
    :ivar reason: ``"held"``: another holder has it. ``"already_ran"``: this fire time was granted before.
        ``"provider_error"``: the store failed (``on_provider_error="skip"``).
        ``"not_leader"``: another node leads (``elector``, ``@leader_only``). ``"shutting_down"``: this process got
        SIGTERM (``release_on_sigterm``), or ``drain`` was called.
    """

    def __init__(self, job_id: str, jobstore: str, run_time: datetime, lock_name: str, reason: str) -> None:
        super().__init__(EVENT_JOB_SKIPPED, job_id, jobstore, run_time)
        self.lock_name = lock_name
        self.reason = reason


@dataclass(frozen=True)
class Later:
    """A run that did not begin, but may begin later. The worker returns it, because a worker never waits."""

    proxy: Any
    """The ``JobProxy``."""
    run_time: datetime
    request: LockRequest
    """With the fire time, which stays the same for a late run."""
    error: Exception | None = None
    """The store was unreachable: try the run again."""
    record: LockRecord | None = None
    """The record of the same fire time on another replica: watch it."""


@dataclass(frozen=True)
class RunResult:
    """The return value of a job's proxy to the inner executor: the events of its run times, and possible later runs."""

    key: tuple[str, str]
    """Job store and job id."""
    run_times: tuple[datetime, ...]
    is_late: bool
    """``LateRuns`` has submitted the runs, and counts them until they end."""
    events: list[JobExecutionEvent]
    later: list[Later]


class SchedulerProxy:
    """The scheduler of an inner executor. It hands the events of the job itself to the listeners.

    :param ended: called with each result, after the events of the result.
    """

    def __init__(self, scheduler: Any, logger: logging.Logger, ended: Callable[[RunResult], None]) -> None:
        self._scheduler = scheduler
        self._executor_logger = logger
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _dispatch_event(self, event: Any) -> None:
        result = getattr(event, "retval", None)
        for inner in result.events if isinstance(result, RunResult) else [event]:
            retval = getattr(inner, "retval", None)
            if inspect.iscoroutine(retval):  # APScheduler would report a success
                retval.close()
                error = cannot_await(inner.job_id)
                self._executor_logger.error("%s", error)
                inner = error_event(inner.job_id, inner.jobstore, inner.scheduled_run_time, error)
            self._scheduler._dispatch_event(inner)
        if isinstance(result, RunResult):
            self._ended(result)


def error_event(job_id: str, jobstore: str, run_time: datetime, error: BaseException) -> JobExecutionEvent:
    traceback = "".join(format_tb(error.__traceback__))
    return JobExecutionEvent(EVENT_JOB_ERROR, job_id, jobstore, run_time, exception=error, traceback=traceback)


def cannot_await(job_id: str) -> TypeError:
    return TypeError(
        f'job "{job_id}" is a coroutine function, which its executor cannot await: run it with the executor of an'
        " AsyncIOScheduler or TornadoScheduler"
    )
