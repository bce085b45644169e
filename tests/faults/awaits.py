"""Act on a coroutine at its n-th await, or at the n-th await of a task that works for it."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Way = Callable[["Moment", Coroutine[Any, Any, T]], Coroutine[Any, Any, T]]


class Moment:
    """The n-th time that any task of this event loop waits. :meth:`strike` sets the action for this moment."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._act: Callable[[], object] = lambda: None
        self.has_come = False

    def strike(self, act: Callable[[], object]) -> None:
        self._act = act

    def waited(self) -> None:
        self._left -= 1
        if self._left < 0 and not self.has_come:
            self.has_come = True
            asyncio.get_running_loop().call_soon(self._act)

    def task_factory(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(self.watched(work), loop=loop, **options)
        task.add_done_callback(lambda _: work.close())  # if it was cancelled before its first step
        return task

    async def watched(self, work: Any) -> Any:
        return await _stepped(work, self.waited)


@types.coroutine
def _stepped(work: Any, waited: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Run ``work`` and report each of its waits. Exceptions that are thrown in pass through."""
    error: BaseException | None = None
    while True:
        try:
            wanted = work.send(None) if error is None else work.throw(error)
        except StopIteration as stop:
            return stop.value
        waited()
        error = None
        try:
            yield wanted
        except BaseException as thrown:
            error = thrown


async def cancelled(moment: Moment, work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    moment.strike(task.cancel)
    return await task


async def cancelled_twice(moment: Moment, work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)

    def twice() -> None:
        task.cancel()
        asyncio.get_running_loop().call_soon(task.cancel)

    moment.strike(twice)
    return await task


async def out_of_time(moment: Moment, work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(None) as limit:
        loop = asyncio.get_running_loop()
        moment.strike(lambda: None if limit.expired() else limit.reschedule(loop.time()))
        result: T = await moment.watched(work)
        moment.strike(lambda: None)
        return result


GIVEN_UP = (asyncio.CancelledError, TimeoutError)
WAYS: dict[str, Any] = {"cancelled": cancelled, "cancelled twice": cancelled_twice, "out of time": out_of_time}


async def nothing_goes_on(before: set[asyncio.Task[Any]]) -> None:
    deadline = time.monotonic() + 30
    while late := asyncio.all_tasks() - before - {asyncio.current_task()}:
        assert time.monotonic() < deadline, f"these never end: {late}"
        await asyncio.wait(late, timeout=0.1)
