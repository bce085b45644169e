"""A scheduler that works on the leader only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.base import STATE_STOPPED

from shedlock_py import AsyncLeaderElector, ConfigurationError, LeaderElector

_MOMENT = 0.02


class lead:
    """Let a scheduler work while this node leads: ``with lead(scheduler, elector): …`` or ``async with …``

    The scheduler is started paused, resumed when ``elector`` leads and paused when it does not. So several replicas can
    share one job store: a follower may add jobs, which the leader finds at its next renewal at the latest. Give jobs a
    ``misfire_grace_time`` longer than a fail-over takes (or None), or APScheduler drops what came due meanwhile.

    At the end, and when the elector resigns, the scheduler is paused, its running jobs are waited for, and only then
    another node can lead. When leadership is *lost*, nothing more is submitted, and running jobs go on: let long ones
    ask ``elector.is_leader()``.

    Starts and stops both; neither may have been started. With a :class:`LeaderElector` it is a context manager, with
    an :class:`AsyncLeaderElector` an async one; ``start()`` and ``stop()`` do the same (and are to be awaited then).

    :param scheduler: any scheduler of APScheduler 3.10 or 3.11. ``start()`` does not return for a BlockingScheduler, as
        its own does not, until it is shut down.
    :raises ConfigurationError: the scheduler runs already, or ``elector`` is none.
    """

    def __init__(self, scheduler: Any, elector: LeaderElector | AsyncLeaderElector) -> None:
        if not isinstance(elector, LeaderElector | AsyncLeaderElector):
            raise ConfigurationError(f"lead(scheduler, elector) needs an elector, not {elector!r}")
        if scheduler.state != STATE_STOPPED:
            raise ConfigurationError("the scheduler runs already: leave it to lead(…) to start it, paused")
        self._scheduler = scheduler
        self._elector = elector
        self._is_deposed = False
        is_async = isinstance(elector, AsyncLeaderElector)
        elector.add_callbacks(self._resume, self._rest_async if is_async else self._rest, self._wake)
        self._process_jobs = scheduler._process_jobs
        scheduler._process_jobs = self._process_jobs_as_leader
        scheduler.asks_elector = True

    def start(self) -> Any:
        """Start the scheduler, paused, and the elector."""
        if isinstance(self._elector, AsyncLeaderElector):
            return self._start_async(self._elector)
        self._elector.start()
        self._scheduler.start(paused=True)  # comes back at once, unless it is a BlockingScheduler
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
        self._scheduler.start(paused=True)
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
        if not self._elector.is_leader():
            return None
        self._is_deposed = False
        with ExitStack() as stack:
            for executor in self._scheduler._executors.values():
                stack.enter_context(_replaced(executor, "submit_job", self._submit))
            for store in self._scheduler._jobstores.values():
                stack.enter_context(_replaced(store, "update_job", self._change))
                stack.enter_context(_replaced(store, "remove_job", self._change))
            try:
                return self._process_jobs()
            except _Deposed:
                return None  # the next leader has it; when this one leads again, resuming begins a new pass
            except JobLookupError:
                return 0  # another node has just removed it: APScheduler's thread would die of this

    def _submit(self, submit: Callable[..., Any], *args: Any) -> Any:
        if not self._elector.is_leader():
            self._is_deposed = True
            raise _Deposed
        return submit(*args)

    def _change(self, change: Callable[..., Any], *args: Any) -> Any:
        if self._is_deposed:
            raise _Deposed
        return change(*args)

    # What the elector calls

    def _resume(self) -> None:
        if self._scheduler.state != STATE_STOPPED and self._elector.is_leader():
            self._scheduler.resume()

    def _wake(self) -> None:
        """Another node may have added a job to the store that both use; or the scheduler started after the elector."""
        self._resume()
        if self._scheduler.running and self._elector.is_leader():
            self._scheduler.wakeup()

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
    setattr(target, name, lambda *args: by(original, *args))
    try:
        yield
    finally:
        delattr(target, name)


def _instances(executor: Any) -> int:
    """How many jobs an executor is running, ours with those of the executor inside."""
    inner = getattr(executor, "_inner", None)
    if inner is not None:
        return _instances(inner)
    with executor._lock:
        return sum(executor._instances.values())
