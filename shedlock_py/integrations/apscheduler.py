"""APScheduler 3.10 and 3.11: N replicas run the same schedule, and each job runs on one of them.

The lock is taken in the worker, right around the job. The executor that really runs the jobs gets a small *stand-in*
for each locked job; it takes the lock for each due run time, hands the job to APScheduler's own ``run_job`` and
returns its events in an ``_Outcome``, which is unpacked on its way to the scheduler's listeners. So events, log
lines, misfires and ``max_instances`` stay APScheduler's own, whatever executor is inside, and no scheduler waits for
the store. Read ``ShedLockExecutor.submit_job``, then ``_run_once``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import pickle
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from traceback import format_tb
from typing import Any, TypeVar

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import BasePoolExecutor
from apscheduler.triggers.interval import IntervalTrigger
from apscheduler.util import iscoroutinefunction_partial, ref_to_obj

from shedlock_py import (
    AsyncLockProvider,
    ConfigurationError,
    LockProvider,
    LockRequest,
    ProviderError,
    Skipped,
    attempt,
    attempt_async,
    current_lease,
    provider_from_url,
)
from shedlock_py.config import check_provider
from shedlock_py.decorator import LockSpec
from shedlock_py.durations import Duration

try:
    from apscheduler.executors.base import run_coroutine_job
except ImportError:  # APScheduler 3.10
    from apscheduler.executors.base_py3 import run_coroutine_job

__all__ = ["EVENT_JOB_SKIPPED", "JobSkippedEvent", "Lock", "ShedLockExecutor", "install"]

T = TypeVar("T")
Provider = LockProvider | AsyncLockProvider
Lock = str | Mapping[str, Any] | LockRequest | None
"""A lock in `locks` or from `lock_extractor`: its name; a dict with "name" and perhaps "lock_at_most_for" and
"lock_at_least_for"; a whole request; or None for no lock."""

EVENT_JOB_SKIPPED = 2**24
"""The job did not run here because of its lock. Not in ``EVENT_ALL``: listen for ``EVENT_ALL | EVENT_JOB_SKIPPED``."""

_SKIP_EVENTS = {"skipped": EVENT_JOB_SKIPPED, "missed": EVENT_JOB_MISSED, "executed": EVENT_JOB_EXECUTED}
_AUTOMATIC_ID = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")  # uuid4().hex
_BOOLEANS = {"true": True, "false": False}
_LOCK_FIELDS = {"name", "lock_at_most_for", "lock_at_least_for"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_AGO = -100 * 365 * 24 * 3600  # seconds: a grace time that every run has missed


class JobSkippedEvent(JobExecutionEvent):
    """A fire time at which the job did not run here (code :data:`EVENT_JOB_SKIPPED`). The only event of that run.

    :ivar lock_name: the lock it did not get.
    :ivar reason: ``"held"``: somebody else holds it. ``"already_ran"``: this fire time was granted before
        (``once_per_fire_time``). ``"provider_error"``: the store failed (``on_provider_error="skip"``).
    """

    def __init__(self, job_id: str, jobstore: str, run_time: datetime, lock_name: str, reason: str) -> None:
        super().__init__(EVENT_JOB_SKIPPED, job_id, jobstore, run_time)
        self.lock_name = lock_name
        self.reason = reason


class ShedLockExecutor(BaseExecutor):
    """Runs each fire of a job under its lock, on any other APScheduler executor.

    A job whose lock is held elsewhere is skipped: one :class:`JobSkippedEvent`, one DEBUG line, and nothing else.
    If the store does not answer, the job does not run: ``EVENT_JOB_ERROR`` with the ``ProviderError``.

    Which lock: ``locks[job.id]``, else the job's ``@scheduler_lock``, else ``lock_extractor(job)``, else the job's
    id with ``lock_all``. A job that none of these names runs as if this executor were not there. The decorator's
    ``on_skip`` plays no part here: a skip is an event.

    :param executor: what runs the jobs: an executor, a plugin name ("threadpool"), a dict as in the scheduler's own
        configuration ({"type": "processpool", "max_workers": 4}), or None for the scheduler's default executor.
    :param provider: a provider, a URL as for ``provider_from_url``, ``"pkg.module:provider_or_factory"``, or None for
        that of ``configure()``, looked up when a job runs. A decorator's own provider goes first. Process pools need
        one of the two texts, or an object that can be pickled: their workers do not inherit ``configure()``.
    :param default_lock_at_most_for: for locks without one ("10m", seconds, ``timedelta``); None: configure()'s.
    :param default_lock_at_least_for: likewise.
    :param locks: a lock for each job id, see :data:`Lock`. None as a value: no lock taken here for that job.
    :param lock_all: lock jobs that nothing else names by their id. Such a job needs an explicit id; an automatic
        one is different in each replica, so the job does not run and ``EVENT_JOB_ERROR`` says so.
    :param lock_extractor: called with the APScheduler job in the scheduler's thread, returns a :data:`Lock`; or
        "pkg.module:function".
    :param once_per_fire_time: each scheduled time runs once, well or not, however short the job and however much the
        replicas' clocks differ. For an interval trigger, whose replicas fire at different phases, the time is the
        slot: the run time rounded down to a multiple of the interval since 1970 UTC. So a run forced by hand
        (``job.modify(next_run_time=now)``) in a slot that ran is skipped, too. Jobs with the same lock name share its
        fire times: give each its own.
    :param on_provider_error: "error", or "skip": a :class:`JobSkippedEvent` with reason "provider_error" instead.
    :param skip_event: "skipped", or for tools that only know APScheduler's own events, "missed" or "executed".
    :raises ConfigurationError: for a value that cannot work. All values may be strings, for configuration files.
    """

    def __init__(
        self,
        executor: BaseExecutor | str | Mapping[str, Any] | None = None,
        provider: Provider | str | None = None,
        *,
        default_lock_at_most_for: Duration | None = None,
        default_lock_at_least_for: Duration | None = None,
        locks: Mapping[str, Lock] | None = None,
        lock_all: bool | str = False,
        lock_extractor: Callable[[Any], Lock] | str | None = None,
        once_per_fire_time: bool | str = False,
        on_provider_error: str = "error",
        skip_event: str = "skipped",
    ) -> None:
        super().__init__()
        if executor is not None and not isinstance(executor, BaseExecutor | str | Mapping):
            raise ConfigurationError(f"executor must be an executor, a plugin name, a dict or None, not {executor!r}")
        if not isinstance(provider, str):
            check_provider(provider)
        self._executor = executor
        self._provider = provider
        self._defaults = LockSpec("defaults", default_lock_at_most_for, default_lock_at_least_for)  # checks them, too
        self._locks = {job_id: _parse_lock(lock, f"locks[{job_id!r}]") for job_id, lock in (locks or {}).items()}
        self._lock_all = _choose("lock_all", lock_all, _BOOLEANS)
        self._lock_extractor = _import(lock_extractor) if isinstance(lock_extractor, str) else lock_extractor
        self._once_per_fire_time = _choose("once_per_fire_time", once_per_fire_time, _BOOLEANS)
        self._skips_provider_errors = _choose("on_provider_error", on_provider_error, {"error": False, "skip": True})
        self._skip_code = _choose("skip_event", skip_event, _SKIP_EVENTS)
        self._warned: set[str] = set()  # ids of jobs whose fire times the replicas do not share
        self._inner: Any = None

    def start(self, scheduler: Any, alias: str) -> None:
        """Start the inner executor.

        :raises ConfigurationError: it is a ShedLockExecutor itself, or the provider cannot work with it.
        """
        inner = self._create_inner(scheduler)
        inner.start(self._stand_before(inner, scheduler, alias), alias)

    def shutdown(self, wait: bool = True) -> None:
        """Shut the inner executor down. Jobs that still run release their locks when they end."""
        if self._inner is not None:
            self._inner.shutdown(wait)

    def submit_job(self, job: Any, run_times: list[datetime]) -> None:
        """Hand the job to the inner executor, which counts its instances. Does not ask the store."""
        lock: LockRequest | Exception | None
        try:
            lock = self._find_lock(job)
        except Exception as error:
            lock = error  # becomes an event of each run, like any failure of the job
        if lock is None:
            self._inner.submit_job(job, run_times)
            return
        if self._once_per_fire_time:
            self._warn_if_unpredictable(job)
        run: Callable[..., Any] = _run
        if iscoroutinefunction_partial(job.func):
            if isinstance(self._inner, BasePoolExecutor | DebugExecutor):
                lock = _cannot_await(job.id)
            else:
                run = _run_async
        plan = _Plan(
            job=job,
            jobstore=job._jobstore_alias,
            logger_name=self._logger.name,
            lock=lock,
            provider=self._provider,
            once_per_fire_time=self._once_per_fire_time,
            skips_provider_errors=self._skips_provider_errors,
            skip_code=self._skip_code,
        )
        self._inner.submit_job(_StandIn(run, plan, run_times), run_times[-1:])

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        raise NotImplementedError("the inner executor does it")

    def _create_inner(self, scheduler: Any) -> Any:
        if self._executor is None:
            return scheduler._create_default_executor()
        if isinstance(self._executor, BaseExecutor):
            return self._executor
        options = {"type": self._executor} if isinstance(self._executor, str) else dict(self._executor)
        if "type" in options:
            return scheduler._create_plugin_instance("executor", options.pop("type"), options)
        if "class" in options:
            return _import(options.pop("class"))(**options)
        raise ConfigurationError(f'executor needs a "type" (a plugin name) or a "class", got only {sorted(options)}')

    def _stand_before(self, inner: Any, scheduler: Any, alias: str) -> _SchedulerProxy:
        """Take the place of ``inner`` in a scheduler. Returns what ``inner`` shall take for the scheduler."""
        if isinstance(inner, ShedLockExecutor):
            raise ConfigurationError("a ShedLockExecutor inside a ShedLockExecutor would take each lock twice")
        pool = getattr(inner, "_pool", None)
        if isinstance(self._provider, str):
            _provider_from_text(self._provider)  # now, so that a mistake shows at the start
        elif isinstance(pool, ProcessPoolExecutor):
            self._check_workers(pool)
        super().start(scheduler, alias)
        self._inner = inner
        return _SchedulerProxy(scheduler, self._logger)

    def _check_workers(self, pool: Any) -> None:
        """:raises ConfigurationError: the workers of a process pool would have no provider."""
        try:
            pickle.dumps(self._provider)
            problem = "do not inherit configure()"
            may_work = self._provider is not None or pool._mp_context.get_start_method() == "fork" or pool._initializer
        except Exception:  # pickling can raise anything
            problem = f"cannot be sent a {type(self._provider).__name__}"
            may_work = False
        if not may_work:
            raise ConfigurationError(
                f"the workers of a process pool {problem}: pass provider= as a URL or as"
                " 'pkg.module:provider_or_factory', of which each worker makes its own provider"
            )

    def _find_lock(self, job: Any) -> LockRequest | None:
        """The lock to take for this job, without a fire time. :raises ConfigurationError: there is none that works."""
        if job.id in self._locks:
            lock = self._locks[job.id]
        elif mark := _find_mark(job.func):
            lock = mark
        else:
            try:
                lock = _parse_lock(self._lock_extractor and self._lock_extractor(job), "what lock_extractor returns")
            except Exception as error:
                raise ConfigurationError(f'lock_extractor failed for job "{job.id}": {error!r}') from error
            if lock is None and self._lock_all:
                lock = _parse_lock(_explicit_id(job), "job id")
        if not isinstance(lock, LockSpec):
            return lock
        return lock.request(
            job.func,
            tuple(job.args),
            dict(job.kwargs),
            lock_at_most_for=self._defaults.lock_at_most_for,
            lock_at_least_for=self._defaults.lock_at_least_for,
        )

    def _warn_if_unpredictable(self, job: Any) -> None:
        if job.id not in self._warned and not _is_predictable(job.trigger):
            self._warned.add(job.id)
            self._logger.warning(
                'once_per_fire_time cannot work for job "%s": each replica has its own fire times for the trigger %s.'
                " Do without jitter, or give the lock a lock_at_least_for.",
                job.id,
                job.trigger,
            )


def install(scheduler: Any, provider: Provider | str | None = None, **options: Any) -> None:
    """Wrap every executor of a scheduler that somebody else built, started or not, in a :class:`ShedLockExecutor`.

    Runs that were submitted before go on without a lock; executors that are added later are not wrapped.

    :param provider: see :class:`ShedLockExecutor`, as are all ``options`` but ``executor``.
    :raises ConfigurationError: an executor is a ShedLockExecutor already, as after a first ``install``; or a value
        cannot work. The scheduler is unchanged then.
    """
    with scheduler._executors_lock:
        executors = dict(scheduler._executors)
        if not scheduler.running:
            executors.setdefault("default", None)  # the scheduler's own default, as it would add it at its start
        for alias, inner in executors.items():
            if isinstance(inner, ShedLockExecutor):
                raise ConfigurationError(f'executor "{alias}" of this scheduler is a ShedLockExecutor already')
        wrappers = {alias: ShedLockExecutor(inner, provider, **options) for alias, inner in executors.items()}
        if scheduler.running:
            proxies = {alias: wrappers[alias]._stand_before(executors[alias], scheduler, alias) for alias in executors}
            for alias, inner in executors.items():
                inner._scheduler = proxies[alias]
        scheduler._executors.update(wrappers)


# What follows runs in the worker: a thread, another process, a task of the event loop.


@dataclass(frozen=True)
class _Plan:
    """All that a worker needs to run a job under its lock. Can be pickled if the job can."""

    job: Any
    jobstore: str
    logger_name: str
    lock: LockRequest | Exception
    provider: Any
    once_per_fire_time: bool
    skips_provider_errors: bool
    skip_code: int

    def find_provider(self) -> Any:
        """The decorator's own (found here, so it need not be pickled), the executor's, or None: the configured one."""
        mark = _find_mark(self.job.func)
        if mark is not None and mark.provider is not None:
            return mark.provider
        return _provider_from_text(self.provider) if isinstance(self.provider, str) else self.provider

    def request(self, run_time: datetime) -> LockRequest:
        if isinstance(self.lock, Exception):
            raise self.lock
        if not self.once_per_fire_time:
            return self.lock
        return replace(self.lock, fire_time=_fire_time(self.job.trigger, run_time))

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
        return _error_event(self.job.id, self.jobstore, run_time, error)


@dataclass(frozen=True)
class _Outcome:
    """What became of the run times of a stand-in."""

    events: list[JobExecutionEvent]


# A stand-in is never inside a lease. Where it seems to be, a job woke the scheduler up from inside its own and handed
# its context on to us: leave it, or the locks of that job would look like ours.


def _run(plan: _Plan, run_times: Sequence[datetime]) -> _Outcome:
    if current_lease() is not None:
        return Context().run(_run, plan, run_times)
    return _Outcome([event for run_time in run_times for event in _run_once(plan, run_time)])


async def _run_async(plan: _Plan, run_times: Sequence[datetime]) -> _Outcome:
    if current_lease() is not None:
        return await asyncio.create_task(_run_async(plan, run_times), context=Context())
    return _Outcome([event for run_time in run_times for event in await _run_once_async(plan, run_time)])


def _run_once(plan: _Plan, run_time: datetime) -> list[JobExecutionEvent]:
    """Run the job under its lock, if it gets it; one event. ``_run_once_async`` is its twin."""
    if plan.has_missed(run_time):
        return plan.missed(run_time)
    events: list[JobExecutionEvent] = []

    def task() -> None:
        events.extend(run_job(_JobView(plan.job), plan.jobstore, [run_time], plan.logger_name))
        _raise_failure(events)

    try:
        result = attempt(plan.request(run_time), task, provider=plan.find_provider())
    except BaseException as error:  # all of them, as run_job does
        return events or [plan.not_run(run_time, error)]
    return [plan.skipped(run_time, result.lock_name, result.reason)] if isinstance(result, Skipped) else events


async def _run_once_async(plan: _Plan, run_time: datetime) -> list[JobExecutionEvent]:
    """Run the job under its lock, if it gets it; one event. ``_run_once`` is its twin."""
    if plan.has_missed(run_time):
        return plan.missed(run_time)
    events: list[JobExecutionEvent] = []

    async def task() -> None:
        events.extend(await run_coroutine_job(_JobView(plan.job), plan.jobstore, [run_time], plan.logger_name))
        _raise_failure(events)

    try:
        result = await attempt_async(plan.request(run_time), task, provider=plan.find_provider())
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


class _StandIn:
    """The job as the inner executor sees it: one call for all run times. Misfires are the job's own."""

    misfire_grace_time = None

    def __init__(self, func: Callable[..., Any], plan: _Plan, run_times: Sequence[datetime]) -> None:
        self.func, self.args, self.kwargs = func, (plan, list(run_times)), {}  # type: ignore[var-annotated]
        self.id, self.max_instances, self._jobstore_alias = plan.job.id, plan.job.max_instances, plan.jobstore
        logging.getLogger(plan.logger_name).addFilter(_says_more)  # here, so that worker processes do it as well

    def __reduce__(self) -> tuple[Any, ...]:
        return _StandIn, (self.func, *self.args)

    def __getattr__(self, name: str) -> Any:  # for executors that look at more than APScheduler's own do
        return getattr(self.args[0].job, name)

    def __str__(self) -> str:
        return str(self.args[0].job)


