"""``lead``: a scheduler that works on the leader only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import current_thread, get_ident, main_thread
from types import TracebackType
from typing import Any, Self

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.base import STATE_RUNNING, STATE_STOPPED

from shedlock_py import AsyncLeaderElector, ConfigurationError, LeaderElector
from shedlock_py.election.base import CallbackCall
from shedlock_py.events import logger
from shedlock_py.integrations.apscheduler.executor import ShedLockExecutor
from shedlock_py.integrations.apscheduler.options import check_scheduler

_POLL_SECONDS = 0.02
_STARTS = 3
"""How often a job store is started at most. If several nodes create its table at once, all but one may fail."""


class lead:
    """Let a scheduler work while this node leads: ``with lead(scheduler, elector): …`` or ``async with …``

    The scheduler is started paused, resumed when ``elector`` leads and paused when it does not. So several replicas can
    share one job store: a follower may add jobs, which the leader finds at its next renewal at the latest. Give jobs a
    ``misfire_grace_time`` longer than a fail-over takes (or None), or APScheduler drops what came due meanwhile.

    At the end, and when the elector resigns, the scheduler is paused, its pass over the job stores and its running jobs
    are waited for, and only then another node can lead. When leadership is *lost*, nothing more is submitted, and
    running jobs go on: let long ones check ``elector.is_leader()``. A pass counts as a callback of the elector: in a
    listener or a signal handler that runs in a pass, ``stop()`` does not wait for that pass.

    If a job store raises when the scheduler updates a job, the error is logged, and the next pass comes soon; a run
    that was submitted is not submitted again. A node whose scheduler has ended (its thread has died, it was shut down)
    leaves the election, and a node whose scheduler does not react for two leases resigns.

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
        self._was_running = False
        self._longest_silence = 2 * elector.lease_duration.total_seconds()
        self._passes = _LeaderPasses(scheduler, elector)
        pause = self._pause_async if isinstance(elector, AsyncLeaderElector) else self._pause
        elector.add_callbacks(self._resume, pause, self._check_and_wake)
        if hasattr(scheduler, "_main_loop"):  # of a scheduler with a thread or a greenlet
            scheduler._main_loop = partial(self._run_main_loop, scheduler._main_loop)
        scheduler.runs_on_leader_only = True

    def start(self) -> Any:
        """Start the scheduler, paused, and the elector.

        If it raises, as it does when Ctrl-C or SIGTERM ends a BlockingScheduler, this node has left the election:
        ``start()`` waits for running jobs and the release of the lease, as ``stop()`` does.
        """
        self._was_running = False
        self._passes.reset()
        if isinstance(self._elector, AsyncLeaderElector):
            return self._start_async(self._elector)
        self._elector.start()
        try:
            self._start_scheduler()  # returns at once, except for a BlockingScheduler
        except BaseException:
            self._elector.stop()  # or this node would lead, with nothing that works
            raise
        if self._scheduler.state == STATE_STOPPED:  # a BlockingScheduler, which was shut down
            self._elector.stop()
        return None

    def stop(self) -> Any:
        """Pause the scheduler, wait for its running jobs, resign, and shut the scheduler down."""
        if isinstance(self._elector, AsyncLeaderElector):
            return self._stop_async(self._elector)
        self._elector.stop()
        if self._scheduler.state != STATE_STOPPED:
            self._scheduler.shutdown()
        return None

    async def _start_async(self, elector: AsyncLeaderElector) -> None:
        self._start_scheduler()
        await elector.start()

    async def _stop_async(self, elector: AsyncLeaderElector) -> None:
        await elector.stop()
        if self._scheduler.state != STATE_STOPPED:
            self._scheduler.shutdown()
            await asyncio.sleep(0)  # AsyncIOScheduler shuts down in the next iteration of its event loop

    def _start_scheduler(self) -> None:
        stores = list(self._scheduler._jobstores.values())
        for store in stores:
            store.start = partial(_start_store, store.start)
        try:
            self._scheduler.start(paused=True)
        finally:
            for store in stores:
                del store.start

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

    def _run_main_loop(self, main_loop: Callable[[], None]) -> None:
        """Run the loop of the scheduler's thread, and leave the election if it fails."""
        try:
            main_loop()
        except BaseException as error:
            # In the main thread, Ctrl-C and SIGTERM end a BlockingScheduler in this way; start() raises the error.
            if isinstance(error, Exception) or current_thread() is not main_thread():
                self._leave(f"the scheduler's thread has died of {type(error).__name__} ({error})")
            raise

    # The elector's callbacks

    def _resume(self) -> None:
        if self._scheduler.state == STATE_STOPPED or not self._elector.is_leader():
            return
        self._was_running = True
        try:
            self._scheduler.resume()
        except Exception as error:  # such as "Event loop is closed"
            self._leave(f"the scheduler cannot be woken ({error!r})")

    def _check_and_wake(self) -> None:
        """Wake the scheduler: another node may have added a job to the store, or the scheduler started only now."""
        self._resume()
        if not self._elector.is_leader():
            return
        if self._scheduler.state == STATE_STOPPED:
            if self._was_running:  # if not, it has yet to be started
                self._leave("the scheduler was shut down")
        elif (silence := self._passes.silence()) <= self._longest_silence:
            self._scheduler.wakeup()
        else:
            message = "election %r: the scheduler has not reacted for %.1f s, so this node resigns"
            logger.error(message, self._elector.name, silence)
            self._elector.resign()

    def _pause(self) -> None:
        self._pause_scheduler()
        while self._is_busy():
            time.sleep(_POLL_SECONDS)

    async def _pause_async(self) -> None:
        self._pause_scheduler()
        while self._is_busy():  # noqa: ASYNC110 (APScheduler has no event for it)
            await asyncio.sleep(_POLL_SECONDS)

    def _pause_scheduler(self) -> None:
        if self._scheduler.state != STATE_STOPPED:
            self._scheduler.pause()

    def _leave(self, problem: str) -> None:
        """Let another node lead, and leave the election: nothing works here any more."""
        if self._elector.leave():
            logger.error("election %r: %s, so this node leaves the election", self._elector.name, problem)

    def _is_busy(self) -> bool:
        """Whether a pass or a job runs here. A ShedLockExecutor leaves the count to the executor inside."""
        if self._passes.is_running():  # first: it may submit one more job
            return True
        for executor in list(self._scheduler._executors.values()):
            counting = executor.inner if isinstance(executor, ShedLockExecutor) else executor
            with counting._lock:
                if any(counting._instances.values()):
                    return True
        return False


