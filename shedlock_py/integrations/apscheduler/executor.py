"""The executor: it chooses the lock of a job, and hands the job to the inner executor, which runs it.

The inner executor gets a ``JobProxy``. In the worker, the proxy takes the lock for each due run time, calls
APScheduler's own ``run_job`` and returns the events in a ``RunResult``. The ``SchedulerProxy`` unpacks the result. So
events, log lines, misfires and ``max_instances`` stay APScheduler's own with any inner executor, and no scheduler waits
for the store. Read ``ShedLockExecutor.submit_job``, then ``JobProxy``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from threading import Event
from time import monotonic
from typing import Any, Literal

from apscheduler.events import EVENT_SCHEDULER_RESUMED, EVENT_SCHEDULER_STARTED
from apscheduler.executors.base import BaseExecutor
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import BasePoolExecutor
from apscheduler.schedulers.base import STATE_RUNNING, STATE_STOPPED
from apscheduler.util import iscoroutinefunction_partial

from shedlock_py import AsyncLeaderElector, ConfigurationError, LeaderElector, LockRequest
from shedlock_py.guard.shutdown import time_left
from shedlock_py.guard.spec import LockSpec
from shedlock_py.integrations.apscheduler.catch_up import jobs_of, parse_catch_up, refuse_leader_only, submit_missed
from shedlock_py.integrations.apscheduler.drain import wait_for_runs
from shedlock_py.integrations.apscheduler.events import SchedulerProxy, cannot_await
from shedlock_py.integrations.apscheduler.fire_times import fire_time_of
from shedlock_py.integrations.apscheduler.job_locks import JobLocks
from shedlock_py.integrations.apscheduler.late_runs import LateRuns
from shedlock_py.integrations.apscheduler.lock_names import key_of, lock_names_of, observe_jobs
from shedlock_py.integrations.apscheduler.notices import warn_of_no_recovery, warn_once
from shedlock_py.integrations.apscheduler.options import (
    Lock,
    Provider,
    check_executor,
    check_process_pool,
    check_scheduler,
    decorator_options,
    has_automatic_id,
    parse_on_provider_error,
    parse_recovery,
)
from shedlock_py.integrations.apscheduler.worker import JobProxy, snapshot_of
from shedlock_py.model.booleans import parse_boolean
from shedlock_py.model.durations import Duration
from shedlock_py.model.recovery import DEFAULT_MOST_RECOVERIES
from shedlock_py.model.text import quoted
from shedlock_py.settings.options import LockOptions, check_provider
from shedlock_py.settings.urls import import_reference, provider_from_text

GRACE_SECONDS = 1.0
"""Applications may add jobs for so long after the start. After that, an unknown job id in ``locks`` gets a warning."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class ShedLockExecutor(BaseExecutor):
    """Runs each fire of a job under its lock, on any other APScheduler executor.

    A job is skipped while another holder has its lock: one :class:`JobSkippedEvent`, one DEBUG line, and nothing else.
    If the store fails, the job does not run: ``EVENT_JOB_ERROR`` with the ``ProviderError``.

    The lock of a job is ``locks[job.id]``, else the job's ``@scheduler_lock``, else ``lock_extractor(job)``, else the
    job's id if ``lock_all`` is set. A job without a lock runs on every replica, as without this executor, and one
    WARNING is logged. ``locks={job.id: None}`` says that this is intended. A skip is an event; the decorator's
    ``on_skip`` is not called.

    :param executor: the inner executor, which runs the jobs: an executor, a plugin name ("threadpool"), a dict as in
        the scheduler's own configuration ({"type": "processpool", "max_workers": 4}), or None for the scheduler's
        default executor.
    :param provider: a provider, a URL as for ``provider_from_url``, ``"pkg.module:provider_or_factory"``, or None for
        the provider of ``configure()`` at the time of each run. A decorator's own provider goes first. Process pools
        need one of the two texts, or an object that can be pickled: their workers do not inherit ``configure()``.
    :param default_lock_at_most_for: the value for locks without ``lock_at_most_for`` ("10m", seconds, ``timedelta``).
        None means the default of ``configure()``.
    :param default_lock_at_least_for: the value for locks without ``lock_at_least_for``.
    :param locks: a lock for each job id, see :data:`Lock`. It replaces the lock of ``@scheduler_lock``, and keeps the
        decorator's ``once_per`` or ``fire_time``. With None as its value, this executor takes no lock for the job and
        logs no warning; a decorator still takes its own lock when it is called. An id without a job gets a warning.
    :param lock_all: use the job's id as the lock name of each job without another lock. Such a job needs an explicit
        id. An automatic id differs in each replica, so the job does not run: ``EVENT_JOB_ERROR``.
    :param lock_extractor: a function that gets the APScheduler job and returns a :data:`Lock`; or its name,
        "pkg.module:function". It is called when the job is added and before each run, in the scheduler's thread or the
        thread of ``add_job``.
    :param once_per_fire_time: each scheduled time runs once, whether the run succeeds or not, however short the job is
        and however much the replicas' clocks differ. The default, None, means: wherever the replicas share the fire
        times. They share them for a cron trigger without jitter, a date, an interval, and a calendar interval of days
        and weeks, or of months and years. Any other job, and any job of a table without the column ``last_fire_time``,
        gets a plain lock and one WARNING. With True, such a job is a :class:`ConfigurationError` at the start of the
        scheduler or at ``add_job``. False means plain locks for all jobs.

        The replicas' interval triggers fire at different phases. So their fire time is the slot: the run time rounded
        down to a multiple of the interval since 1970 UTC, or for a calendar interval the slot by the date. A run that
        is forced by hand (``job.modify(next_run_time=now)``) in a slot that already ran is skipped, too. Jobs that
        share a lock name would use up each other's fire times. They get plain locks, each job waits while another job
        of this process has the lock, and one WARNING shows a template for the name.
    :param catch_up: run a fire time of the last "10m" once, late, if no run has used it: at the start of the scheduler,
        when it is resumed, and when an unreachable store is back. For cron and interval triggers; not with
        ``once_per_fire_time=False``. An interval job also runs if its current slot was never run. A cron job that has
        never run has not missed a run. The same holds for a paused job, and for a job that was run by hand since then.
    :param recover: for idempotent jobs: if the process that runs a job dies, or gives the run back in a shutdown,
        another replica runs this fire time again. Needs ``keep_alive`` and fire times. A job with ``recover=True`` in
        its ``@scheduler_lock`` does not need this option.
    :param max_recoveries: how often a fire time may run again, on all replicas together.
    :param on_provider_error: "error", or "skip" for a :class:`JobSkippedEvent` with the reason "provider_error". While
        the store is unreachable, the executor first tries the run again: for the longest of one minute,
        ``misfire_grace_time`` and ``catch_up``, but never beyond the next fire time.
    :param elector: run jobs only on the leader. Other nodes emit a :class:`JobSkippedEvent` with the reason
        "not_leader", without a request to the store. A job with a lock also takes its lock. Not for process pools.
    :raises ConfigurationError: a value cannot work. All values may be strings, for configuration files.
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
        once_per_fire_time: bool | str | None = None,
        catch_up: Duration | None = None,
        recover: bool | str = False,
        max_recoveries: int | str = DEFAULT_MOST_RECOVERIES,
        on_provider_error: Literal["error", "skip"] = "error",
        elector: LeaderElector | AsyncLeaderElector | None = None,
    ) -> None:
        super().__init__()
        check_executor(executor)
        provider = check_provider(provider)
        if elector is not None and not isinstance(elector, LeaderElector | AsyncLeaderElector):
            raise ConfigurationError(f"elector must be a LeaderElector or an AsyncLeaderElector, not {quoted(elector)}")
        self._stopping, self._draining = Event(), Event()
        self.inner: Any = None
        """The executor that runs the jobs; None before the start."""
        self._executor = executor
        self._elector = elector
        self._provider = provider
        durations = {"lock_at_most_for": default_lock_at_most_for, "lock_at_least_for": default_lock_at_least_for}
        defaults = LockOptions.parse("ShedLockExecutor", durations)
        self._once_per_fire_time = (
            None if once_per_fire_time is None else parse_boolean(once_per_fire_time, "once_per_fire_time")
        )
        self._locks = JobLocks(
            locks,
            parse_boolean(lock_all, "lock_all"),
            lock_extractor,
            defaults,
            provider,
            self._once_per_fire_time,
        )
        self._catch_up = parse_catch_up(
            catch_up, once_per_fire_time=self._once_per_fire_time, has_elector=bool(elector)
        )
        self._recover, self._max_recoveries = parse_recovery(
            recover, max_recoveries, once_per_fire_time=self._once_per_fire_time
        )
        self._skips_provider_errors = parse_on_provider_error(on_provider_error)

    def start(self, scheduler: Any, alias: str) -> None:
        """Start the inner executor.

        :raises ConfigurationError: it is another ShedLockExecutor, or the provider cannot work with it.
        """
        inner = self._create_inner(scheduler)
        inner.start(self._wrap(inner, scheduler, alias), alias)
        if scheduler.state != STATE_STOPPED:  # the executor was added to a running scheduler
            observe_jobs(scheduler)
        self._begin_late_runs()

    def _begin_late_runs(self) -> None:
        """Look for missed and unfinished runs, now if the scheduler runs, and at each later start or resume.

        :raises ConfigurationError: ``catch_up`` is set, and the scheduler works only on the leader.
        """
        if self._catch_up is not None:
            refuse_leader_only(self._scheduler)
        self._scheduler.add_listener(self._look_for_late_runs, EVENT_SCHEDULER_STARTED | EVENT_SCHEDULER_RESUMED)
        self._look_for_late_runs()

    def _look_for_late_runs(self, _event: object = None) -> None:
        if self._scheduler.state != STATE_RUNNING:
            return  # the scheduler may have been started paused
        self._draining.clear()  # after a drain, runs begin again
        self._stopping.clear()
        jobs = jobs_of(self._scheduler, self._alias)
        if self._catch_up is not None:
            submit_missed(jobs, self._catch_up, self._submit_caught_up)
        for job in jobs:
            if self._recovery_of(job)[0]:
                proxy = self._proxy(snapshot_of(job), [datetime.now(UTC)])
                if proxy is not None and proxy.can_be_late:
                    self._late_runs.watch_last_run(proxy)

    def shutdown(self, wait: bool = True) -> None:
        """Shut the inner executor down. Jobs that still run release their locks when they end.

        Give up late runs that have not begun. After SIGTERM, ``wait=True`` waits for at most the time of
        :func:`release_on_sigterm`.
        """
        self._stopping.set()
        if self.inner is not None:
            self._scheduler.remove_listener(self._look_for_late_runs)
            self._late_runs.close()
            left = time_left() if wait and isinstance(self.inner, BasePoolExecutor) else None
            if left is not None:
                wait = not wait_for_runs([self], left)
            self.inner.shutdown(wait)

    def stop_beginning(self) -> None:
        """Skip each run that would begin from now on, even if it is submitted, until the scheduler is resumed."""
        self._draining.set()
        self._stopping.set()

    def before_add(self, job: Any) -> None:
        """:raises ConfigurationError: ``once_per_fire_time=True``, and this job cannot run once per fire time."""
        try:
            lock = self._locks.choose(job)
        except Exception:
            return  # becomes an event of each run
        if lock is not None:
            self._locks.refuse_plain(job)

    def observe(self, job: Any) -> None:
        """Note the lock name of a job of the scheduler, and log problems of its lock."""
        try:
            lock = self._locks.choose(job)
            if lock is not None:
                once, _ = self._note(lock, job)
                if not _is_process_pool(self.inner):  # its workers may have their own provider
                    self._locks.check(lock, job, recover=once is not False and self._recovery_of(job)[0])
        except Exception as error:  # becomes an event of each run
            warn_once(self._logger, "check", job.id, 'job "%s" would fail: %s', job.id, error)
        try:
            self.before_add(job)
        except ConfigurationError as error:  # a job store has kept the job from an earlier start
            self._logger.error("%s", error)

    def _note(
        self, lock: LockSpec | LockRequest, job: Any, fire_time: datetime | None = None
    ) -> tuple[bool | None, bool]:
        on_leader = self._elector is not None or getattr(self._scheduler, "runs_on_leader_only", False)
        once, is_shared = self._locks.note(
            lock, job, self._names, self._logger, on_leader=on_leader, fire_time=fire_time
        )
        if once is False and self._recovery_of(job)[0]:
            warn_of_no_recovery(self._logger, job)
        return once, is_shared

    def _recovery_of(self, job: Any) -> tuple[bool, int]:
        """Return the options ``recover`` and ``max_recoveries`` of a job."""
        options = decorator_options(job)
        return (True, options.max_recoveries) if options.recover else (self._recover, self._max_recoveries)

    def _has_others(self, job: Any, request: LockRequest | Exception | None) -> bool:
        """Return whether another job has or had this lock name. A run of that job may not have ended yet."""
        return isinstance(request, LockRequest) and bool(self._names.sharing(key_of(job), request.name, _LONG_AGO))

    def submit_job(self, job: Any, run_times: list[datetime]) -> None:
        """Hand the job to the inner executor, which counts its instances. Sends nothing to the store."""
        job = snapshot_of(job)
        proxy = self._proxy(job, run_times)
        if proxy is None:
            self.inner.submit_job(job, run_times)  # the worker process need not import this package
        elif not (proxy.can_be_late and self._late_runs.keeps(proxy)):
            self.inner.submit_job(proxy, run_times[-1:])

    def _submit_caught_up(self, job: Any, run_times: list[datetime]) -> None:
        proxy = self._proxy(snapshot_of(job), run_times)
        if proxy is not None and proxy.can_be_late:  # otherwise the store does not know its past fire times
            self._late_runs.submit_soon(replace(proxy, late="catch_up", is_catch_up=True))

    def _proxy(self, job: Any, run_times: list[datetime]) -> JobProxy | None:
        """Return the proxy that the inner executor runs in place of a job, or None if it runs the job itself."""
        request: LockRequest | Exception | None = None
        once: bool | None = False
        is_shared = False
        try:
            lock = self._locks.choose(job)
            if lock is not None:
                request = self._locks.request(lock, job)
                fire_time = request.fire_time or fire_time_of(job.trigger, run_times[0])
                once, is_shared = self._note(lock, job, fire_time)
                if is_shared:
                    request = replace(request, fire_time=None)  # drops the decorator's fire time
                self._names.add_run(key_of(job), request.name, run_times[-1])
                self._locks.refuse_plain(job)
        except Exception as error:
            request = error  # becomes an event of each run, like any failure of the job
        is_unlocked = request is None and self._elector is None
        self._warn_of_locks(job, is_unlocked=is_unlocked and job.id not in self._locks.by_id)
        if is_unlocked and _is_process_pool(self.inner):
            return None
        recover, max_recoveries = self._recovery_of(job)
        is_coroutine = iscoroutinefunction_partial(job.func)
        if is_coroutine and isinstance(self.inner, BasePoolExecutor | DebugExecutor):
            request, is_coroutine = cannot_await(job.id), False
        return JobProxy(
            job=job,
            jobstore=job._jobstore_alias,
            run_times=run_times,
            logger_name=self._logger.name,
            lock=request,
            provider=self._provider,
            once_per_fire_time=once,
            waits_for_others=(is_shared or (once is not False and self._has_others(job, request)))
            and _may_wait(self.inner),
            submitted_at=datetime.now(UTC),
            stopping=self._stopping,
            draining=self._draining,
            skips_provider_errors=self._skips_provider_errors,
            # lead() has just checked that this node leads. A job that lead() submits has to run here.
            elector=None if getattr(self._scheduler, "runs_on_leader_only", False) else self._elector,
            is_coroutine=is_coroutine,
            recover=recover,
            max_recoveries=max_recoveries,
        )

    _do_submit_job = submit_job  # abstract in BaseExecutor

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

    def _wrap(self, inner: Any, scheduler: Any, alias: str) -> SchedulerProxy:
        """Take the place of ``inner`` in a scheduler. Return the object that ``inner`` must use as its scheduler."""
        if isinstance(inner, ShedLockExecutor):
            raise ConfigurationError("a ShedLockExecutor inside a ShedLockExecutor would take each lock twice")
        if isinstance(self._provider, str):
            provider_from_text(self._provider)  # raises now, at the start, for a wrong text
        if _is_process_pool(inner):
            check_process_pool(inner._pool, self._provider, has_elector=self._elector is not None)
        for job in scheduler.get_jobs() if self._once_per_fire_time else ():
            if job.executor == alias:
                self.before_add(job)
        super().start(scheduler, alias)
        self._names = lock_names_of(scheduler)
        self._stopping, self._draining = Event(), Event()
        self._started_at = monotonic()
        self._unseen_ids = set(self._locks.by_id)  # ids without a submitted job so far
        self._late_runs = LateRuns(scheduler, inner, self._logger, self._catch_up)
        self._alias = alias
        self.inner = inner
        vars(inner).pop("_run_job_error", None)  # set by an earlier start
        inner._run_job_error = partial(self._run_died, inner._run_job_error)
        return SchedulerProxy(scheduler, self._logger, self._late_runs.ended)

    def _run_died(self, report: Callable[..., object], job_id: str, *error: Any) -> None:
        """Handle a run without a result. The inner executor calls nothing else then."""
        try:
            report(job_id, *error)
        finally:
            self._late_runs.died(job_id)

    def _warn_of_locks(self, job: Any, *, is_unlocked: bool) -> None:
        """Warn if ``job`` has no lock, or if ``locks`` has ids without a job."""
        self._unseen_ids.discard(job.id)
        if self._unseen_ids and (is_unlocked or monotonic() - self._started_at > GRACE_SECONDS):
            try:
                unknown = {job_id for job_id in self._unseen_ids if self._scheduler.get_job(job_id) is None}
                self._unseen_ids.clear()
            except Exception:
                unknown = set()  # a job store has failed; the scheduler logs that
            for job_id in sorted(unknown):
                warn_once(
                    self._logger,
                    "unknown id",
                    job_id,
                    'locks= names a lock for the job id "%s", but the scheduler has no such job: check the spelling of'
                    " the id (a job that is added later gets this lock)",
                    job_id,
                )
        if is_unlocked:
            warn_once(
                self._logger,
                "no lock",
                job.name if has_automatic_id(job) else job.id,
                'job "%s" (id "%s") has no lock, so every replica runs it: decorate its function with @scheduler_lock,'
                " name a lock in locks=, or set lock_all. If no lock is intended, set locks={job id: None}",
                job.name,
                job.id,
            )


def _is_process_pool(executor: Any) -> bool:
    return isinstance(getattr(executor, "_pool", None), ProcessPoolExecutor)


def _may_wait(executor: Any) -> bool:
    """Return whether a run may wait for its lock in a worker of this executor.

    A debug executor would stop its scheduler, which holds the lock of the job stores. A greenlet would stop all other
    greenlets, unless gevent has patched time.sleep.
    """
    return not isinstance(executor, DebugExecutor) and type(executor).__name__ != "GeventExecutor"


def install(scheduler: Any, provider: Provider | str | None = None, **options: Any) -> None:
    """Wrap every executor of an existing scheduler, started or not, in a :class:`ShedLockExecutor`.

    Runs that were submitted before go on without a lock. Executors that are added later are not wrapped.

    :param provider: as for :class:`ShedLockExecutor`, as are all ``options`` but ``executor``.
    :param scheduler: a scheduler of APScheduler. From an extension such as Flask-APScheduler, pass its ``.scheduler``.
    :raises ConfigurationError: an executor is a ShedLockExecutor already, for example after a first ``install``; or a
        value cannot work. The scheduler is unchanged then.
    """
    check_scheduler(scheduler, "install(scheduler)")
    with scheduler._executors_lock:
        executors = dict(scheduler._executors)
        if not scheduler.running:
            executors.setdefault("default", None)  # the scheduler would add its default at its start
        for alias, inner in executors.items():
            if isinstance(inner, ShedLockExecutor):
                raise ConfigurationError(f'executor "{alias}" of this scheduler is a ShedLockExecutor already')
        wrappers = {alias: ShedLockExecutor(inner, provider, **options) for alias, inner in executors.items()}
        if scheduler.running:
            proxies = {alias: wrappers[alias]._wrap(executors[alias], scheduler, alias) for alias in executors}
            for alias, inner in executors.items():
                inner._scheduler = proxies[alias]
        scheduler._executors.update(wrappers)
        if scheduler.running:
            observe_jobs(scheduler)
            for wrapper in wrappers.values():
                wrapper._begin_late_runs()
