"""The executor: which lock a job needs, and where it is taken.

The lock is taken in the worker, right around the job. The executor that really runs the jobs gets a small *stand-in*
for each locked job; it takes the lock for each due run time, hands the job to APScheduler's own ``run_job`` and
returns its events in an ``Outcome``, which is unpacked on its way to the scheduler's listeners. So events, log
lines, misfires and ``max_instances`` stay APScheduler's own, whatever executor is inside, and no scheduler waits for
the store. Read ``ShedLockExecutor.submit_job``, then ``_run_once`` in ``worker``.
"""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from time import monotonic
from typing import Any

from apscheduler.executors.base import BaseExecutor
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import BasePoolExecutor
from apscheduler.util import iscoroutinefunction_partial

from shedlock_py import AsyncLeaderElector, ConfigurationError, LeaderElector, LockRequest
from shedlock_py.config import check_provider
from shedlock_py.decorator import LockSpec
from shedlock_py.durations import Duration
from shedlock_py.integrations.apscheduler.events import SKIP_EVENTS, cannot_await, error_event
from shedlock_py.integrations.apscheduler.options import (
    BOOLEANS,
    Lock,
    Provider,
    check_scheduler,
    choose,
    explicit_id,
    find_lock_spec,
    has_automatic_id,
    is_news,
    is_predictable,
    parse_lock,
)
from shedlock_py.integrations.apscheduler.worker import Outcome, Plan, StandIn, run, run_async
from shedlock_py.urls import import_reference, provider_from_text