class _LeaderPasses:
    """The scheduler's passes over its job stores: each only while this node leads, and only as far as it still leads.

    In a pass, APScheduler submits each due job and then writes its next run time into the job store. A job that must
    not be submitted any more has to stay in the store as it is, for the next leader. So this takes the place of
    ``scheduler._process_jobs`` and, during a pass, of the methods by which APScheduler submits and writes.
    """

    def __init__(self, scheduler: Any, elector: LeaderElector | AsyncLeaderElector) -> None:
        self._scheduler = scheduler
        self._elector = elector
        self._process_jobs = scheduler._process_jobs
        self._has_stopped_leading = self._has_failed = False
        self._call = CallbackCall(self._run)
        """Each pass. As a call of the elector, so that ``stop()`` in a pass does not wait for the end of that pass."""
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

    def is_running(self) -> bool:
        """Whether a pass is running, or about to check whether this node leads."""
        return self._call in self._elector._calls

    def silence(self) -> float:
        """For how many seconds the scheduler has not begun a pass. Called before the scheduler is woken."""
        if self.is_running():
            return 0.0
        now = time.monotonic()
        if self._woken_at is None:
            self._woken_at = now
        return now - self._woken_at

    def _run(self) -> Any:
        """One pass. Returns the seconds until the next, as APScheduler's own does."""
        self._woken_at = None
        if not self._elector.is_leader():
            return None
        calls = self._elector._calls
        self._elector._enter_call(self._call)  # first: a signal handler may call stop() after each of these lines
        try:
            calls.add(self._call)  # before the second check: a node that resigns waits for each pass that may submit
            return self._run_as_leader() if self._elector.is_leader() else None
        finally:
            calls.discard(self._call)  # not a function in Python, before which a signal handler could raise

    def _run_as_leader(self) -> Any:
        """The pass of a node that has just led."""
        self._has_stopped_leading = self._has_failed = False
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
        except Exception:  # the jobs of other stores still run, and listeners get the events of this pass
            self._fail('job store "%s" did not return its next run time; the next pass tries again', alias)
            return None

    def _fail(self, message: str, *args: object) -> None:
        self._has_failed = True
        logger.exception(message, *args)


class _StoppedLeading(Exception):
    """This node has stopped leading in the middle of a pass."""


def _start_store(start: Callable[..., Any], *args: Any) -> None:
    """Start a job store. If that fails because another node created its table just now, the next try succeeds."""
    for _ in range(_STARTS - 1):
        try:
            start(*args)
        except Exception as error:
            logger.warning("a job store could not be started; trying again: %s", error)
        else:
            return
    start(*args)
