"""Listeners, ``on_lost`` and stores raise errors of every kind on the event loop: heartbeats go on. In virtual time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from shedlock_py import (
    Executed,
    Lease,
    LeaseLost,
    LockExtended,
    ProviderFailed,
    attempt_async,
    configure,
    hold_async,
)
from shedlock_py.model.durations import Duration
from shedlock_py.testing import FakeClock, RecordingListener
from tests.core.keepalive.test_callbacks import failing
from tests.support.doubles import AsyncFaultyProvider
from tests.support.logs import records_of
from tests.support.polling import until

LEASE = 0.9
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def anyio_backend(virtual_backend: object) -> object:
    return virtual_backend


@pytest.fixture
async def store(virtual_time: FakeClock) -> AsyncFaultyProvider:
    return AsyncFaultyProvider(clock=virtual_time)


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        *((where, kind) for where in ("on_lost", "listener") for kind in (SystemExit, GeneratorExit, BaseException)),
        *(("coroutine", kind) for kind in (SystemExit, BaseException)),  # Python closes a coroutine with GeneratorExit
    ],
)
async def test_async_callbacks_of_lost_leases(
    where: str,
    kind: type[BaseException],
    store: AsyncFaultyProvider,
    recorded: RecordingListener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio would let SystemExit out of the event loop, past all tasks."""
    called: list[str] = []

    async def in_coroutine(lost: LeaseLost) -> None:
        await asyncio.sleep(0)
        called.append("coroutine")
        raise kind("of a callback")

    def at_once(lost: LeaseLost) -> None:
        called.append("on_lost")
        raise kind("of a callback")

    on_lost = {"on_lost": at_once, "coroutine": in_coroutine, "listener": lambda lost: called.append("listener")}
    with configure(listeners=[failing(kind, LeaseLost), recorded] if where == "listener" else [recorded]):
        async with AsyncExitStack() as stack:
            for name, keep_alive in (("kept", True), ("watched", False)):
                guard = hold_async(
                    name, lock_at_most_for=LEASE, keep_alive=keep_alive, on_lost=on_lost[where], provider=store
                )
                assert await stack.enter_async_context(guard) is not None
                store.sync.force_release(name)
            await until(lambda: len(recorded.of(LeaseLost)) == len(called) == 2)
            await asyncio.sleep(0)
    recorded.events.clear()
    assert records_of(caplog, "failed")
    result = await attempt_async("other", lambda: asyncio.sleep(LEASE * 1.2, "value"), lock_at_most_for=LEASE,
                                 keep_alive=True, provider=store)  # fmt: skip
    assert isinstance(result, Executed)
    assert result.lease.has_ended()
    assert not recorded.of(LeaseLost)


async def test_a_coroutine_of_on_lost_that_awaits_what_is_cancelled_is_logged(
    store: AsyncFaultyProvider, caplog: pytest.LogCaptureFixture
) -> None:
    async def stop_work(lost: LeaseLost) -> None:
        work = asyncio.ensure_future(asyncio.sleep(60))
        work.cancel()
        await work

    async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, on_lost=stop_work, provider=store):
        store.sync.force_release("job")
        await until(lambda: records_of(caplog, "on_lost of lock 'job' failed"))


class AsyncExiting(AsyncFaultyProvider):
    """For example, its engine has a hook of the application that calls ``sys.exit()``."""

    def __init__(self, failures: list[type[BaseException]], clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.failures = failures

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        if self.failures:
            raise self.failures.pop()("of the store")
        extended: Lease | None = await super().extend(lease, lock_at_most_for)
        return extended


async def test_an_async_store_that_raises_what_would_end_the_event_loop(
    virtual_time: FakeClock, recorded: RecordingListener
) -> None:
    """KeyboardInterrupt and GeneratorExit may end an event loop."""
    store = AsyncExiting([SystemExit, BaseException], virtual_time)
    async with AsyncExitStack() as stack:
        for number in range(2):
            guard = hold_async(f"job-{number}", lock_at_most_for="2s", keep_alive=True, provider=store)
            await stack.enter_async_context(guard)
        await until(lambda: len({event.lock_name for event in recorded.of(LockExtended)}) == 2)
    assert len(recorded.of(ProviderFailed)) == 2
    assert not recorded.of(LeaseLost)


async def test_code_that_cancels_all_tasks_but_the_guarded_one(
    store: AsyncFaultyProvider, recorded: RecordingListener
) -> None:
    """Many applications do so at shutdown, to let one task finish."""
    async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
        assert lease is not None
        for _ in range(2):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                if "keepalive.py" in repr(task):
                    task.cancel()
            extended = len(recorded.of(LockExtended))
            await until(lambda: len(recorded.of(LockExtended)) >= extended + 2)  # noqa: B023 (called at once)
        assert lease.is_trusted()
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if "keepalive.py" in repr(task)]
    assert not recorded.of(LeaseLost)


async def test_a_heartbeat_that_is_cancelled_before_its_first_step(
    store: AsyncFaultyProvider, recorded: RecordingListener, virtual_time: FakeClock
) -> None:
    async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
        heartbeats: list[asyncio.Task[Any]] = []
        async with asyncio.timeout(10):
            while not heartbeats:  # in each iteration of the event loop
                virtual_time.advance(0.01)
                await asyncio.sleep(0)
                heartbeats = [task for task in asyncio.all_tasks() if "keepalive.py" in repr(task)]
        heartbeats[0].cancel()
        await asyncio.wait(heartbeats)
        assert store.calls["extend"] == 0
        await until(lambda: recorded.of(LockExtended))
    assert not recorded.of(LeaseLost)


async def test_a_heartbeat_that_is_cancelled_while_it_waits_for_the_store(
    store: AsyncFaultyProvider, recorded: RecordingListener
) -> None:
    """The store has not failed, so the next heartbeat is sent."""
    store.hang("extend")
    async with hold_async("job", lock_at_most_for="2s", keep_alive=True, provider=store):
        await until(lambda: store.calls["extend"])
        (heartbeat,) = [task for task in asyncio.all_tasks() if "keepalive.py" in repr(task)]
        heartbeat.cancel()
        with pytest.raises(asyncio.CancelledError):
            await heartbeat
        store.recover()
        await until(lambda: recorded.of(LockExtended))
    assert not recorded.of(ProviderFailed)
    assert not recorded.of(LeaseLost)
