"""The loop of ``repeat_every``: in each slot, one worker runs the function."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

from shedlock_py.errors import ProviderUnreachable
from shedlock_py.events import RunMissed
from shedlock_py.events import logger as default_logger
from shedlock_py.guard.functions import attempt_async
from shedlock_py.guard.skips import LostReplies, Skipped, is_free_for
from shedlock_py.model.waiting import Waiting
from shedlock_py.runtime.process import monotonic
from shedlock_py.settings.defaults import lock_request
from shedlock_py.settings.emit import emit
from shedlock_py.settings.lookup import resolve_async_provider

DEFAULT_DRAIN = timedelta(seconds=20)
LONGEST_RETRY = timedelta(minutes=1)
"""How long a slot's run is retried while the store is unreachable. The slot may end sooner."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(eq=False)
class Repetition:
    """One decorated function, repeated. ``repeat_every`` documents the parameters."""

    name: str
    function: Callable[[], Any]
    interval: timedelta
    first: timedelta
    durations: tuple[Any, Any]
    options: Mapping[str, Any]
    drain: timedelta | None
    logger: logging.Logger | None
    raise_exceptions: bool
    max_repetitions: int | None
    on_complete: Callable[[], Any] | None
    on_exception: Callable[[Exception], Any] | None
    watching: dict[asyncio.Task[None], SlotRun] = field(default_factory=dict)
    """Earlier slots that another worker still runs, under ``recover=True``."""

    async def repeat(self) -> None:
        await asyncio.sleep(self.first.total_seconds())
        try:
            await self._repeat()
        finally:
            for task, run in list(self.watching.items()):
                await run.drain(task)
        if self.on_complete is not None:
            await _call(self.on_complete)

    async def _repeat(self) -> None:
        last, repetitions = None, 0
        while self.max_repetitions is None or repetitions < self.max_repetitions:
            now = datetime.now(UTC)
            slot = _EPOCH + (now - _EPOCH) // self.interval * self.interval
            if slot != last:  # a timer may be early, by the wall clock
                await SlotRun(self, slot).carry_out()
                last, repetitions = slot, repetitions + 1
            for task in [each for each in self.watching if each.done()]:
                await self.watching.pop(task).ended(task)
            await asyncio.sleep((slot + self.interval - datetime.now(UTC)).total_seconds())

    async def failed(self, error: Exception, *, is_logged: bool = False) -> None:
        """Report an error of one slot. Raise it if it shall end the repetition."""
        log = self.logger or default_logger
        if not is_logged:
            log.error("%s failed: %r", self.name, error, exc_info=error)
        if self.on_exception is not None:
            try:
                await _call(self.on_exception, error)
            except Exception:
                log.exception("%s: on_exception failed", self.name)
        if self.raise_exceptions:
            raise error


