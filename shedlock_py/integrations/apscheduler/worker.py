"""The code in a worker of the inner executor: a thread, another process, or a task of the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from apscheduler.events import JobExecutionEvent
from apscheduler.executors.base import run_job
from apscheduler.job import Job

from shedlock_py import LockRequest, LockSkipped, ProviderError, ProviderUnreachable, RunMissed, Skipped
from shedlock_py.election.base import leave_callbacks
from shedlock_py.events import MissReason, logger
from shedlock_py.guard.block import AsyncBlock, Block
from shedlock_py.guard.context import add_alias, leave_leases
from shedlock_py.guard.skips import gates_of
from shedlock_py.integrations.apscheduler.catch_up import is_missed
from shedlock_py.integrations.apscheduler.events import (
    JobSkippedEvent,
    Later,
    RunResult,
    error_event,
)
from shedlock_py.integrations.apscheduler.fire_times import fire_time_of, next_fire_time_of, why_plain
from shedlock_py.integrations.apscheduler.job_locks import cannot_run_once
from shedlock_py.integrations.apscheduler.lock_names import JobKey
from shedlock_py.integrations.apscheduler.notices import warn_of_plain_lock
from shedlock_py.integrations.apscheduler.options import decorator_options, find_lock_spec, provider_of
from shedlock_py.model.record import LockRecord
from shedlock_py.model.run import describe_error
from shedlock_py.runtime.process import is_from_signal
from shedlock_py.settings.emit import emit
from shedlock_py.settings.lookup import resolve_async_provider, resolve_provider
from shedlock_py.settings.options import LockOptions

try:
    from apscheduler.executors.base import run_coroutine_job
except ImportError:  # APScheduler 3.10
    from apscheduler.executors.base_py3 import run_coroutine_job

JOB_TASK = "shedlock job "
"""The names of coroutine jobs' tasks start with this text."""
Outcome: TypeAlias = Any
"""The result of a run: an event of APScheduler, which has no types, or a :class:`Later`."""
LateKind = Literal["catch_up", "retry", "watched", "kept"]
_WHY_LATE: dict[LateKind, tuple[int, str]] = {
    "catch_up": (logging.INFO, "no replica ran it"),
    "retry": (logging.WARNING, "its store was unreachable"),
    "watched": (logging.INFO, "another replica gave it back"),
    "kept": (logging.INFO, "a late run of it had not ended"),
}
BlockT = TypeVar("BlockT", Block, AsyncBlock)
_LONG_AGO = -100 * 365 * 24 * 3600  # seconds: a grace time that every run has missed


def snapshot_of(job: Job) -> Job:
    """Return a copy of ``job`` that ``modify_job()`` and ``reschedule_job()`` do not change.

    A job store in memory hands out the same job that these methods change, and a submitted run may wait for a worker.
    It must not take the lock of the old arguments and run with the new arguments. The copy is a ``Job``, so that it is
    pickled as a ``Job``.
    """
    snapshot = Job.__new__(Job)
    for slot in Job.__slots__:
        if slot != "__weakref__" and hasattr(job, slot):
            setattr(snapshot, slot, getattr(job, slot))
    snapshot.args, snapshot.kwargs = tuple(job.args), dict(job.kwargs)
    return snapshot


