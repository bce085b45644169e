"""Keep-alive on an event loop. Imported late: ``import shedlock_py`` must not load asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from datetime import timedelta

from shedlock_py.errors import LeaseLostError
from shedlock_py.events import LeaseLost, logger
from shedlock_py.guard.context import ActiveLease
from shedlock_py.guard.heartbeat_plan import HeartbeatPlan
from shedlock_py.guard.keepalive import STOP_SECONDS, BaseKeepAlive
from shedlock_py.provider import AsyncLockProvider
from shedlock_py.runtime.asyncio_tools import start_task
from shedlock_py.runtime.process import is_from_signal, monotonic
from shedlock_py.runtime.program import drive_async
from shedlock_py.runtime.threads import LONGEST_SLEEP
from shedlock_py.settings.options import OnLost


class TaskKeepAlive(BaseKeepAlive):
    """Keep-alive of async code. With "cancel", the block of a lost lease raises ``LeaseLostError``."""

    def __init__(
        self,
        active: ActiveLease,
        store: AsyncLockProvider,
        keep_alive: bool | timedelta,
        on_lost: OnLost,
    ) -> None:
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

    async def __aenter__(self) -> None:
        self._active.keep_alive = self
        self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_over:
            self._timer = self._loop.call_later(min(self._sleeps_for(), LONGEST_SLEEP), self.wake)

    def _start_heartbeat(self) -> None:
        heartbeat = self._loop.create_task(self._send_heartbeat())
        self._heartbeats.add(heartbeat)
        heartbeat.add_done_callback(self._end_heartbeat)

    def _end_heartbeat(self, heartbeat: asyncio.Task[None]) -> None:
        self._heartbeats.discard(heartbeat)
        if heartbeat.cancelled():  # by code that cancels all tasks, perhaps before the first step
            self._is_queued = False

    async def _send_heartbeat(self) -> None:
        self._sync_wait_until = monotonic() + self._lease.lock_at_most_for.total_seconds() / HeartbeatPlan.REPLY
        await drive_async(self._heartbeat(), lambda lock_for: self._store.extend(self._lease, lock_for))
        self._schedule()
        self._report()

    def _must_raise(self, error: BaseException) -> bool:
        return isinstance(error, (asyncio.CancelledError, GeneratorExit)) or (
            not isinstance(error, Exception) and is_from_signal(error)
        )

    def _schedule(self) -> None:
        self._loop.call_soon_threadsafe(self._start_timer)  # the task may extend its lease in a worker thread

    def _start_report(self) -> None:
        self._loop.call_soon(self._report)

    def _react(self, lost: LeaseLost) -> None:
        self._loop.call_soon_threadsafe(self._react_on_loop, lost)

    def _react_on_loop(self, lost: LeaseLost) -> None:
        if self._on_lost == "cancel" and self._task is not None and not self._is_stopped:
            self._has_cancelled = True
            self._task.cancel(f"lock {lost.lock_name!r} was lost")
        reply = super()._react(lost)
        if inspect.isawaitable(reply):
            start_task(self._finish(lost, reply))

    async def _finish(self, lost: LeaseLost, reply: Awaitable[object]) -> None:
        try:
            await reply
        except BaseException as error:  # asyncio would let sys.exit() leave the event loop, past all tasks
            task = asyncio.current_task()
            is_of_this_task = task is None or task.cancelling() or not isinstance(error, asyncio.CancelledError)
            if is_of_this_task and self._must_raise(error):
                raise
            logger.exception("on_lost of lock %r failed", lost.lock_name)

    def is_busy(self, *, is_async: bool) -> bool:
        if is_async or not self._in_flight:
            return self._in_flight > 0
        # A blocking call on this event loop: wait for the heartbeat's worker thread, but not longer than for a reply.
        return self._lease.is_being_extended() and monotonic() < self._sync_wait_until

    async def __aexit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        is_own_cancellation = False
        if isinstance(error, asyncio.CancelledError) and self._has_cancelled and self._task is not None:
            self._has_cancelled = False
            is_own_cancellation = self._task.uncancel() <= self._cancels_before  # like asyncio.timeout
        self._active.ended_at = monotonic()
        if self._on_lost == "cancel" and asyncio.current_task() is not self._task:
            logger.warning(
                "lock %r: on_lost='cancel' cancels the task that entered the block, and another task has left it. Let "
                "one task do both",
                self._lease.name,
            )
        if self._active.owner.is_current():  # a forked child leaves the heartbeats to its parent
            await self._stop()
        if is_own_cancellation:
            raise LeaseLostError(f"lock {self._lease.name!r} was lost while its task ran") from error

    async def _stop(self) -> None:
        with self._mutex:
            self._is_over = self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._heartbeats:
            await asyncio.wait(self._heartbeats, timeout=STOP_SECONDS)
        self._report()
        if self._has_cancelled and self._task is not None:
            self._task.uncancel()  # the task ended before it could be cancelled
