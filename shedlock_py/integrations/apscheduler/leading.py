"""``lead``: a scheduler that works only on the leader."""

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
from shedlock_py.integrations.apscheduler.drain import executors_of, running_jobs
from shedlock_py.integrations.apscheduler.options import check_scheduler

_POLL_SECONDS = 0.02
_STARTS = 3
"""The most attempts to start a job store. If several nodes create its table at once, all but one node may fail."""


class lead:
    """Let a scheduler work while this node leads: ``with lead(scheduler, elector): …`` or ``async with …``

    The scheduler starts paused. It is resumed when ``elector`` leads, and paused when ``elector`` does not lead. So
    several replicas can share one job store. A follower may add jobs; the leader finds them at its next renewal at the
    latest. Give jobs a ``misfire_grace_time`` longer than a fail-over (or None). Otherwise APScheduler drops runs that
    came due meanwhile.

    At the end, and when the elector resigns, the scheduler is paused. Another node can lead only after the present pass
    over the job stores and the running jobs have ended. When leadership is *lost*, no more jobs are submitted, and
    running jobs go on: let long jobs check ``elector.is_leader()``. A pass counts as a callback of the elector: in a
    listener or a signal handler that runs in a pass, ``stop()`` does not wait for that pass.

    If a job store raises when the scheduler updates a job, the error is logged, and the next pass comes soon. A
    submitted run is not submitted again. A node leaves the election when its scheduler has ended (the thread has died,
    or the scheduler was shut down). A node resigns when its scheduler does not react for two leases.

    ``lead`` starts and stops both the scheduler and the elector; do not start them before. It is a context manager with
    a :class:`LeaderElector`, and an async context manager with an :class:`AsyncLeaderElector`. ``start()`` and
    ``stop()`` do the same; await them with an :class:`AsyncLeaderElector`.

    :param scheduler: any scheduler of APScheduler 3.10 or 3.11. For a BlockingScheduler, ``start()`` returns only after
        the scheduler's shutdown.
    :raises ConfigurationError: the scheduler runs already, or ``elector`` is not an elector.
    """

    def __init__(self, scheduler: Any, elector: LeaderElector | AsyncLeaderElector) -> None:
        if not isinstance(elector, LeaderElector | AsyncLeaderElector):
            raise ConfigurationError(f"lead(scheduler, elector) needs an elector, not {elector!r}")
        check_scheduler(scheduler, "lead(scheduler, elector)")
        if scheduler.state != STATE_STOPPED:
            raise ConfigurationError("the scheduler runs already: do not start it; lead(…) starts it paused")
        self._scheduler = scheduler
        self._elector = elector
        self._was_running = False
        self._longest_silence = 2 * elector.lease_duration.total_seconds()
        self._passes = _LeaderPasses(scheduler, elector)
        pause = self._pause_async if isinstance(elector, AsyncLeaderElector) else self._pause
        elector.add_callbacks(self._resume, pause, self._check_and_wake)
        if hasattr(scheduler, "_main_loop"):  # the scheduler has a thread or a greenlet
            scheduler._main_loop = partial(self._run_main_loop, scheduler._main_loop)
        scheduler.runs_on_leader_only = True

    def start(self) -> Any:
        """Start the scheduler, paused, and the elector.

        If ``start()`` raises, this node has left the election, for example when Ctrl-C or SIGTERM ends a
        BlockingScheduler. It first waits for running jobs and the release of the lease, as ``stop()`` does.
        """
        self._was_running = False
        self._passes.reset()
        if isinstance(self._elector, AsyncLeaderElector):
            return self._start_async(self._elector)
        self._elector.start()
        try:
            self._start_scheduler()  # returns at once, except for a BlockingScheduler
        except BaseException:
            self._elector.stop()  # otherwise this node would lead without a working scheduler
            raise
        if self._scheduler.state == STATE_STOPPED:  # a BlockingScheduler was shut down
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
            # In the main thread, Ctrl-C and SIGTERM end a BlockingScheduler like this; start() raises the error.
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
        except Exception as error:  # for example "Event loop is closed"
            self._leave(f"the scheduler cannot be woken ({error!r})")

    def _check_and_wake(self) -> None:
        """Wake the scheduler: another node may have added a job to the store, or the scheduler started only now."""
        self._resume()
        if not self._elector.is_leader():
            return
        if self._scheduler.state == STATE_STOPPED:
            if self._was_running:  # otherwise it has not been started yet
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
        """Leave the election, so that another node leads: the scheduler does not work here any more."""
        if self._elector.leave():
            logger.error("election %r: %s, so this node leaves the election", self._elector.name, problem)

    def _is_busy(self) -> bool:
        """Return whether a pass or a job runs here."""
        # Check passes first, because a pass may submit one more job.
        return self._passes.is_running() or bool(running_jobs(executors_of(self._scheduler)))


