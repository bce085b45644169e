"""A scheduler that works on the leader only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import current_thread, get_ident, main_thread
from time import monotonic
from types import TracebackType
from typing import Any, Self

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.base import STATE_RUNNING, STATE_STOPPED

from shedlock_py import AsyncLeaderElector, ConfigurationError, LeaderElector
from shedlock_py.events import logger
from shedlock_py.integrations.apscheduler.options import check_scheduler

_MOMENT = 0.02
STARTS = 3
"""So often a job store is started, at most: when several nodes make its table at one moment, all but one may fail."""


class lead:
    """Let a scheduler work while this node leads: ``with lead(scheduler, elector): …`` or ``async with …``

    The scheduler is started paused, resumed when ``elector`` leads and paused when it does not. So several replicas can
    share one job store: a follower may add jobs, which the leader finds at its next renewal at the latest. Give jobs a
    ``misfire_grace_time`` longer than a fail-over takes (or None), or APScheduler drops what came due meanwhile.

    At the end, and when the elector resigns, the scheduler is paused, its running jobs are waited for, and only then
    another node can lead. When leadership is *lost*, nothing more is submitted, and running jobs go on: let long ones
    ask ``elector.is_leader()``.

    What a job store raises when the scheduler updates a job is logged, and the next pass comes soon; a run that was
    submitted is not submitted again. A node whose scheduler has ended (its thread has died, it was shut down) leaves
    the election, and one whose scheduler does not answer for two leases resigns.

    Starts and stops both; neither may have been started. With a :class:`LeaderElector` it is a context manager, with
    an :class:`AsyncLeaderElector` an async one; ``start()`` and ``stop()`` do the same (and are to be awaited then).

    :param scheduler: any scheduler of APScheduler 3.10 or 3.11. ``start()`` does not return for a BlockingScheduler, as
        its own does not, until it is shut down.
    :raises ConfigurationError: the scheduler runs already, or ``elector`` is none.
    """

    def __init__(self, scheduler: Any, elector: LeaderElector | AsyncLeaderElector) -> None:
        if not isinstance(elector, LeaderElector | AsyncLeaderElector):
            raise ConfigurationError(f"lead(scheduler, elector) needs an elector, not {elector!r}")
        check_scheduler(scheduler, "lead(scheduler, elector)")
        if scheduler.state != STATE_STOPPED:
            raise ConfigurationError("the scheduler runs already: leave it to lead(…) to start it, paused")
        self._scheduler = scheduler
        self._elector = elector
        self._is_deposed = self._has_failed = self._is_at_work = self._was_seen_running = False
        self._thread_of_pass: int | None = None
        self._submitted: dict[tuple[str, str], list[Any]] = {}
        """By job store and job: run times that were submitted, while the store still has the job as it was before."""
        self._woken_at: float | None = None
        """When the scheduler was woken; None if it has begun a pass since."""
        self._patience = 2 * elector._settings.lease_duration.total_seconds()
        is_async = isinstance(elector, AsyncLeaderElector)
        elector.add_callbacks(self._resume, self._rest_async if is_async else self._rest, self._wake)
        self._process_jobs = scheduler._process_jobs
        scheduler._process_jobs = self._process_jobs_as_leader
        if hasattr(scheduler, "_main_loop"):  # of a scheduler with a thread or a greenlet
            self._main_loop = scheduler._main_loop
            scheduler._main_loop = self._watched_main_loop
        scheduler.asks_elector = True

    def start(self) -> Any:
        """Start the scheduler, paused, and the elector."""
        if isinstance(self._elector, AsyncLeaderElector):
            return self._start_async(self._elector)
        self._forget_the_last_time()
        self._elector.start()
        try:
            self._start_scheduler()  # comes back at once, unless it is a BlockingScheduler
        except BaseException:
            self._elector.stop(0)  # or it would lead, with nothing that works
            raise
        return None

    def stop(self) -> Any:
        """Pause the scheduler, wait for its running jobs, resign, and shut the scheduler down."""
        if isinstance(self._elector, AsyncLeaderElector):
            return self._stop_async(self._elector)
        self._elector.stop()
        if self._scheduler.state != STATE_STOPPED:
            self._scheduler.shutdown()
        return None

    def _start_scheduler(self) -> None:
        with ExitStack() as stack:
            for store in self._scheduler._jobstores.values():
                stack.enter_context(_replaced(store, "start", _start_store))
            self._scheduler.start(paused=True)

    def _forget_the_last_time(self) -> None:
        self._was_seen_running = False
        self._woken_at = None
        self._submitted.clear()

    async def _start_async(self, elector: AsyncLeaderElector) -> None:
        self._forget_the_last_time()
        self._start_scheduler()
        await elector.start()

    async def _stop_async(self, elector: AsyncLeaderElector) -> None:
        await elector.stop()
        if self._scheduler.state != STATE_STOPPED:
            self._scheduler.shutdown()
            await asyncio.sleep(0)  # AsyncIOScheduler only asks its event loop to do it

    def __enter__(self) -> Self:
        if isinstance(self._elector, AsyncLeaderElector):
            raise ConfigurationError("with an AsyncLeaderElector write: async with lead(scheduler, elector)")
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        if isinstance(self._elector, LeaderElector):
            raise ConfigurationError("with a LeaderElector write: with lead(scheduler, elector)")
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    # What the scheduler calls

    def _process_jobs_as_leader(self) -> Any:
        """One pass over the job stores: only on the leader, and only as far as it still leads.

        A scheduler submits a job and then moves it on in the store. A job that is not to be submitted any more must
        stay there as it is, for the next leader.
        """
        self._woken_at = None
        if not self._elector.is_leader():
            return None
        self._is_deposed = self._has_failed = False
        self._is_at_work = True
        seconds = None
        try:
            with ExitStack() as stack:
                for executor in self._scheduler._executors.values():
                    stack.enter_context(_replaced(executor, "submit_job", self._submit))
                for alias, store in self._scheduler._jobstores.items():
                    stack.enter_context(_replaced(store, "update_job", partial(self._update, alias)))
                    stack.enter_context(_replaced(store, "get_next_run_time", partial(self._next_run_time, alias)))
                stack.enter_context(_replaced(self._scheduler, "remove_job", self._remove))
                self._thread_of_pass = get_ident()
                seconds = self._process_jobs()
        except _Deposed:
            return None  # the next leader has it; when this one leads again, resuming begins a new pass
        except Exception:  # of a trigger, say: it would end the thread of the scheduler
            self._fail("election %r: the scheduler has failed, and tries again", self._elector.name)
        finally:
            self._thread_of_pass = self._woken_at = None
            self._is_at_work = False
        if self._has_failed and self._scheduler.state == STATE_RUNNING:
            soon = float(self._scheduler.jobstore_retry_interval)  # at the next renewal, if that is sooner
            return soon if seconds is None else min(seconds, soon)
        return seconds

    def _submit(self, submit: Callable[..., Any], job: Any, run_times: list[Any]) -> Any:
        if not self._is_pass():
            return submit(job, run_times)
        if not self._elector.is_leader():
            self._is_deposed = True
            raise _Deposed
        key = (job._jobstore_alias, job.id)
        before = self._submitted.get(key, [])
        due = [run_time for run_time in run_times if run_time not in before]
        if due:
            with self._outside_the_pass():  # a DebugExecutor runs the job here, which may change any job
                submit(job, due)
        self._submitted[key] = list(run_times)
        return None

    def _update(self, alias: str, update: Callable[..., Any], job: Any) -> Any:
        if not self._is_pass():
            return update(job)
        return self._change(partial(update, job), alias, job.id)

    def _remove(self, remove: Callable[..., Any], job_id: str, jobstore: str | None = None) -> Any:
        if not self._is_pass() or jobstore is None:
            return remove(job_id, jobstore)
        return self._change(partial(remove, job_id, jobstore), jobstore, job_id)

    def _change(self, change: Callable[[], Any], alias: str, job_id: str) -> None:
        if self._is_deposed:
            raise _Deposed
        try:
            change()
        except JobLookupError:
            pass  # another node has just removed it
        except Exception:
            self._fail('job "%s" could not be updated in job store "%s", which is tried again', job_id, alias)
            return
        self._submitted.pop((alias, job_id), None)

    def _next_run_time(self, alias: str, find: Callable[[], Any]) -> Any:
        if not self._is_pass():
            return find()
        try:
            return find()
        except Exception:
            self._fail('job store "%s" did not say when its next job is due, which is tried again', alias)
            return None

    def _fail(self, message: str, *args: object) -> None:
        self._has_failed = True
        logger.exception(message, *args)

    def _is_pass(self) -> bool:
        """Whether it is the scheduler's pass that calls, and not the application, whose errors are its own."""
        return self._thread_of_pass == get_ident()

    @contextmanager
    def _outside_the_pass(self) -> Iterator[None]:
        self._thread_of_pass = None
        try:
            yield
        finally:
            self._thread_of_pass = get_ident()

    def _watched_main_loop(self) -> None:
        try:
            self._main_loop()
        except BaseException as error:
            # In the main thread Ctrl-C and SIGTERM end a BlockingScheduler so; start() raises it.
            if isinstance(error, Exception) or current_thread() is not main_thread():
                self._leave(f"the scheduler's thread has died of {type(error).__name__} ({error})")
            raise

    # What the elector calls

    def _resume(self) -> None:
        if self._scheduler.state == STATE_STOPPED or not self._elector.is_leader():
            return
        self._was_seen_running = True
        try:
            self._scheduler.resume()
        except Exception as error:  # such as "Event loop is closed"
            self._leave(f"the scheduler cannot be woken ({error!r})")

    def _wake(self) -> None:
        """Another node may have added a job to the store that both use; or the scheduler started after the elector."""
        self._resume()
        if not self._elector.is_leader():
            return
        if problem := self._what_has_ended():
            self._leave(problem)
        elif self._scheduler.running:
            now = monotonic()
            if self._woken_at is None:
                self._woken_at = now
            elif not self._is_at_work and now - self._woken_at > self._patience:
                logger.error(
                    "election %r: the scheduler has not answered for %.1f s, so this node resigns",
                    self._elector.name,
                    now - self._woken_at,
                )
                self._elector.resign()
                return
            self._scheduler.wakeup()

    def _what_has_ended(self) -> str | None:
        if self._scheduler.state == STATE_STOPPED:
            return "the scheduler was shut down" if self._was_seen_running else None  # or is about to be started
        thread = getattr(self._scheduler, "_thread", None)
        has_died = thread is not None and thread.ident is not None and not thread.is_alive()  # no ident: not begun
        return "the scheduler's thread has died" if has_died else None

    def _leave(self, problem: str) -> None:
        """Nothing works here any more: let another node lead, and do not stand for election again."""
        if self._elector._election.may_lead():
            logger.error("election %r: %s, so this node leaves the election", self._elector.name, problem)
            self._elector._request("stop")

    def _rest(self) -> None:
        self._pause()
        while self._is_busy():
            time.sleep(_MOMENT)

    async def _rest_async(self) -> None:
        self._pause()
        while self._is_busy():  # noqa: ASYNC110 (APScheduler tells nobody)
            await asyncio.sleep(_MOMENT)

    def _pause(self) -> None:
        if self._scheduler.state != STATE_STOPPED:
            self._scheduler.pause()

    def _is_busy(self) -> bool:
        executors = list(self._scheduler._executors.values())
        return any(_instances(executor) for executor in executors)


class _Deposed(Exception):
    """This node has ceased to lead in the middle of a pass."""


@contextmanager
def _replaced(target: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    """While the block runs, ``target.name(…)`` is ``by(the original, …)``."""
    original = getattr(target, name)
    setattr(target, name, lambda *args, **kwargs: by(original, *args, **kwargs))
    try:
        yield
    finally:
        delattr(target, name)


def _start_store(start: Callable[..., Any], *args: Any) -> None:
    """Start a job store. If that fails, another node may have made its table just now: then it is there."""
    for _ in range(STARTS - 1):
        try:
            start(*args)
        except Exception as error:
            logger.warning("a job store could not be started, which is tried again: %s", error)
        else:
            return
    start(*args)


def _instances(executor: Any) -> int:
    """How many jobs an executor is running, ours with those of the executor inside."""
    inner = getattr(executor, "_inner", None)
    if inner is not None:
        return _instances(inner)
    with executor._lock:
        return sum(executor._instances.values())
