"""What runs in the worker: a thread, another process, a task of the event loop.

Read ``_run_once``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import JobExecutionEvent
from apscheduler.executors.base import run_job

from shedlock_py import LockRequest, LockSkipped, ProviderError, Skipped, attempt, attempt_async
from shedlock_py.config import emit
from shedlock_py.context import add_alias
from shedlock_py.integrations.apscheduler.events import EVENT_JOB_SKIPPED, JobSkippedEvent, error_event
from shedlock_py.integrations.apscheduler.options import find_lock_spec, fire_time_of
from shedlock_py.urls import provider_from_text

try:
    from apscheduler.executors.base import run_coroutine_job
except ImportError:  # APScheduler 3.10
    from apscheduler.executors.base_py3 import run_coroutine_job

_LONG_AGO = -100 * 365 * 24 * 3600  # seconds: a grace time that every run has missed


@dataclass(frozen=True)
class Plan:
    """All that a worker needs to run a job under its lock. Can be pickled if the job can."""

    job: Any
    jobstore: str
    logger_name: str
    lock: LockRequest | Exception | None
    provider: Any = field(repr=False)  # may be a URL with a password
    once_per_fire_time: bool
    skips_provider_errors: bool
    skip_code: int
    elector: Any = None

    def guard_options(self) -> dict[str, Any]:
        """What else the decorator, if there is one, says of the guard; found here, so it need not be pickled.

        The provider is the decorator's own, the executor's, or None: the configured one.
        """
        provider = provider_from_text(self.provider) if isinstance(self.provider, str) else self.provider
        spec = find_lock_spec(self.job.func)
        if spec is None:
            return {"provider": provider}
        own = spec.provider
        return {
            "provider": provider if own is None else own,
            "keep_alive": spec.keep_alive,
            "on_lost": spec.on_lost,
        }

    def stand_for_decorator(self) -> None:
        """Inside the lock: it is the one of ``@scheduler_lock`` as well, which must not ask for its own."""
        spec = find_lock_spec(self.job.func)
        if spec is not None:
            add_alias(spec, spec.lock_name(self.job.func, tuple(self.job.args), dict(self.job.kwargs)))

    def refused(self, run_time: datetime) -> list[JobExecutionEvent]:
        """The event of a run that must not begin here: too late, or not on the leader. Empty: it may."""
        if self.has_missed(run_time):
            return self.missed(run_time)
        if self.elector is not None and not self.elector.is_leader():
            emit(LockSkipped(self.elector.name, "not_leader", timedelta(0)))
            return [self.skipped(run_time, self.elector.name, "not_leader")]
        return []

    def request(self, run_time: datetime) -> LockRequest | None:
        """None: no lock is needed."""
        if self.lock is None:
            return None
        if isinstance(self.lock, Exception):
            raise self.lock
        if not self.once_per_fire_time:
            return self.lock
        return replace(self.lock, fire_time=fire_time_of(self.job.trigger, run_time))

    def has_missed(self, run_time: datetime) -> bool:
        grace = self.job.misfire_grace_time
        return bool(grace is not None and datetime.now(UTC) - run_time > timedelta(seconds=grace))

    def missed(self, run_time: datetime) -> list[JobExecutionEvent]:
        view = _JobView(self.job, misfire_grace_time=_LONG_AGO)  # missed, even if the clock is set back right now
        return list(run_job(view, self.jobstore, [run_time], self.logger_name))

    def skipped(self, run_time: datetime, lock_name: str, reason: str) -> JobExecutionEvent:
        message = 'Run of job "%s" (scheduled at %s) was skipped: lock "%s", %s'
        logging.getLogger(self.logger_name).debug(message, self.job, run_time, lock_name, reason)
        if self.skip_code == EVENT_JOB_SKIPPED:
            return JobSkippedEvent(self.job.id, self.jobstore, run_time, lock_name, reason)
        return JobExecutionEvent(self.skip_code, self.job.id, self.jobstore, run_time)

    def not_run(self, run_time: datetime, error: BaseException) -> JobExecutionEvent:
        """The event for a run that ended before the job began."""
        if self.skips_provider_errors and isinstance(error, ProviderError):
            return self.skipped(run_time, error.lock_name or "", "provider_error")
        logging.getLogger(self.logger_name).error('Job "%s" was not run: %s', self.job, error, exc_info=error)
        return error_event(self.job.id, self.jobstore, run_time, error)


@dataclass(frozen=True)
class Outcome:
    """What became of the run times of a stand-in."""

    events: list[JobExecutionEvent]


# Each run begins in a fresh context. Timers and tasks of an event loop inherit the context of the code that makes them:
# a job that calls scheduler.add_job() would hand its own on to all later jobs, and its lock with it.


def run(plan: Plan, run_times: Sequence[datetime]) -> Outcome:
    return Context().run(_run, plan, run_times)


def _run(plan: Plan, run_times: Sequence[datetime]) -> Outcome:
    return Outcome([event for run_time in run_times for event in _run_once(plan, run_time)])


async def run_async(plan: Plan, run_times: Sequence[datetime]) -> Outcome:
    return await asyncio.create_task(_run_async(plan, run_times), context=Context())


async def _run_async(plan: Plan, run_times: Sequence[datetime]) -> Outcome:
    return Outcome([event for run_time in run_times for event in await _run_once_async(plan, run_time)])


def _run_once(plan: Plan, run_time: datetime) -> list[JobExecutionEvent]:
    """Run the job under its lock, if it gets it; one event. ``_run_once_async`` is its twin."""
    if refused := plan.refused(run_time):
        return refused
    events: list[JobExecutionEvent] = []

    def task() -> None:
        plan.stand_for_decorator()
        events.extend(run_job(_JobView(plan.job), plan.jobstore, [run_time], plan.logger_name))
        _raise_failure(events)

    try:
        request = plan.request(run_time)
        if request is None:
            return list(run_job(_JobView(plan.job), plan.jobstore, [run_time], plan.logger_name))
        result = attempt(request, task, **plan.guard_options())
    except BaseException as error:  # all of them, as run_job does
        return events or [plan.not_run(run_time, error)]
    return [plan.skipped(run_time, result.lock_name, result.reason)] if isinstance(result, Skipped) else events


async def _run_once_async(plan: Plan, run_time: datetime) -> list[JobExecutionEvent]:
    """Run the job under its lock, if it gets it; one event. ``_run_once`` is its twin."""
    if refused := plan.refused(run_time):
        return refused
    events: list[JobExecutionEvent] = []

    async def task() -> None:
        plan.stand_for_decorator()
        events.extend(await run_coroutine_job(_JobView(plan.job), plan.jobstore, [run_time], plan.logger_name))
        _raise_failure(events)

    try:
        request = plan.request(run_time)
        if request is None:
            return list(await run_coroutine_job(_JobView(plan.job), plan.jobstore, [run_time], plan.logger_name))
        result = await attempt_async(request, task, **plan.guard_options())
    except BaseException as error:  # all of them, as run_coroutine_job does
        return events or [plan.not_run(run_time, error)]
    return [plan.skipped(run_time, result.lock_name, result.reason)] if isinstance(result, Skipped) else events


def _raise_failure(events: list[JobExecutionEvent]) -> None:
    """Let the guard see what the job raised, which run_job has turned into an event."""
    for event in events:
        if event.exception is not None:
            raise event.exception


class _JobView:
    """The job as run_job sees it inside the lock. A granted run must run, however long the store took to grant it."""

    def __init__(self, job: Any, misfire_grace_time: int | None = None) -> None:
        self.id, self.func, self.args, self.kwargs = job.id, job.func, job.args, job.kwargs
        self.misfire_grace_time = misfire_grace_time
        self._job = job

    def __str__(self) -> str:
        return str(self._job)


class StandIn:
    """The job as the inner executor sees it: one call for all run times. Misfires are the job's own."""

    misfire_grace_time = None

    def __init__(self, func: Callable[..., Any], plan: Plan, run_times: Sequence[datetime]) -> None:
        self.func, self.args = func, (plan, list(run_times))
        self.kwargs: dict[str, Any] = {}
        self.id, self.max_instances, self._jobstore_alias = plan.job.id, plan.job.max_instances, plan.jobstore
        logging.getLogger(plan.logger_name).addFilter(_says_more)  # here, so that worker processes do it as well

    def __reduce__(self) -> tuple[Any, ...]:
        return StandIn, (self.func, *self.args)

    def __getattr__(self, name: str) -> Any:  # for executors that look at more than APScheduler's own do
        return getattr(self.args[0].job, name)

    def __str__(self) -> str:
        return str(self.args[0].job)


def _says_more(record: logging.LogRecord) -> bool:
    """A log filter: "Running job" and "executed successfully" about a stand-in say nothing; the job has its own."""
    args = record.args
    return record.levelno > logging.INFO or not (isinstance(args, tuple) and args and isinstance(args[0], StandIn))
