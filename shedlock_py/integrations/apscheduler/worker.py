"""What runs in a worker of the inner executor: a thread, another process, or a task of the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import JobExecutionEvent
from apscheduler.executors.base import run_job

from shedlock_py import LockRequest, LockSkipped, ProviderError, Skipped
from shedlock_py.block import AsyncBlock, Block, decide_skip, not_leader
from shedlock_py.config import emit
from shedlock_py.context import add_alias
from shedlock_py.guard import run_guarded, run_guarded_async
from shedlock_py.integrations.apscheduler.events import EVENT_JOB_SKIPPED, JobSkippedEvent, error_event
from shedlock_py.integrations.apscheduler.fire_times import fire_time_of
from shedlock_py.integrations.apscheduler.options import find_lock_spec
from shedlock_py.integrations.apscheduler.proxies import RunResult
from shedlock_py.options import LockOptions
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

    def guard_options(self) -> LockOptions:
        """The options of the guard. Those of a decorator are read in the worker, so they need not be pickled.

        The provider is the decorator's, else the executor's, else None: the configured one.
        """
        spec = find_lock_spec(self.job.func)
        options = LockOptions() if spec is None else spec.options
        provider = options.provider
        if provider is None:
            provider = provider_from_text(self.provider) if isinstance(self.provider, str) else self.provider
        return replace(options, provider=provider, lock_at_most_for=None, lock_at_least_for=None)  # see request()

    def add_decorator_alias(self) -> None:
        """Let the lock count as that of ``@scheduler_lock``, which must not acquire its own inside."""
        spec = find_lock_spec(self.job.func)
        if spec is not None:
            add_alias(spec, spec.lock_name(self.job.func, tuple(self.job.args), dict(self.job.kwargs)))

    def refused(self, run_time: datetime) -> list[JobExecutionEvent]:
        """The event of a run that must not begin, because it is too late or this node does not lead. Empty: it may."""
        if self.has_missed(run_time):
            return self.missed(run_time)
        if self.elector is not None and (skip := decide_skip(self.elector.name, [not_leader(self.elector.is_leader)])):
            emit(LockSkipped(skip.lock_name, skip.reason, timedelta(0)))
            return [self.skipped(run_time, skip)]
        return []

    def request(self, run_time: datetime) -> LockRequest | None:
        """What to acquire for a run; None: it needs no lock."""
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
        copy = _JobCopy(self.job, misfire_grace_time=_LONG_AGO)  # missed, even if the clock is set back right now
        return list(run_job(copy, self.jobstore, [run_time], self.logger_name))

    def skipped(self, run_time: datetime, skip: Skipped) -> JobExecutionEvent:
        """The event of a skip that the guard has decided."""
        message = 'Run of job "%s" (scheduled at %s) was skipped: lock "%s", %s'
        logging.getLogger(self.logger_name).debug(message, self.job, run_time, skip.lock_name, skip.reason)
        if self.skip_code == EVENT_JOB_SKIPPED:
            return JobSkippedEvent(self.job.id, self.jobstore, run_time, skip.lock_name, skip.reason)
        return JobExecutionEvent(self.skip_code, self.job.id, self.jobstore, run_time)

    def not_run(self, run_time: datetime, error: BaseException) -> JobExecutionEvent:
        """The event for a run that ended before the job began."""
        if self.skips_provider_errors and isinstance(error, ProviderError):
            return self.skipped(run_time, Skipped(error.lock_name or "", "provider_error"))
        logging.getLogger(self.logger_name).error('Job "%s" was not run: %s', self.job, error, exc_info=error)
        return error_event(self.job.id, self.jobstore, run_time, error)


# Each run begins in a fresh context. Timers and tasks of an event loop inherit the context of the code that makes them.
# A job that calls scheduler.add_job() would pass its own context, and its lock with it, to all later jobs.


def run(plan: Plan, run_times: Sequence[datetime]) -> RunResult:
    return Context().run(_run, plan, run_times)


def _run(plan: Plan, run_times: Sequence[datetime]) -> RunResult:
    return RunResult([event for run_time in run_times for event in run_once(plan, run_time)])


async def run_async(plan: Plan, run_times: Sequence[datetime]) -> RunResult:
    return await asyncio.create_task(_run_async(plan, run_times), context=Context())


async def _run_async(plan: Plan, run_times: Sequence[datetime]) -> RunResult:
    return RunResult([event for run_time in run_times for event in await run_once_async(plan, run_time)])


def run_once(plan: Plan, run_time: datetime) -> list[JobExecutionEvent]:
    """Run the job under its lock, if it gets it; one event. ``run_once_async`` is its twin."""
    if refused := plan.refused(run_time):
        return refused
    events: list[JobExecutionEvent] = []

    def task() -> None:
        plan.add_decorator_alias()
        events.extend(run_job(_JobCopy(plan.job), plan.jobstore, [run_time], plan.logger_name))
        _raise_failure(events)

    try:
        request = plan.request(run_time)
        if request is None:
            return list(run_job(_JobCopy(plan.job), plan.jobstore, [run_time], plan.logger_name))
        result = run_guarded(Block(request, plan.guard_options()), task)
    except BaseException as error:  # all of them, as run_job does
        return events or [plan.not_run(run_time, error)]
    return [plan.skipped(run_time, result)] if isinstance(result, Skipped) else events


async def run_once_async(plan: Plan, run_time: datetime) -> list[JobExecutionEvent]:
    """Run the job under its lock, if it gets it; one event. ``run_once`` is its twin."""
    if refused := plan.refused(run_time):
        return refused
    events: list[JobExecutionEvent] = []

    async def task() -> None:
        plan.add_decorator_alias()
        events.extend(await run_coroutine_job(_JobCopy(plan.job), plan.jobstore, [run_time], plan.logger_name))
        _raise_failure(events)

    try:
        request = plan.request(run_time)
        if request is None:
            return list(await run_coroutine_job(_JobCopy(plan.job), plan.jobstore, [run_time], plan.logger_name))
        result = await run_guarded_async(AsyncBlock(request, plan.guard_options()), task)
    except BaseException as error:  # all of them, as run_coroutine_job does
        return events or [plan.not_run(run_time, error)]
    return [plan.skipped(run_time, result)] if isinstance(result, Skipped) else events


def _raise_failure(events: list[JobExecutionEvent]) -> None:
    """Raise for the guard what the job raised, which ``run_job`` has turned into an event."""
    for event in events:
        if event.exception is not None:
            raise event.exception


class _JobCopy:
    """A job as ``run_job`` gets it: without a misfire time, because a granted run must run, however late."""

    def __init__(self, job: Any, misfire_grace_time: int | None = None) -> None:
        self.id, self.func, self.args, self.kwargs = job.id, job.func, job.args, job.kwargs
        self.misfire_grace_time = misfire_grace_time
        self._job = job

    def __str__(self) -> str:
        return str(self._job)