@dataclass(eq=False, repr=False)  # provider may be a URL with a password
class JobProxy:
    """Runs in the inner executor in place of a job. A single call takes the lock for each run time.

    It can be pickled if the job can. The call decides about misfires, not the inner executor.
    """

    job: Any
    jobstore: str
    run_times: Sequence[datetime]
    logger_name: str
    lock: LockRequest | Exception | None
    provider: Any
    once_per_fire_time: bool | None
    """In a store without fire times, True is an error, and None gives a plain lock. False always gives a plain lock."""
    waits_for_others: bool
    """Another job of this scheduler shares the lock: wait while this process has the lock."""
    submitted_at: datetime
    stopping: Event | None
    """Set when the executor shuts down: then no run waits any more. None in a process pool."""
    draining: Event | None
    """Set by ``drain``: then no run begins any more. None in a process pool."""
    skips_provider_errors: bool
    elector: Any
    is_coroutine: bool
    recover: bool
    max_recoveries: int
    is_catch_up: bool = False
    """Read from the store whether the run was missed."""
    late: LateKind | None = None
    """Why the run is late. A late run is not a misfire."""
    expected: LockRecord | None = None
    """The record of a run that never ended, which this run recovers."""

    args: ClassVar[tuple[Any, ...]] = ()
    kwargs: ClassVar[dict[str, Any]] = {}
    misfire_grace_time = None

    def __post_init__(self) -> None:
        logging.getLogger(self.logger_name).addFilter(_is_about_a_job)  # here, so that worker processes add it, too

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle the fields: an inner executor may have set its own attributes on the job.
        given = {field.name: getattr(self, field.name) for field in fields(self)} | {"stopping": None, "draining": None}
        return JobProxy, tuple(given.values())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    def __str__(self) -> str:
        return str(self.job)

    @property
    def _jobstore_alias(self) -> str:
        return self.jobstore  # a job from a process pool lacks it

    @property
    def key(self) -> JobKey:
        return self.jobstore, self.job.id

    @property
    def can_be_late(self) -> bool:
        """Whether the fire time keeps a late run from being a second run."""
        return isinstance(self.lock, LockRequest) and (
            self.once_per_fire_time is not False or self.lock.fire_time is not None
        )

    @property
    def func(self) -> Callable[[], Any]:
        return self._run_all_async if self.is_coroutine else self._run_all

    # Each run begins in a copy of the context, outside of every lease. Timers and tasks of an event loop inherit the
    # context of the code that makes them. A job that calls scheduler.add_job() would pass its lock to all later jobs.

    def _run_all(self) -> RunResult:
        return self._result([each for time in self.run_times for each in _context().run(self._run, time)])

    async def _run_all_async(self) -> RunResult:
        outcomes: list[Outcome] = []
        for run_time in self.run_times:
            name, context = f"{JOB_TASK}{self.job.id}", _context()
            context.run(leave_callbacks)  # elector callbacks; only the debug executor runs a job in a callback
            outcomes += await asyncio.create_task(self._run_async(run_time), name=name, context=context)
        return self._result(outcomes)

    def _result(self, outcomes: list[Outcome]) -> RunResult:
        later = [each for each in outcomes if isinstance(each, Later)]
        events = [each for each in outcomes if not isinstance(each, Later)]
        is_late = self.late not in (None, "kept")
        return RunResult(self.key, tuple(self.run_times), is_late, events, later)

    def _run(self, run_time: datetime) -> list[Outcome]:
        """Run the job under its lock, if the lock is granted. ``_run_async`` is the twin."""
        if outcomes := self._refuse(run_time):
            return outcomes
        request: LockRequest | None = None
        try:
            if self.lock is None:
                return list(run_job(*self._call(run_time)))
            request, options = self._prepared(run_time)
            if self.is_catch_up:
                record = resolve_provider(options.provider, request.name).record(request.name)
                if not self._is_missed(run_time, request, record):
                    return []
            block = self._block(Block, request, options)
            with block as lease:
                if lease is None:
                    return self._not_granted(run_time, request, block)
                self._begin(run_time)
                outcomes += run_job(*self._call(run_time))
                _raise_failure(outcomes)
        except BaseException as error:  # all exceptions, as run_job does
            return outcomes or [self._not_begun(run_time, request, error)]
        return outcomes

    async def _run_async(self, run_time: datetime) -> list[Outcome]:
        if outcomes := self._refuse(run_time):
            return outcomes
        request: LockRequest | None = None
        try:
            if self.lock is None:
                outcomes += await run_coroutine_job(*self._call(run_time))
                _raise_failure(outcomes)
                return outcomes
            request, options = self._prepared(run_time)
            if self.is_catch_up:
                record = await resolve_async_provider(options.provider, request.name).record(request.name)
                if not self._is_missed(run_time, request, record):
                    return []
            block = self._block(AsyncBlock, request, options)
            async with block as lease:
                if lease is None:
                    return self._not_granted(run_time, request, block)
                self._begin(run_time)
                outcomes += await run_coroutine_job(*self._call(run_time))
                _raise_failure(outcomes)
        except BaseException as error:  # all exceptions, as run_coroutine_job does
            if is_from_signal(error):
                raise  # the process must end; otherwise it would go on and skip each further run
            return outcomes or [self._not_begun(run_time, request, error)]
        return outcomes

    def _refuse(self, run_time: datetime) -> list[Outcome]:
        """Return the event of a run that must not begin: too late, in a drain, or not on the leader. Else return []."""
        grace = self.job.misfire_grace_time if self.late is None else None
        if not self.is_catch_up and self._leaves_room(run_time):
            self.missed(run_time, "no_room")
            return list(run_job(*self._call(run_time, _LONG_AGO)))
        # The worker may be late because it waited for a run of another job.
        now = self.submitted_at if self.waits_for_others else datetime.now(UTC)
        if grace is not None and now - run_time > timedelta(seconds=grace):
            return list(run_job(*self._call(run_time, _LONG_AGO)))  # missed, even if the clock is set back right now
        if self.draining is not None and self.draining.is_set():
            skip = Skipped(self.lock.name if isinstance(self.lock, LockRequest) else self.job.id, "shutting_down")
        elif self.elector is not None and not self.elector.is_leader():
            skip = Skipped(self.elector.name, "not_leader")
        else:
            return []
        emit(LockSkipped(skip.lock_name, skip.reason, timedelta(0)))
        return [self._skipped(run_time, skip)]

    def _leaves_room(self, run_time: datetime) -> bool:
        """Return whether a late run is so late that the next run on time is due.

        False for a recovery: the run on time was refused while the dead holder's lease lasted.
        """
        if self.late is None or self.expected is not None:
            return False
        following = next_fire_time_of(self.job.trigger, run_time)
        return following is not None and following <= datetime.now(UTC)

    def _prepared(self, run_time: datetime) -> tuple[LockRequest, LockOptions]:
        """Return the request for a run, and the options of its guard.

        The worker reads a decorator's options, so they need not be pickled.

        :raises ConfigurationError: no lock can be taken, or not once per fire time.
        """
        provider = provider_of(self.job, self.provider)
        request = self._request(run_time, provider)
        in_request: dict[str, Any] = dict.fromkeys(("lock_at_most_for", "lock_at_least_for", "once_per", "fire_time"))
        options = replace(
            decorator_options(self.job),
            provider=provider,
            wait=self._wait(request),
            recover=self.recover and request.fire_time is not None,
            max_recoveries=self.max_recoveries,
            **in_request,
        )
        return request, options

    def _request(self, run_time: datetime, provider: object) -> LockRequest:
        """Return the request for a run.

        :raises ConfigurationError: no lock can be taken, or not once per fire time.
        """
        if not isinstance(self.lock, LockRequest):
            assert self.lock is not None
            raise self.lock
        trigger = self.job.trigger
        request = replace(self.lock, next_fire_time=next_fire_time_of(trigger, run_time))  # for run history
        # The decorator's once_per= or fire_time= goes first.
        if self.once_per_fire_time is False or request.fire_time is not None:
            return request
        reason = why_plain(trigger, provider)
        if reason is None:
            return replace(request, fire_time=fire_time_of(trigger, run_time))
        if self.once_per_fire_time:
            raise cannot_run_once(self.job.id, reason)
        warn_of_plain_lock(logging.getLogger(self.logger_name), self.job, reason)
        return request

    def _wait(self, request: LockRequest) -> timedelta | None:
        """Return how long to wait for other jobs that share the lock: at most until shortly before the next fire time.

        After ``lock_at_most_for``, the lease of a hung run has expired.
        """
        if not self.waits_for_others:
            return None
        now = datetime.now(UTC)
        following = next_fire_time_of(self.job.trigger, now)
        longest = request.lock_at_most_for
        return longest if following is None else max(min(longest, (following - now) * 0.9), timedelta(0))

    def _may_wait(self, record: LockRecord) -> bool:
        """Return whether this process, and so another of its jobs, has the lock.

        A plain lock does not show whether another replica runs the same job. A run that waits for that replica would be
        a second run.
        """
        is_stopping = self.stopping is not None and self.stopping.is_set()
        return isinstance(self.lock, LockRequest) and record.holder == self.lock.holder and not is_stopping

    def _block(self, kind: type[BlockT], request: LockRequest, options: LockOptions) -> BlockT:
        return kind(
            request,
            options,
            gates=gates_of(self.job.func),
            may_wait=self._may_wait,
            watches=False,
            expected=self.expected,
        )

    def _is_missed(self, run_time: datetime, request: LockRequest, record: LockRecord | None) -> bool:
        if request.fire_time is None:
            return False
        is_of_trigger = request.fire_time == fire_time_of(self.job.trigger, run_time)
        found = is_missed(record, self.job.trigger, request.fire_time, is_of_trigger=is_of_trigger)
        has_room = not self._leaves_room(run_time)
        if found is None or (found and not has_room):
            self.missed(run_time, "schedule_changed" if found is None else "no_room")
        return bool(found) and has_room

    def _begin(self, run_time: datetime) -> None:
        """Log a late run. Called under the lease, before the job."""
        if self.late is not None and self.expected is None:
            level, why = _WHY_LATE[self.late]
            late = (datetime.now(UTC) - run_time).total_seconds()
            message = 'Job "%s" was due at %s, when %s: it runs now, %.1f s late'
            logging.getLogger(self.logger_name).log(level, message, self.job, run_time, why, late)
        self._add_decorator_alias()

    def _add_decorator_alias(self) -> None:
        """Let the lock count as the lock of ``@scheduler_lock``, so that the decorator does not acquire its own."""
        spec = find_lock_spec(self.job.func)
        if spec is not None:
            add_alias(spec, spec.lock_name(self.job.func, tuple(self.job.args), dict(self.job.kwargs)))

    def _call(self, run_time: datetime, misfire_grace_time: int | None = None) -> tuple[Any, ...]:
        """Return the arguments of ``run_job``. By default without a misfire time, so that a granted run always runs."""
        job = snapshot_of(self.job)
        job.misfire_grace_time = misfire_grace_time
        return job, self.jobstore, [run_time], self.logger_name

    def _skipped(self, run_time: datetime, skip: Skipped) -> JobExecutionEvent:
        message = 'Run of job "%s" (scheduled at %s) was skipped: lock "%s", %s'
        logging.getLogger(self.logger_name).debug(message, self.job, run_time, skip.lock_name, skip.reason)
        if self.late in ("retry", "kept") and skip.reason in ("shutting_down", "not_leader"):
            self.missed(run_time, "cancelled", skip.reason)  # other replicas have already skipped it
        return JobSkippedEvent(self.job.id, self.jobstore, run_time, skip.lock_name, skip.reason)

    def _not_granted(self, run_time: datetime, request: LockRequest, block: Block | AsyncBlock) -> list[Outcome]:
        """Return the skip of a run, and the run itself if it may still begin later."""
        record, fire_time = block.record, request.fire_time
        events: list[Outcome] = [] if self.late == "watched" else [self._skipped(run_time, block.skip)]
        if self.late == "retry" and record is None and fire_time is not None and block.skip.reason == "held":
            # The reply to an earlier attempt was lost, and it may have been granted.
            error = f"lock {request.name!r}: it was refused, and its record could not be read"
            return [Later(self, run_time, request, ProviderUnreachable(error, operation="acquire"))]
        if record is None or fire_time is None or record.last_fire_time != fire_time or record.pause is not None:
            return events
        if block.options.recover and (record.is_held or record.is_released is False):
            return [*events, Later(self, run_time, request, record=record)]
        if self.late == "retry" and record.holder == request.holder:
            # The reply to an acquire was lost. The acquire is undone, and then the fire time is granted.
            error = f"lock {request.name!r}: an earlier attempt of this replica was granted, but its reply was lost"
            if record.is_held:
                return [Later(self, run_time, request, ProviderUnreachable(error, operation="acquire"))]
            if record.is_released is False:  # the undo was lost, too, and the lease has expired
                self.missed(run_time, "unreachable", error)
        return events

    def _not_begun(self, run_time: datetime, request: LockRequest | None, error: BaseException) -> Outcome:
        """Return the event of a run that ended before the job began, or the run if it may still begin later."""
        if request is not None and request.fire_time is not None and isinstance(error, ProviderUnreachable):
            return Later(self, run_time, request, error)
        return self.not_run(run_time, error)

    # Called in the scheduler's process, too

    def not_run(self, run_time: datetime, error: BaseException) -> JobExecutionEvent:
        """Log a run that ended before the job began, and return its event."""
        if self.skips_provider_errors and isinstance(error, ProviderError):
            logger.error('job "%s" is skipped, as its store failed: %s', self.job, error)  # APScheduler gets no error
            return self._skipped(run_time, Skipped(error.lock_name or "", "provider_error"))
        reason = str(error) or describe_error(error)  # a cancellation has no text
        logging.getLogger(self.logger_name).error('Job "%s" was not run: %s', self.job, reason, exc_info=error)
        return error_event(self.job.id, self.jobstore, run_time, error)

    def missed(self, run_time: datetime, reason: MissReason, details: str = "") -> None:
        """Emit ``RunMissed`` for a lost run."""
        if not isinstance(self.lock, LockRequest):
            return
        fire_time = self.lock.fire_time or fire_time_of(self.job.trigger, run_time)
        details = f'job "{self.job.id}", scheduled at {run_time}{", " if details else ""}{details}'
        emit(RunMissed(self.lock.name, fire_time, reason, details).filled_from(self.lock.template))

    def all_missed(self, reason: MissReason) -> None:
        for run_time in self.run_times:
            self.missed(run_time, reason)

    def store(self, name: str) -> Any:
        """Return the provider of the lock, for a read outside of a run. For an adapter, return the provider inside.

        :raises ConfigurationError: no provider is given or configured.
        """
        given = provider_of(self.job, self.provider)
        if not self.is_coroutine:
            return resolve_provider(given, name)
        provider = resolve_async_provider(given, name)
        return getattr(provider, "sync_provider", provider)


def _context() -> Context:
    """Return a copy of the running context, outside of every lease. The application's variables stay."""
    context = copy_context()
    context.run(leave_leases)
    return context


def _is_about_a_job(record: logging.LogRecord) -> bool:
    """Log filter: drop "Running job" and "executed successfully" about a proxy, because the job logs them, too."""
    args = record.args
    return record.levelno > logging.INFO or not (isinstance(args, tuple) and args and isinstance(args[0], JobProxy))


def _raise_failure(events: Sequence[Any]) -> None:
    """Raise the job's exception again for the guard, because ``run_job`` has turned it into an event."""
    for event in events:
        if event.exception is not None:
            raise event.exception