def _says_more(record: logging.LogRecord) -> bool:
    """A log filter: "Running job" and "executed successfully" about a stand-in say nothing; the job has its own."""
    args = record.args
    return record.levelno > logging.INFO or not (isinstance(args, tuple) and args and isinstance(args[0], _StandIn))


class _SchedulerProxy:
    """The scheduler as the inner executor sees it. Unpacks the events of stand-ins on their way to the listeners."""

    def __init__(self, scheduler: Any, logger: logging.Logger) -> None:
        self._scheduler = scheduler
        self._executor_logger = logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _dispatch_event(self, event: Any) -> None:
        retval = getattr(event, "retval", None)
        for inner in retval.events if isinstance(retval, _Outcome) else [event]:
            self._scheduler._dispatch_event(self._checked(inner))

    def _checked(self, event: Any) -> Any:
        """The event, unless it calls a coroutine that nobody awaited a success, as APScheduler does."""
        if not inspect.iscoroutine(getattr(event, "retval", None)):
            return event
        event.retval.close()
        error = _cannot_await(event.job_id)
        self._executor_logger.error("%s", error)
        return _error_event(event.job_id, event.jobstore, event.scheduled_run_time, error)


def _cannot_await(job_id: str) -> TypeError:
    return TypeError(
        f'job "{job_id}" is a coroutine function, which its executor cannot await: run it with the executor of an'
        " AsyncIOScheduler or TornadoScheduler"
    )