class _LeaderPasses:
    """The scheduler's passes over its job stores. A pass begins only while this node leads, and stops when it does not.

    In a pass, APScheduler submits each due job and then writes the job's next run time into the job store. A job that
    must not be submitted any more stays unchanged in the store, for the next leader. So this class replaces
    ``scheduler._process_jobs`` and, during a pass, APScheduler's methods that submit and write.
    """

    def __init__(self, scheduler: Any, elector: LeaderElector | AsyncLeaderElector) -> None:
        self._scheduler = scheduler
        self._elector = elector
        self._process_jobs = scheduler._process_jobs
        self._has_stopped_leading = self._has_failed = False
        self._call = CallbackCall(self._run)
        """A pass is a callback call of the elector, so that ``stop()`` in a pass does not wait for that pass."""
        self._thread: int | None = None
        """The thread of the pass. In this thread APScheduler itself uses the stores, and not a job."""
        self._submitted: dict[tuple[str, str], list[Any]] = {}
        """Submitted run times, by job store and job, until the store has the job's next run time."""
        self._woken_at: float | None = None
        scheduler._process_jobs = self._run

    def reset(self) -> None:
        """Forget everything from before the scheduler's stop."""
        self._woken_at = None
        self._submitted.clear()

    def is_running(self) -> bool:
        """Return whether a pass is running, or about to check whether this node leads."""
        return self._call in self._elector._calls

    def silence(self) -> float:
        """Return for how many seconds the scheduler has not begun a pass. Call this before the scheduler is woken."""
        if self.is_running():
            return 0.0
        now = time.monotonic()
        if self._woken_at is None:
            self._woken_at = now
        return now - self._woken_at

    def _run(self) -> Any:
        """Run a pass. Return the seconds until the next pass, as APScheduler's own method does."""
        self._woken_at = None
        if not self._elector.is_leader():
            return None
        calls = self._elector._calls
        self._elector._enter_call(self._call)  # first: a signal handler may call stop() after each of these lines
        try:
            calls.add(self._call)  # before the second check: a node that resigns waits for each pass that may submit
            return self._run_as_leader() if self._elector.is_leader() else None
        finally:
            calls.discard(self._call)  # a method in C: a signal handler could raise before a Python function begins

    def _run_as_leader(self) -> Any:
        """Run the pass of a node that was the leader a moment ago."""
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
        except Exception:  # a trigger's error, for example, would end the scheduler's thread
            self._fail("election %r: the scheduler has failed, and tries again", self._elector.name)
        finally:
            self._thread = self._woken_at = None
        if self._has_failed and self._scheduler.state == STATE_RUNNING:
            retry = float(self._scheduler.jobstore_retry_interval)  # or at the next renewal, if that is sooner
            return retry if seconds is None else min(seconds, retry)
        return seconds

    @contextmanager
    def _replaced(self, target: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
        """During the block, let ``target.name(…)`` call ``by(original, …)`` if APScheduler's pass calls it."""
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
        if self._has_stopped_leading:  # APScheduler has only logged _submit()'s error
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
    """This node stopped leading during a pass."""


def _start_store(start: Callable[..., Any], *args: Any) -> None:
    """Start a job store. If this fails because another node has just created its table, the next attempt succeeds."""
    for _ in range(_STARTS - 1):
        try:
            start(*args)
        except Exception as error:
            logger.warning("a job store could not be started; trying again: %s", error)
        else:
            return
    start(*args)
