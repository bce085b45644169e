"""Keep-alive on an event loop. Imported late: ``import shedlock_py`` must not load asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from datetime import timedelta

from shedlock_py._aio import start_task
from shedlock_py._clock import monotonic
from shedlock_py._process import is_from_signal
from shedlock_py._program import run_async
from shedlock_py.context import ActiveLease
from shedlock_py.errors import as_exception
from shedlock_py.events import LeaseLost, logger
from shedlock_py.heartbeat import STOP_SECONDS, BaseKeepAlive, HeartbeatPlan
from shedlock_py.lease import Lease
from shedlock_py.options import OnLost
from shedlock_py.provider import AsyncLockProvider


class TaskKeepAlive(BaseKeepAlive):
    """Keeps a lease alive for async code."""

    def __init__(self, active: ActiveLease, store: AsyncLockProvider, keep_alive: bool, on_lost: OnLost) -> None:
        super().__init__(active, keep_alive, on_lost)
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeats: set[asyncio.Task[None]] = set()
        self._sync_wait_until = 0.0
        self._task = asyncio.current_task()
        self._cancels_before = self._task.cancelling() if self._task else 0
        self._has_cancelled = False
        self._is_stopped = False

    def start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._plan.is_over:
            self._timer = self._loop.call_later(max(0.0, self._plan.wakes_at() - monotonic()), self.wake)

    def _start_heartbeat(self) -> None:
        heartbeat = self._loop.create_task(self._heartbeat())
        self._heartbeats.add(heartbeat)
        heartbeat.add_done_callback(self._end_heartbeat)

    def _end_heartbeat(self, heartbeat: asyncio.Task[None]) -> None:
        self._heartbeats.discard(heartbeat)
        if heartbeat.cancelled():  # by code that cancels all tasks, perhaps before its first step
            self._plan.is_queued = False

    async def _heartbeat(self) -> None:
        self._sync_wait_until = monotonic() + self._plan.lease.lock_at_most_for.total_seconds() / HeartbeatPlan.REPLY
        await run_async(self._plan.heartbeat(), self._extend)
        self._schedule()
        self._report()

    async def _extend(self, lock_for: timedelta) -> Lease | None:
        lease = self._plan.lease
        try:
            return await self._store.extend(lease, lock_for)
        except (Exception, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            if is_from_signal(error):
                raise
            raise as_exception(error, "extend", lease.name) from error

    def _schedule(self) -> None:
        self._loop.call_soon_threadsafe(self.start)  # the task may extend its lease in a worker thread

    def _start_report(self) -> None:
        self._loop.call_soon(self._report)

    def _react(self, lost: LeaseLost) -> None:
        self._loop.call_soon_threadsafe(self._react_on_loop, lost)

    def _react_on_loop(self, lost: LeaseLost) -> None:
        if self._on_lost == "cancel" and self._task is not None and not self._is_stopped:
            self._has_cancelled = True
            self._task.cancel(f"lock {lost.lock_name!r} was lost")
        reply = self._call_on_lost(lost)
        if inspect.isawaitable(reply):
            start_task(_finish(lost, reply))

    def takes_back_its_cancellation(self, error: BaseException) -> bool:
        """Whether ``error`` is the cancellation by :meth:`_react_on_loop`, and no other code has cancelled the task."""
        if not isinstance(error, asyncio.CancelledError) or not self._has_cancelled or self._task is None:
            return False
        self._has_cancelled = False
        return self._task.uncancel() <= self._cancels_before  # as asyncio.timeout does it

    def is_busy(self, *, is_async: bool) -> bool:
        if is_async or not self._plan.in_flight:
            return self._plan.in_flight > 0
        # A blocking call on this event loop: wait until the heartbeat's worker thread is done, or for so long.
        return self._plan.lease.is_being_extended() and monotonic() < self._sync_wait_until

    async def stop(self) -> None:
        if not self._owner.is_current():
            return  # as in a thread
        with self._plan.changed:
            self._plan.is_over = self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        # A heartbeat after the release would prolong a minimum hold.
        if self._heartbeats:
            await asyncio.wait(self._heartbeats, timeout=STOP_SECONDS)
        self._report()
        if self._has_cancelled and self._task is not None:
            self._task.uncancel()  # the task ended before it could be cancelled


async def _finish(lost: LeaseLost, reply: Awaitable[object]) -> None:
    """Await what ``on_lost`` has returned."""
    try:
        await reply
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # asyncio would let sys.exit() out of the event loop, past all tasks
        if is_from_signal(error):
            raise
        logger.exception("on_lost of lock %r failed", lost.lock_name)