def _error_event(job_id: str, jobstore: str, run_time: datetime, error: BaseException) -> JobExecutionEvent:
    traceback = "".join(format_tb(error.__traceback__))
    return JobExecutionEvent(EVENT_JOB_ERROR, job_id, jobstore, run_time, exception=error, traceback=traceback)


# Fire times


def _fire_time(trigger: Any, run_time: datetime) -> datetime:
    """The time that stands for this run in every replica: for an interval the start of its slot."""
    if not isinstance(trigger, IntervalTrigger):
        return run_time
    interval: timedelta = trigger.interval
    return _EPOCH + (run_time - _EPOCH) // interval * interval


def _is_predictable(trigger: Any) -> bool:
    """Whether replicas agree on the fire times."""
    if isinstance(trigger, IntervalTrigger):
        return True  # on the slots
    if getattr(trigger, "jitter", None):
        return False
    parts = getattr(trigger, "triggers", ())  # of an AndTrigger or OrTrigger
    return all(_is_predictable(part) and not isinstance(part, IntervalTrigger) for part in parts)


# From what users write to locks and providers


def _find_mark(function: Any) -> LockSpec | None:
    """What ``@scheduler_lock`` left on a job's function, method, partial or callable object."""
    while isinstance(function, partial):
        function = function.func
    for marked in (function, type(function).__call__):
        mark = getattr(marked, "__shedlock__", None)
        if isinstance(mark, LockSpec):
            return mark
    return None


