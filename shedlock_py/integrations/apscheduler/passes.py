"""A scheduler's passes over its job stores, on the leader only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.base import STATE_RUNNING

from shedlock_py import AsyncLeaderElector, LeaderElector
from shedlock_py.events import logger


class LeaderPasses:
    """The passes of one scheduler: each only while this node leads, and only as far as it still leads.

    In a pass, APScheduler submits each due job and then writes its next run time into the job store. A job that must
    not be submitted any more has to stay in the store as it is, for the next leader. So this takes the place of
    ``scheduler._process_jobs`` and, during a pass, of the methods by which APScheduler submits and writes.
    """

    def __init__(self, scheduler: Any, elector: LeaderElector | AsyncLeaderElector) -> None:
        self._scheduler = scheduler
        self._elector = elector
        self._process_jobs = scheduler._process_jobs
        self._has_stopped_leading = self._has_failed = self._is_running = False
        self._thread: int | None = None
        """The thread in which APScheduler itself, and not a job or another thread, uses the stores."""
        self._submitted: dict[tuple[str, str], list[Any]] = {}
        """By job store and job: run times that were submitted while the store still has the job as it was before."""
        self._woken_at: float | None = None
        scheduler._process_jobs = self._run

    def reset(self) -> None:
        """Forget what happened before the scheduler was stopped."""
        self._woken_at = None
        self._submitted.clear()

    def silence(self) -> float:
        """For how many seconds the scheduler has not begun a pass. Called before the scheduler is woken."""
        if self._is_running:
            return 0.0
        now = monotonic()
        if self._woken_at is None:
            self._woken_at = now
        return now - self._woken_at

    def _run(self) -> Any:
        """One pass. Returns the seconds until the next, as APScheduler's own does."""
        self._woken_at = None
        if not self._elector.is_leader():
            return None
        self._has_stopped_leading = self._has_failed = False
        self._is_running = True
        seconds = None
        try:
            with ExitStack() as stack:
                for executor in self._scheduler._executors.values():
                    stack.enter_context(self._replaced(executor, "submit_job", self._submit))
                for alias, store in self._scheduler._jobstores.items():
                    stack.enter_context(self._replaced(store, "update_job", partial(self._update, alias)))
                    stack.enter_context(self._replaced(store, "get_next_run_time", partial(self._next_run_time, alias)))
                stack.enter_context(self._replaced(self._scheduler, "remove_job", self._remove))
                self._thread = get_ident()
                seconds = self._process_jobs()
        except _StoppedLeading:
            return None  # the next leader continues; when this node leads again, it begins a new pass
        except Exception:  # of a trigger, for example: it would end the scheduler's thread
            self._fail("election %r: the scheduler has failed, and tries again", self._elector.name)
        finally:
            self._thread = self._woken_at = None
            self._is_running = False
        if self._has_failed and self._scheduler.state == STATE_RUNNING:
            retry = float(self._scheduler.jobstore_retry_interval)  # or at the next renewal, if that is sooner
            return retry if seconds is None else min(seconds, retry)
        return seconds

    @contextmanager
    def _replaced(self, target: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
        """During the block, ``target.name(…)`` is ``by(the original, …)`` if APScheduler's pass calls it."""
        original = getattr(target, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            is_of_pass = self._thread == get_ident()
            return by(original, *args, **kwargs) if is_of_pass else original(*args, **kwargs)

        setattr(target, name, call)
        try:
            yield
        finally:
            delattr(target, name)

    def _submit(self, submit: Callable[..., Any], job: Any, run_times: list[Any]) -> None:
        if not self._elector.is_leader():
            self._has_stopped_leading = True
            raise _StoppedLeading
        key = (job._jobstore_alias, job.id)
        submitted = self._submitted.get(key, [])
        due = [run_time for run_time in run_times if run_time not in submitted]
        if due:
            self._thread = None  # a DebugExecutor runs the job here, which may change any job
            try:
                submit(job, due)
            finally:
                self._thread = get_ident()
        self._submitted[key] = list(run_times)

    def _update(self, alias: str, update: Callable[..., Any], job: Any) -> None:
        self._change(partial(update, job), alias, job.id)

    def _remove(self, remove: Callable[..., Any], job_id: str, jobstore: str | None = None) -> None:
        if jobstore is None:  # a listener, not the pass
            remove(job_id)
        else:
            self._change(partial(remove, job_id, jobstore), jobstore, job_id)

    def _change(self, change: Callable[[], Any], alias: str, job_id: str) -> None:
        if self._has_stopped_leading:  # APScheduler has only logged that the job was not submitted
            raise _StoppedLeading
        try:
            change()
        except JobLookupError:
            pass  # another node has just removed the job
        except Exception:
            self._fail('job "%s" could not be updated in job store "%s"; the next pass tries again', job_id, alias)
            return
        self._submitted.pop((alias, job_id), None)

    def _next_run_time(self, alias: str, find: Callable[[], Any]) -> Any:
        try:
            return find()
        except Exception:
            self._fail('job store "%s" did not return its next run time; the next pass tries again', alias)
            return None

    def _fail(self, message: str, *args: object) -> None:
        self._has_failed = True
        logger.exception(message, *args)


class _StoppedLeading(Exception):
    """This node has stopped leading in the middle of a pass."""
