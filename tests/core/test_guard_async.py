"""hold_async and attempt_async: they differ from their sync twins in cancellation."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    Executed,
    InMemoryLockProvider,
    Lease,
    LockRequest,
    Skipped,
    TaskFinished,
    attempt_async,
    configure,
    hold_async,
)
from shedlock_py.testing import FakeClock, RecordingListener

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(clock: FakeClock, recorded: RecordingListener) -> AsyncIterator[AsyncInMemoryLockProvider]:
    store = AsyncInMemoryLockProvider(clock=clock)
    with configure(async_provider=store, listeners=[recorded]):
        yield store


class SlowRelease(AsyncInMemoryLockProvider):
    """Stops in the middle of a release until ``may_go_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def release(self, lease: Lease) -> bool:
        self.has_begun.set()
        await self.may_go_on.wait()
        return await super().release(lease)


async def value() -> str:
    return "value"


async def fail() -> str:
    raise ZeroDivisionError


async def never() -> None:
    pytest.fail("the task ran")


@pytest.mark.parametrize("error", [RuntimeError("a bug in the provider"), SystemExit(1)], ids=repr)
async def test_i8_a_release_that_raises_anything(store: AsyncInMemoryLockProvider, error: BaseException) -> None:
    class Broken(AsyncInMemoryLockProvider):
        async def release(self, lease: object) -> bool:
            raise error

    assert isinstance(await attempt_async("job", value, provider=Broken()), Executed)


async def test_runs_and_skips(store: AsyncInMemoryLockProvider, recorded: RecordingListener) -> None:
    result = await attempt_async("job", value)
    assert isinstance(result, Executed)
    assert result.value == "value"
    async with hold_async("job") as lease:
        assert lease is not None
    assert recorded.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"] * 2
    await store.acquire(LockRequest("job", "10m"))
    assert await attempt_async("job", never) == Skipped("job", "held")
    with pytest.raises(ZeroDivisionError):
        await attempt_async("other", fail)
    record = await store.record("other")
    assert record is not None
    assert not record.is_held


async def test_i12_a_cancelled_task_is_released(store: AsyncInMemoryLockProvider, recorded: RecordingListener) -> None:
    task = asyncio.create_task(attempt_async("job", lambda: asyncio.sleep(3600)))
    while not await store.records():  # noqa: ASYNC110 (another task ends it)
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.outcome for event in recorded.of(TaskFinished)] == ["cancelled"]
    assert await store.acquire(LockRequest("job", "10m"))


async def test_a_timeout_is_a_failure_and_no_cancellation(
    store: AsyncInMemoryLockProvider, recorded: RecordingListener
) -> None:
    async def task() -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(3600)

    with pytest.raises(TimeoutError):
        await attempt_async("job", task)
    assert [event.outcome for event in recorded.of(TaskFinished)] == ["failed"]


async def test_i12_a_release_is_finished_although_its_caller_is_cancelled(recorded: RecordingListener) -> None:
    store = SlowRelease()
    task = asyncio.create_task(attempt_async("job", value, provider=store))
    await store.has_begun.wait()
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()  # it waits for the release
    store.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.acquire(LockRequest("job", "10m"))


async def test_releases_work_when_the_default_pool_is_full_of_jobs() -> None:
    """Jobs in asyncio.to_thread that wait for a lock's release must not take all threads from that release."""
    store = InMemoryLockProvider()
    released = threading.Event()
    async with hold_async("job", provider=store):
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(None, released.wait, 10) for _ in range(64)]
    released.set()
    assert all(await asyncio.gather(*jobs))


async def test_many_event_loops_use_one_sync_provider() -> None:
    store = InMemoryLockProvider()
    configure(provider=store)

    def in_its_own_loop() -> object:
        return asyncio.run(attempt_async("job", value))

    for _ in range(3):
        assert isinstance(await asyncio.to_thread(in_its_own_loop), Executed)