def _explicit_id(job: Any) -> str:
    if _AUTOMATIC_ID.fullmatch(job.id):
        raise ConfigurationError(
            f'job "{job.name}" has no id of its own, and the automatic one differs in each replica, so lock_all cannot'
            " name its lock: give the job an id, or give it an id and exclude it with locks={id: None}"
        )
    return str(job.id)


def _parse_lock(lock: object, where: str) -> LockSpec | LockRequest | None:
    if lock is None or isinstance(lock, LockRequest):
        return lock
    fields = {"name": lock} if isinstance(lock, str) else lock
    if not isinstance(fields, Mapping) or not {"name"} <= set(fields) <= _LOCK_FIELDS:
        raise ConfigurationError(
            f"{where} must be a lock name, a dict with 'name' and perhaps 'lock_at_most_for' and 'lock_at_least_for',"
            f" a LockRequest, or None for no lock; not {lock!r}"
        )
    name = fields["name"]
    template = name.replace("{", "{{").replace("}", "}}") if isinstance(name, str) else name  # it is none
    return LockSpec(template, fields.get("lock_at_most_for"), fields.get("lock_at_least_for"))


def _choose(option: str, value: object, choices: Mapping[str, T]) -> T:
    """What ``value`` stands for: one of ``choices`` or, from a configuration file, its text."""
    chosen = str(value).strip().lower()
    if chosen not in choices:
        raise ConfigurationError(f"{option} must be one of {', '.join(choices)}; not {value!r}")
    return choices[chosen]


def _import(reference: str) -> Any:
    try:
        return ref_to_obj(reference)
    except (LookupError, ValueError) as error:
        raise ConfigurationError(f'cannot import {reference!r} ({error}); write "pkg.module:name"') from error


_providers: dict[str, Any] = {}  # one for each text, in each process
_providers_mutex = threading.Lock()


def _provider_from_text(text: str) -> Any:
    """The provider at a URL or reference. :raises ConfigurationError: there is none."""
    with _providers_mutex:
        if text not in _providers:
            _providers[text] = provider_from_url(text) if "://" in text else _import_provider(text)
        return _providers[text]


def _import_provider(reference: str) -> Any:
    found = _import(reference)
    try:
        provider = found() if inspect.isclass(found) or not hasattr(found, "acquire") else found
    except Exception as error:
        raise ConfigurationError(f"{reference} did not make a provider: {error!r}") from error
    if not hasattr(provider, "acquire"):
        raise ConfigurationError(f"{reference} is neither a provider nor a function that makes one")
    return provider
