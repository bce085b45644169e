"""What an inner executor sees in place of a job and of the scheduler.

It runs a :class:`JobProxy`, whose result is a :class:`RunResult`. It reports that to a :class:`SchedulerProxy`, which
hands the events of the job itself to the listeners.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apscheduler.events import JobExecutionEvent

from shedlock_py.integrations.apscheduler.events import cannot_await, error_event


@dataclass(frozen=True)
class RunResult:
    """The events of the run times of a job."""

    events: list[JobExecutionEvent]


class JobProxy:
    """A job that is one call for all run times. Misfires are decided by the call, not by the inner executor."""

    misfire_grace_time = None

    def __init__(self, func: Callable[..., Any], plan: Any, run_times: Sequence[datetime]) -> None:
        self.func, self.args = func, (plan, list(run_times))
        self.kwargs: dict[str, Any] = {}
        self.id, self.max_instances, self._jobstore_alias = plan.job.id, plan.job.max_instances, plan.jobstore
        logging.getLogger(plan.logger_name).addFilter(_is_about_a_job)  # here, so that worker processes add it, too

    def __reduce__(self) -> tuple[Any, ...]:
        return JobProxy, (self.func, *self.args)

    def __getattr__(self, name: str) -> Any:  # for executors that read more than APScheduler's own do
        return getattr(self.args[0].job, name)

    def __str__(self) -> str:
        return str(self.args[0].job)


def _is_about_a_job(record: logging.LogRecord) -> bool:
    """A log filter: "Running job" and "executed successfully" about a proxy repeat what is logged about the job."""
    args = record.args
    return record.levelno > logging.INFO or not (isinstance(args, tuple) and args and isinstance(args[0], JobProxy))


class SchedulerProxy:
    """A scheduler that unpacks results before it notifies its listeners."""

    def __init__(self, scheduler: Any, logger: logging.Logger) -> None:
        self._scheduler = scheduler
        self._executor_logger = logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _dispatch_event(self, event: Any) -> None:
        retval = getattr(event, "retval", None)
        for inner in retval.events if isinstance(retval, RunResult) else [event]:
            self._scheduler._dispatch_event(self._checked(inner))

    def _checked(self, event: Any) -> Any:
        """The event, or an error if the result is a coroutine, which APScheduler would report as a success."""
        if not inspect.iscoroutine(getattr(event, "retval", None)):
            return event
        event.retval.close()
        error = cannot_await(event.job_id)
        self._executor_logger.error("%s", error)
        return error_event(event.job_id, event.jobstore, event.scheduled_run_time, error)
