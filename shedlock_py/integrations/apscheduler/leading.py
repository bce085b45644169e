"""``lead``: a scheduler that works on the leader only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from threading import current_thread, main_thread
from types import TracebackType
from typing import Any, Self

from apscheduler.schedulers.base import STATE_STOPPED

from shedlock_py import AsyncLeaderElector, ConfigurationError, LeaderElector
from shedlock_py.events import logger
from shedlock_py.integrations.apscheduler.options import check_scheduler
from shedlock_py.integrations.apscheduler.passes import LeaderPasses

_POLL_SECONDS = 0.02
_STARTS = 3
"""How often a job store is started at most. If several nodes create its table at once, all but one may fail."""


class lead:
    """Let a scheduler work while this node leads: ``with lead(scheduler, elector): …`` or ``async with …``

    The scheduler is started paused, resumed when ``elector`` leads and paused when it does not. So several replicas can
    share one job store: a follower may add jobs, which the leader finds at its next renewal at the latest. Give jobs a
    ``misfire_grace_time`` longer than a fail-over takes (or None), or APScheduler drops what came due meanwhile.

    At the end, and when the elector resigns, the scheduler is paused, its running jobs are waited for, and only then
    another node can lead. When leadership is *lost*, nothing more is submitted, and running jobs go on: let long ones
    check ``elector.is_leader()``.

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
        self._passes = LeaderPasses(scheduler, elector)
        pause = self._pause_async if isinstance(elector, AsyncLeaderElector) else self._pause
        elector.add_callbacks(self._resume, pause, self._check_and_wake)
        if hasattr(scheduler, "_main_loop"):  # of a scheduler with a thread or a greenlet
            scheduler._main_loop = partial(self._run_main_loop, scheduler._main_loop)
        scheduler.runs_on_leader_only = True

    def start(self) -> Any:
        """Start the scheduler, paused, and the elector."""
        if isinstance(self._elector, AsyncLeaderElector):
            return self._start_async(self._elector)
        self._reset()
        self._elector.start()
        try:
            self._start_scheduler()  # returns at once, except for a BlockingScheduler
        except BaseException:
            self._elector.stop(0)  # or this node would lead, with nothing that works
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

    async def _start_async(self, elector: AsyncLeaderElector) -> None:
        self._reset()
        self._start_scheduler()
        await elector.start()

    async def _stop_async(self, elector: AsyncLeaderElector) -> None:
        await elector.stop()
        if self._scheduler.state != STATE_STOPPED:
            self._scheduler.shutdown()
            await asyncio.sleep(0)  # AsyncIOScheduler shuts down in the next iteration of its event loop

    def _reset(self) -> None:
        self._was_running = False
        self._passes.reset()

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
        if problem := self._find_end():
            self._leave(problem)
        elif self._scheduler.running:
            silence = self._passes.silence()
            if silence <= self._longest_silence:
                self._scheduler.wakeup()
                return
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

    def _find_end(self) -> str | None:
        """How the scheduler has ended; None if it has not."""
        if self._scheduler.state == STATE_STOPPED:
            return "the scheduler was shut down" if self._was_running else None  # or has yet to be started
        thread = getattr(self._scheduler, "_thread", None)
        has_died = thread is not None and thread.ident is not None and not thread.is_alive()  # no ident: not begun
        return "the scheduler's thread has died" if has_died else None

    def _leave(self, problem: str) -> None:
        """Let another node lead, and leave the election: nothing works here any more."""
        if self._elector.leave():
            logger.error("election %r: %s, so this node leaves the election", self._elector.name, problem)

    def _is_busy(self) -> bool:
        return any(_running_instances(executor) for executor in list(self._scheduler._executors.values()))


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


def _running_instances(executor: Any) -> int:
    """How many jobs an executor is running. A ShedLockExecutor leaves the count to the executor inside."""
    inner = getattr(executor, "inner", None)
    if inner is not None:
        return _running_instances(inner)
    with executor._lock:
        return sum(executor._instances.values())