class ShedLockExecutor(BaseExecutor):
    """Runs each fire of a job under its lock, on any other APScheduler executor.

    A job whose lock is held elsewhere is skipped: one :class:`JobSkippedEvent`, one DEBUG line, and nothing else.
    If the store does not answer, the job does not run: ``EVENT_JOB_ERROR`` with the ``ProviderError``.

    Which lock: ``locks[job.id]``, else the job's ``@scheduler_lock``, else ``lock_extractor(job)``, else the job's
    id with ``lock_all``. A job that none of these names runs as if this executor were not there, on every replica, and
    one WARNING says so; ``locks={job.id: None}`` says that it is meant. The decorator's ``on_skip`` plays no part here:
    a skip is an event.

    :param executor: what runs the jobs: an executor, a plugin name ("threadpool"), a dict as in the scheduler's own
        configuration ({"type": "processpool", "max_workers": 4}), or None for the scheduler's default executor.
    :param provider: a provider, a URL as for ``provider_from_url``, ``"pkg.module:provider_or_factory"``, or None for
        that of ``configure()``, looked up when a job runs. A decorator's own provider goes first. Process pools need
        one of the two texts, or an object that can be pickled: their workers do not inherit ``configure()``.
    :param default_lock_at_most_for: for locks without one ("10m", seconds, ``timedelta``); None: configure()'s.
    :param default_lock_at_least_for: likewise.
    :param locks: a lock for each job id, see :data:`Lock`. It counts as the lock of ``@scheduler_lock``, too.
        None as a value: no lock taken here for that job (its decorator, if any, still takes its own when called), and
        no warning. An id that the scheduler has no job of is warned of.
    :param lock_all: lock jobs that nothing else names by their id. Such a job needs an explicit id; an automatic
        one is different in each replica, so the job does not run and ``EVENT_JOB_ERROR`` says so.
    :param lock_extractor: called with the APScheduler job in the scheduler's thread, returns a :data:`Lock`; or
        "pkg.module:function".
    :param once_per_fire_time: each scheduled time runs once, well or not, however short the job and however much the
        replicas' clocks differ. For an interval trigger, whose replicas fire at different phases, the time is the
        slot: the run time rounded down to a multiple of the interval since 1970 UTC; for a calendar interval of days
        and weeks, or of months and years, likewise, by the date. So a run forced by hand
        (``job.modify(next_run_time=now)``) in a slot that ran is skipped, too. Jobs with the same lock name share its
        fire times: give each its own.
    :param on_provider_error: "error", or "skip": a :class:`JobSkippedEvent` with reason "provider_error" instead.
    :param skip_event: "skipped", or for tools that only know APScheduler's own events, "missed" or "executed".
    :param elector: run jobs on the leader only: elsewhere a :class:`JobSkippedEvent` with reason "not_leader", without
        asking the store. A job that a lock is named for takes it as well. Not for process pools.
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
        elector: LeaderElector | AsyncLeaderElector | None = None,
    ) -> None:
        super().__init__()
        if executor is not None and not isinstance(executor, BaseExecutor | str | Mapping):
            raise ConfigurationError(
                f"executor must be an executor, a plugin name, a dict or None, not {executor!r}{_hint(executor)}"
            )
        if not isinstance(provider, str):
            check_provider(provider)
        if elector is not None and not isinstance(elector, LeaderElector | AsyncLeaderElector):
            raise ConfigurationError(f"elector must be a LeaderElector or an AsyncLeaderElector, not {elector!r}")
        self._executor = executor
        self._elector = elector
        self._provider = provider
        self._defaults = LockSpec("defaults", default_lock_at_most_for, default_lock_at_least_for)  # checks them, too
        self._locks = {job_id: parse_lock(lock, f"locks[{job_id!r}]") for job_id, lock in (locks or {}).items()}
        self._lock_all = choose("lock_all", lock_all, BOOLEANS)
        self._lock_extractor = import_reference(lock_extractor) if isinstance(lock_extractor, str) else lock_extractor
        self._once_per_fire_time = choose("once_per_fire_time", once_per_fire_time, BOOLEANS)
        self._skips_provider_errors = choose("on_provider_error", on_provider_error, {"error": False, "skip": True})
        self._skip_code = choose("skip_event", skip_event, SKIP_EVENTS)
        self._unseen = set(self._locks)
        """Ids in ``locks`` of which no job has been seen."""
        self._started_at = 0.0
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
        self._warn_if_unlocked(job, lock)
        if lock is None and self._elector is None and isinstance(self._pool, ProcessPoolExecutor):
            self._inner.submit_job(job, run_times)  # nothing is inherited there, and our own part need not be pickled
            return
        if self._once_per_fire_time and lock is not None:
            self._warn_if_unpredictable(job)
        work: Callable[..., Any] = run
        if iscoroutinefunction_partial(job.func):
            if isinstance(self._inner, BasePoolExecutor | DebugExecutor):
                lock = cannot_await(job.id)
            else:
                work = run_async
        plan = Plan(
            job=job,
            jobstore=job._jobstore_alias,
            logger_name=self._logger.name,
            lock=lock,
            provider=self._provider,
            once_per_fire_time=self._once_per_fire_time,
            skips_provider_errors=self._skips_provider_errors,
            skip_code=self._skip_code,
            # With lead() the scheduler has just checked: a job that it has submitted is gone from the store.
            elector=None if getattr(self._scheduler, "runs_on_leader_only", False) else self._elector,
        )
        self._inner.submit_job(StandIn(work, plan, run_times), run_times[-1:])

    @property
    def _pool(self) -> Any:
        return getattr(self._inner, "_pool", None)

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        self.submit_job(job, run_times)

    def _create_inner(self, scheduler: Any) -> Any:
        if self._executor is None:
            return scheduler._create_default_executor()
        if isinstance(self._executor, BaseExecutor):
            return self._executor
        options = {"type": self._executor} if isinstance(self._executor, str) else dict(self._executor)
        if "type" in options:
            return scheduler._create_plugin_instance("executor", options.pop("type"), options)
        if "class" in options:
            return import_reference(options.pop("class"))(**options)
        raise ConfigurationError(f'executor needs a "type" (a plugin name) or a "class", got only {sorted(options)}')

    def _stand_before(self, inner: Any, scheduler: Any, alias: str) -> _SchedulerProxy:
        """Take the place of ``inner`` in a scheduler. Returns what ``inner`` shall take for the scheduler."""
        if isinstance(inner, ShedLockExecutor):
            raise ConfigurationError("a ShedLockExecutor inside a ShedLockExecutor would take each lock twice")
        pool = getattr(inner, "_pool", None)
        if self._elector is not None and isinstance(pool, ProcessPoolExecutor):
            raise ConfigurationError("a process pool cannot ask elector=: use lead(scheduler, elector)")
        if isinstance(self._provider, str):
            provider_from_text(self._provider)  # now, so that a mistake shows at the start
            if isinstance(pool, ProcessPoolExecutor) and self._provider.startswith("memory://"):
                raise ConfigurationError("memory:// locks nothing in a process pool: each worker has its own memory")
        elif isinstance(pool, ProcessPoolExecutor):
            self._check_workers(pool)
        super().start(scheduler, alias)
        self._started_at = monotonic()
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
        elif spec := find_lock_spec(job.func):
            lock = spec
        else:
            try:
                lock = parse_lock(self._lock_extractor and self._lock_extractor(job), "what lock_extractor returns")
            except Exception as error:
                raise ConfigurationError(f'lock_extractor failed for job "{job.id}": {error!r}') from error
            if lock is None and self._lock_all:
                lock = parse_lock(explicit_id(job), "job id")
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
        if not is_predictable(job.trigger) and is_news("fire times", job.id):
            self._logger.warning(
                'once_per_fire_time cannot work for job "%s": each replica has its own fire times for the trigger %s.'
                " Do without jitter, or give the lock a lock_at_least_for.",
                job.id,
                job.trigger,
            )

    def _warn_if_unlocked(self, job: Any, lock: object) -> None:
        self._unseen.discard(job.id)
        is_unlocked = lock is None and self._elector is None and job.id not in self._locks
        if self._unseen and (is_unlocked or monotonic() - self._started_at > GRACE):
            self._warn_of_unknown_ids()
        if is_unlocked and is_news("no lock", job.name if has_automatic_id(job) else job.id):
            self._logger.warning(
                'job "%s" (id "%s") has no lock, so every replica runs it: decorate its function with @scheduler_lock,'
                " name a lock in locks=, or set lock_all. If no lock is meant, say so: locks={job id: None}",
                job.name,
                job.id,
            )

    def _warn_of_unknown_ids(self) -> None:
        try:
            unknown = {job_id for job_id in self._unseen if self._scheduler.get_job(job_id) is None}
        except Exception:
            return  # a job store has failed, and the scheduler says so itself
        self._unseen.clear()
        for job_id in sorted(unknown):
            if is_news("unknown id", job_id):
                self._logger.warning(
                    'locks= names a lock for the job id "%s", but the scheduler has no such job: is the id misspelt?'
                    " (A job that is added later gets this lock.)",
                    job_id,
                )


GRACE = 1.0
"""Seconds after the start in which applications may still add jobs."""


def _hint(executor: Any) -> str:
    if hasattr(executor, "acquire"):
        return ": a provider is the second argument, ShedLockExecutor(provider=…)"
    if hasattr(executor, "_process_jobs"):
        return ": install(scheduler) wraps the executors of a scheduler"
    if hasattr(getattr(executor, "scheduler", None), "_process_jobs"):
        return ", which has a scheduler: install(….scheduler) wraps the executors of that"
    return ""


def install(scheduler: Any, provider: Provider | str | None = None, **options: Any) -> None:
    """Wrap every executor of a scheduler that somebody else built, started or not, in a :class:`ShedLockExecutor`.

    Runs that were submitted before go on without a lock; executors that are added later are not wrapped.

    :param provider: see :class:`ShedLockExecutor`, as are all ``options`` but ``executor``.
    :param scheduler: APScheduler's own; of an extension's object, such as Flask-APScheduler's, its ``.scheduler``.
    :raises ConfigurationError: an executor is a ShedLockExecutor already, as after a first ``install``; or a value
        cannot work. The scheduler is unchanged then.
    """
    check_scheduler(scheduler, "install(scheduler)")
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


class _SchedulerProxy:
    """The scheduler as the inner executor sees it. Unpacks the events of stand-ins on their way to the listeners."""

    def __init__(self, scheduler: Any, logger: logging.Logger) -> None:
        self._scheduler = scheduler
        self._executor_logger = logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _dispatch_event(self, event: Any) -> None:
        retval = getattr(event, "retval", None)
        for inner in retval.events if isinstance(retval, Outcome) else [event]:
            self._scheduler._dispatch_event(self._checked(inner))

    def _checked(self, event: Any) -> Any:
        """The event, unless it calls a coroutine that nobody awaited a success, as APScheduler does."""
        if not inspect.iscoroutine(getattr(event, "retval", None)):
            return event
        event.retval.close()
        error = cannot_await(event.job_id)
        self._executor_logger.error("%s", error)
        return error_event(event.job_id, event.jobstore, event.scheduled_run_time, error)