class SlotRun:
    """The run of one slot. It is retried while the store is unreachable, until the slot or the repetition ends."""

    def __init__(self, repetition: Repetition, slot: datetime) -> None:
        self._repetition = repetition
        self._slot = slot
        self._end_of_slot = slot + repetition.interval
        self._is_granted = False
        self._has_begun = False
        """The function was called. After the grant it may have to wait for a free thread."""
        self._failure: ProviderUnreachable | None = None
        """Why the store has granted nothing so far."""
        self._lost_replies = LostReplies()

    async def carry_out(self) -> None:
        """Attempt the run in a separate task, so that the repetition can be cancelled without it.

        A retry ends with the slot. The watch over another worker's run (``recover=True``) continues during the next
        slots, because that worker's lease may last longer than its slot.
        """
        task = asyncio.create_task(self._attempt(), name=f"run {self._repetition.name}")
        try:
            await asyncio.wait({task}, timeout=(self._end_of_slot - datetime.now(UTC)).total_seconds())
            if not (self._is_granted or task.done()):
                if self._failure is not None:
                    task.cancel()
                elif self._repetition.options.get("recover"):
                    self._repetition.watching[task] = self
                    return
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await self.drain(task)
            raise
        await self.ended(task)

    async def ended(self, task: asyncio.Task[None]) -> None:
        """Report the end of the run, or that it will not come."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            emit(RunMissed(self._repetition.name, self._slot, "unreachable", str(failure)))
            await self._repetition.failed(failure, is_logged=True)
        if not task.cancelled():
            task.result()

    async def drain(self, task: asyncio.Task[None]) -> None:
        """End the run after the repetition was cancelled. If the function runs, wait for the drain time or a second
        cancel.
        """
        with suppress(asyncio.CancelledError):
            if self._has_begun:
                drain = self._repetition.drain
                await asyncio.wait({task}, timeout=(DEFAULT_DRAIN if drain is None else drain).total_seconds())
        task.cancel()
        while not task.done():  # until it has released its lock; a thread ends when the function returns
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it was logged
        if self._failure is not None:
            emit(RunMissed(self._repetition.name, self._slot, "cancelled", str(self._failure)))

    async def _attempt(self) -> None:
        repetition = self._repetition
        left = self._end_of_slot - datetime.now(UTC)
        waiting = Waiting(max(min(LONGEST_RETRY, left), timedelta(0)), monotonic())
        while True:
            try:
                request = lock_request(repetition.name, *repetition.durations, fire_time=self._slot)
                request = replace(request, next_fire_time=self._end_of_slot)
                result = await attempt_async(request, self._guarded(), **repetition.options)
                if not isinstance(result, Skipped) or self._failure is None:
                    self._failure = None
                    return
                if result.reason not in ("held", "already_ran"):  # a gate has refused the run
                    if self._lost_replies.error is None:
                        self._failure = None
                    return
                provider = resolve_async_provider(repetition.options.get("provider"), request.name)
                record = await provider.record(request.name)
                if self._lost_replies.check(request, record):
                    if record is not None and not record.is_held:
                        return  # the lost claim has expired, and its fire time stays granted
                elif record is not None and not is_free_for(request, record):
                    self._failure = None  # another worker has the slot
                    return
                # The lost claim was undone, or may be undone soon: then the fire time can be granted.
                pause = waiting.pause(monotonic())
                if pause is None:
                    return
                await asyncio.sleep(pause)
            except ProviderUnreachable as error:
                if self._is_granted:  # raised by the function
                    await repetition.failed(error)
                    return
                if self._failure is None:
                    message = "lock %r: the run of %s is late, because the store is unreachable; trying again: %s"
                    default_logger.warning(message, repetition.name, self._slot.isoformat(), error)
                self._failure = error
                if error.operation != "record":
                    self._lost_replies.add(error)
                pause = waiting.pause(monotonic())
                if pause is None:
                    return
                await asyncio.sleep(pause)
            except Exception as error:
                self._failure = None
                await repetition.failed(error)
                return

    def _guarded(self) -> Callable[[], Awaitable[Any]]:
        function = self._repetition.function

        def begin() -> Any:
            self._has_begun = True
            return function()

        @wraps(function)  # with the gates of @leader_only
        async def run() -> Any:
            self._is_granted = True
            if self._failure is not None:
                self._failure = None
                seconds = (datetime.now(UTC) - self._slot).total_seconds()
                message = "lock %r: the run of %s begins %.0f s late, because the store was unreachable"
                default_logger.warning(message, self._repetition.name, self._slot.isoformat(), seconds)
            return await _uncancelled(begin() if inspect.iscoroutinefunction(function) else _run_in_thread(begin))

        return run


async def _run_in_thread(function: Callable[[], Any]) -> Any:
    """Call ``function`` in a thread, as ``asyncio.to_thread`` does, and wait until it returns.

    A cancellation does not end the wait: a thread cannot be stopped, and the lock must be held until it returns.
    """
    is_cancelled = False

    def call() -> Any:
        if is_cancelled:
            raise asyncio.CancelledError  # while it waited for a free thread
        return function()

    work = asyncio.get_running_loop().run_in_executor(None, copy_context().run, call)
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            is_cancelled = True
    return work.result()


async def _uncancelled(work: Awaitable[Any]) -> Any:
    """Await ``work``. Turn a cancellation from within into an error: asyncio would end this task silently."""
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling() > 0:
            raise
        raise RuntimeError("the function awaited something that was cancelled") from error


async def _call(callback: Callable[..., Any], *arguments: object) -> None:
    result = callback(*arguments)
    if inspect.isawaitable(result):
        await _uncancelled(result)
