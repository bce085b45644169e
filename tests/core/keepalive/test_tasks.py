"""Keep-alive of async tasks, in virtual time. On stores in threads: ``test_sync_stores.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from shedlock_py import (
    LeaseLost,
    LeaseLostError,
    LockExtended,
    LockRequest,
    ProviderFailed,
    TaskFinished,
    attempt_async,
    extend_lock_async,
    hold_async,
)
from shedlock_py.testing import FakeClock, RecordingListener
from tests.support.doubles import AsyncFaultyProvider
from tests.support.logs import warnings_of
from tests.support.polling import until

LEASE = 0.9


@pytest.fixture
def anyio_backend(virtual_backend: object) -> object:
    return virtual_backend


@pytest.fixture
async def store(virtual_time: FakeClock) -> AsyncFaultyProvider:
    return AsyncFaultyProvider(clock=virtual_time)


async def never_ends() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("fault", ["fail", "hang"])
async def test_i6_cancelled_when_the_store_stays_away(
    store: AsyncFaultyProvider, recorded: RecordingListener, fault: str
) -> None:
    async def job() -> None:
        getattr(store, fault)("extend")
        asyncio.get_running_loop().call_later(LEASE * 3, store.recover)
        await never_ends()

    with pytest.raises(LeaseLostError, match="'job'"):
        await attempt_async("job", job, lock_at_most_for=LEASE, keep_alive=True, on_lost="cancel", provider=store)
    assert [event.reason for event in recorded.of(LeaseLost)] == ["unreachable"]
    [finished] = recorded.of(TaskFinished)
    assert (finished.outcome, type(finished.error)) == ("cancelled", LeaseLostError)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_block_that_another_task_leaves_is_a_warning(
    store: AsyncFaultyProvider, caplog: pytest.LogCaptureFixture
) -> None:
    block = hold_async("job", lock_at_most_for=LEASE, keep_alive=True, on_lost="cancel", provider=store)
    await block.__aenter__()
    await asyncio.create_task(block.__aexit__(None, None, None))
    [message] = warnings_of(caplog)
    assert "'job'" in message
    assert "another task has left it" in message


async def test_a_revoked_lease_cancels_at_the_next_heartbeat(
    store: AsyncFaultyProvider, recorded: RecordingListener
) -> None:
    async def job() -> None:
        store.sync.take_over(LockRequest("job", "1m"))
        await never_ends()

    with pytest.raises(LeaseLostError):
        await attempt_async("job", job, lock_at_most_for=LEASE, keep_alive=True, on_lost="cancel", provider=store)
    assert [event.reason for event in recorded.of(LeaseLost)] == ["revoked"]
    record = await store.record("job")
    assert record is not None
    assert record.is_held


async def test_on_lost_may_be_a_coroutine_function(store: AsyncFaultyProvider) -> None:
    steps: list[str] = []

    async def on_lost(lost: LeaseLost) -> None:
        steps.append(lost.reason)
        await asyncio.sleep(0.02)
        steps.append("later")

    async with hold_async("job", lock_at_most_for=LEASE, on_lost=on_lost, provider=store):
        await until(lambda: steps)
    await until(lambda: steps == ["overrun", "later"])


async def test_an_event_loop_that_is_blocked_is_an_overrun(
    store: AsyncFaultyProvider, recorded: RecordingListener, virtual_time: FakeClock
) -> None:
    async def job() -> None:
        virtual_time.advance(LEASE * 1.2)  # as by time.sleep()
        await never_ends()

    with pytest.raises(LeaseLostError):
        await attempt_async("job", job, lock_at_most_for=LEASE, keep_alive=True, on_lost="cancel", provider=store)
    assert [event.reason for event in recorded.of(LeaseLost)] == ["overrun"]


async def test_a_cancellation_by_other_code_stays_one(store: AsyncFaultyProvider, recorded: RecordingListener) -> None:
    async def job() -> None:
        async with hold_async("job", lock_at_most_for="1m", keep_alive=True, on_lost="cancel", provider=store):
            await never_ends()

    task = asyncio.create_task(job())
    await until(lambda: store.sync.record("job"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not recorded.of(LeaseLost)
    record = await store.record("job")
    assert record is not None
    assert not record.is_held


async def test_a_cancellation_by_other_code_after_that_of_a_lost_lease_stays_one(store: AsyncFaultyProvider) -> None:
    cleans_up = asyncio.Event()

    async def job() -> None:
        store.sync.take_over(LockRequest("job", "1m"))
        try:
            await never_ends()
        finally:
            cleans_up.set()
            await never_ends()

    guarded = attempt_async("job", job, lock_at_most_for=LEASE, keep_alive=True, on_lost="cancel", provider=store)
    task = asyncio.create_task(guarded)
    await cleans_up.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_lost_lease_of_a_task_that_was_cancelled_before_is_reported_as_one(store: AsyncFaultyProvider) -> None:
    """A task cleans up under a lock after its cancellation."""

    async def clean_up() -> None:
        async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, on_lost="cancel", provider=store):
            store.sync.take_over(LockRequest("job", "1m"))
            await never_ends()

    async def job() -> None:
        try:
            await never_ends()
        except asyncio.CancelledError:
            with pytest.raises(LeaseLostError):
                await clean_up()

    task = asyncio.create_task(job())
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert task.cancelling() == 1


async def test_i8_a_task_that_ends_before_it_is_cancelled_keeps_its_value(store: AsyncFaultyProvider) -> None:
    async def job() -> str:
        store.sync.take_over(LockRequest("job", "1m"))
        with pytest.raises(LeaseLostError):
            await extend_lock_async("1m")
        return "value"  # in the same iteration of the event loop

    result = await attempt_async("job", job, lock_at_most_for="1m", keep_alive=True, on_lost="cancel", provider=store)
    assert getattr(result, "value", None) == "value"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_i8_a_task_that_swallows_its_cancellation_keeps_its_value(store: AsyncFaultyProvider) -> None:
    async def job() -> str:
        store.sync.take_over(LockRequest("job", "1m"))
        try:
            await never_ends()
        except asyncio.CancelledError:
            return "value"
        return "never"

    result = await attempt_async("job", job, lock_at_most_for=LEASE, keep_alive=True, on_lost="cancel", provider=store)
    assert getattr(result, "value", None) == "value"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_i8_an_exception_of_the_task_stays(store: AsyncFaultyProvider) -> None:
    async def job() -> None:
        store.sync.take_over(LockRequest("job", "1m"))
        try:
            await never_ends()
        finally:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await attempt_async("job", job, lock_at_most_for=LEASE, keep_alive=True, on_lost="cancel", provider=store)


async def test_a_heartbeat_for_which_no_task_could_be_made_is_tried_again(
    store: AsyncFaultyProvider, recorded: RecordingListener
) -> None:
    errors = [MemoryError(), MemoryError()]

    def failing_factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if errors and "TaskKeepAlive" in repr(coro):
            coro.close()
            raise errors.pop()
        return asyncio.Task(coro, loop=loop, **options)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(failing_factory)
    try:
        async with hold_async("job", lock_at_most_for="2s", keep_alive=True, provider=store):
            await until(lambda: recorded.of(LockExtended))
    finally:
        loop.set_task_factory(None)
    assert [type(event.error) for event in recorded.of(ProviderFailed)] == [MemoryError] * 2
    assert not recorded.of(LeaseLost)


async def test_i4_the_release_waits_for_the_last_heartbeat(store: AsyncFaultyProvider) -> None:
    """In a table without tokens, a heartbeat after the release would hold the lock again."""
    async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
        store.hang("extend")
        await until(lambda: store.calls["extend"])
        asyncio.get_running_loop().call_later(LEASE / 3, store.recover)
    assert store.busy["extend"] == 0
    assert not store.sync.records("job")[0].is_held


async def test_no_task_of_keep_alive_is_left_running(store: AsyncFaultyProvider) -> None:
    before = asyncio.all_tasks()
    works: list[Awaitable[object]] = [
        attempt_async(f"job-{n}", lambda: asyncio.sleep(LEASE), lock_at_most_for=LEASE, keep_alive=True, provider=store)
        for n in range(50)
    ]
    await asyncio.gather(*works)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
