"""An operation finishes even if its caller is cancelled; nothing is lost, reported twice or left over."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import traceback
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import pytest

from shedlock_py.runtime.asyncio_tools import shielded
from tests.support.logs import records_of

T = TypeVar("T")
Line = tuple[asyncio.StreamReader, socket.socket]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("small_heap")]


class Work:
    """An operation of a store that waits until the test lets it go on."""

    def __init__(self, outcome: object = "done") -> None:
        self.outcome = outcome
        self.begun = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.ended = False

    async def run(self) -> Any:
        self.begun.set()
        await self.may_go_on.wait()
        self.ended = True
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture(autouse=True)
async def nothing_is_reported() -> AsyncIterator[None]:
    """Check that asyncio reports no unseen exception and no destroyed task, and that no task is left."""
    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    yield
    await iterations(5)
    assert not [task for task in asyncio.all_tasks() if "/asyncio_tools.py" in repr(task)]
    gc.collect()
    assert not reports


async def iterations(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def abandoned_to(results: list[Any]) -> Callable[[Any], Awaitable[None]]:
    async def undo(result: Any) -> None:
        await asyncio.sleep(0)
        results.append(result)

    return undo


async def cancelled(task: asyncio.Task[Any]) -> bool:
    await asyncio.wait({task})
    return task.cancelled()


# Without cancellation


async def failing_work() -> None:
    await asyncio.sleep(0)
    raise LookupError("the store's")


async def test_the_result_and_the_exception_itself_with_its_traceback() -> None:
    undone: list[Any] = []
    assert await shielded(asyncio.sleep(0, "result"), abandoned_to(undone)) == "result"
    with pytest.raises(LookupError, match="the store's") as raised:
        await shielded(failing_work(), abandoned_to(undone))
    assert "failing_work" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert undone == []


async def test_work_sees_the_callers_context_and_changes_its_own() -> None:
    variable = ContextVar("variable", default="nothing")
    seen: list[str] = []

    async def work() -> None:
        seen.append(variable.get())
        variable.set("the work's own")

    variable.set("the caller's")
    await shielded(work())
    assert seen == ["the caller's"]
    assert variable.get() == "the caller's"


# The caller is cancelled


@pytest.mark.parametrize("outcome", ["done", None], ids=["granted", "refused"])
async def test_i12_a_caller_cancelled_once_waits_until_its_grant_is_undone(
    outcome: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    work, undone = Work(outcome), list[Any]()
    task = asyncio.create_task(shielded(work.run(), abandoned_to(undone)))
    await work.begun.wait()
    task.cancel()
    await iterations(5)
    assert not task.done(), "it waits for the store"
    work.may_go_on.set()
    assert await cancelled(task)
    assert undone == ([] if outcome is None else ["done"]), "before the caller goes on"
    assert caplog.records == []


async def test_i12_cancelled_before_it_began() -> None:
    work, undone = Work(), list[Any]()
    work.may_go_on.set()
    task = asyncio.create_task(shielded(work.run(), abandoned_to(undone)))
    await iterations(1)
    assert not work.begun.is_set()
    task.cancel()
    assert await cancelled(task)
    assert (work.ended, undone) == (True, ["done"])


async def test_i12_a_caller_cancelled_twice_does_not_wait_and_its_grant_is_undone() -> None:
    work, undone = Work(), list[Any]()
    task = asyncio.create_task(shielded(work.run(), abandoned_to(undone)))
    await work.begun.wait()
    for _ in range(2):
        task.cancel()
        await iterations(5)
    assert task.cancelled(), "it does not wait"
    del task
    gc.collect()
    assert not work.ended
    work.may_go_on.set()
    await iterations(10)
    assert (work.ended, undone) == (True, ["done"])


async def waiting() -> tuple[asyncio.Future[str], asyncio.Task[str], list[Any]]:
    """A caller, the future that its work waits for, and a list of undone results."""
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    undone: list[Any] = []

    async def work() -> str:
        return await outcome

    task = asyncio.create_task(shielded(work(), abandoned_to(undone)))
    await iterations(3)
    return outcome, task, undone


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("error", [None, LookupError("the store's")])
async def test_i12_cancelled_when_the_operation_has_just_ended(
    times: int, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The operation has ended, but the caller does not have its outcome yet."""
    outcome, task, undone = await waiting()
    if error is None:
        outcome.set_result("granted")
    else:
        outcome.set_exception(error)
    await iterations(1)  # the work has returned
    assert not task.done()
    for _ in range(times):
        task.cancel()
    assert await cancelled(task)
    await iterations(5)
    assert undone == (["granted"] if error is None else [])
    if error is not None:
        assert_logged(caplog)


def assert_logged(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = records_of(caplog)
    assert record.levelno == logging.WARNING
    assert "the store's" in record.getMessage()


@pytest.mark.parametrize("fails", ["the operation", "the undoing"])
async def test_an_error_after_a_cancellation_is_logged(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    error = LookupError("the store's")

    async def undo(_: Any) -> None:
        assert fails == "the undoing"
        raise error

    work = Work(error if fails == "the operation" else "done")
    task = asyncio.create_task(shielded(work.run(), undo))
    await work.begun.wait()
    task.cancel()
    await iterations(2)
    work.may_go_on.set()
    assert await cancelled(task)
    assert_logged(caplog)


# The operation itself is cancelled: the event loop is closing


async def test_the_operation_is_cancelled() -> None:
    work, undone = Work(), list[Any]()
    before = asyncio.all_tasks()
    task = asyncio.create_task(shielded(work.run(), abandoned_to(undone)))
    await work.begun.wait()
    (inner,) = asyncio.all_tasks() - before - {task}
    inner.cancel()
    assert await cancelled(task)
    assert (work.ended, undone) == (False, [])


async def test_work_that_is_cancelled_before_its_first_step_cancels_its_caller() -> None:
    """Shutdown code may cancel all tasks but some. The caller must not wait for ever."""
    work = Work()
    before = asyncio.all_tasks()
    caller = asyncio.create_task(shielded(work.run()))
    await iterations(1)
    (inner,) = asyncio.all_tasks() - before - {caller}
    inner.cancel()
    await asyncio.wait({caller}, timeout=10)
    assert caller.cancelled()
    assert not work.begun.is_set()


async def test_an_event_loop_that_ends_when_work_was_just_begun(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """The task is cancelled at each of its iterations."""

    async def work() -> None:
        await iterations(3)

    callers: list[asyncio.Task[None]] = []

    async def main(number: int) -> None:
        callers.append(asyncio.create_task(shielded(work())))
        await iterations(number)
        assert not callers[-1].done()

    for number in range(1, 4):
        await asyncio.to_thread(asyncio.run, main(number))
    assert [caller.cancelled() for caller in callers] == [True] * 3
    callers.clear()
    gc.collect()
    assert not caplog.records
    assert [str(warning.message) for warning in recwarn] == []


async def test_an_event_loop_that_is_closed_in_the_middle_is_not_kept() -> None:
    """A program that makes a loop for each job would keep all loops and their tasks."""

    async def main() -> None:
        caller = asyncio.create_task(shielded(Work().run()))
        await iterations(3)
        assert not caller.done()

    def run() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _, __: None)  # "Task was destroyed but it is pending!"
        loop.run_until_complete(main())
        loop.close()
        return weakref.ref(loop)

    kept = await asyncio.to_thread(run)
    gc.collect()
    assert kept() is None
