"""A task that extends its lease waits for a heartbeat, then for the store. The lease may be lost meanwhile."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    InMemoryLockProvider,
    Lease,
    LeaseLost,
    LeaseLostError,
    LockExtended,
    LockRequest,
    ProviderUnreachable,
    configure,
    extend_lock,
    extend_lock_async,
    hold,
    hold_async,
)
from shedlock_py.durations import Duration
from shedlock_py.testing import RecordingListener
from tests.support.polling import wait_until

AT_MOST = timedelta(seconds=1.5)
"""Long enough that a heartbeat begins in time on a busy machine."""


class SlowToFail:
    """The store carries heartbeats out, and its reply is lost until the holder trusts its lease no more."""

    calls = 0
    lost_reply = ProviderUnreachable("the reply was lost", operation="extend", lock_name="job")


class Store(InMemoryLockProvider, SlowToFail):
    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        self.calls += 1
        if self.calls > 3:
            return super().extend(lease, lock_at_most_for)
        extension = lease.begin_extension(lock_at_most_for)
        self.run(self.programs.hold(lease, 100 * extension.lock_for, releasing=False))
        wait_until(lambda: not lease.is_trusted(), what="the end of the trust window")
        raise self.lost_reply


class AsyncStore(AsyncInMemoryLockProvider, SlowToFail):
    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        self.calls += 1
        if self.calls > 3:
            return await super().extend(lease, lock_at_most_for)
        extension = lease.begin_extension(lock_at_most_for)
        await self.run(self.programs.hold(lease, 100 * extension.lock_for, releasing=False))
        while lease.is_trusted():  # noqa: ASYNC110 (no event reports the end of trust)
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)  # keep-alive reports the loss first
        raise self.lost_reply


def test_i6_a_lease_that_is_lost_while_its_task_waits_is_not_extended() -> None:
    store = Store()
    with hold(LockRequest("job", AT_MOST), provider=store, keep_alive=True, on_lost="continue") as lease:
        assert lease is not None
        wait_until(lambda: store.calls > 0, what="a heartbeat")
        with pytest.raises(LeaseLostError):
            extend_lock(AT_MOST)
        assert not lease.is_trusted()


async def test_i6_a_lease_that_is_lost_while_its_async_task_waits_is_not_extended() -> None:
    store = AsyncStore()
    async with hold_async(LockRequest("job", AT_MOST), provider=store, keep_alive=True, on_lost="continue") as lease:
        assert lease is not None
        while not store.calls:  # noqa: ASYNC110 (the store has no event)
            await asyncio.sleep(0.005)
        with pytest.raises(LeaseLostError):
            await extend_lock_async(AT_MOST)
        assert not lease.is_trusted()


class SlowStore(InMemoryLockProvider):
    """Its reply to an extension comes when keep-alive has reported the lease as lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = threading.Event()

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        extension = lease.begin_extension(lock_at_most_for)
        assert self.run(self.programs.hold(lease, extension.lock_for, releasing=False))
        assert self.lost.wait(10)
        return extension.granted()


@pytest.mark.parametrize("keep_alive", [True, False])
def test_i6_a_lease_that_is_lost_while_the_store_extends_it_does_not_count_as_extended(keep_alive: bool) -> None:
    store = SlowStore()
    listener = RecordingListener()

    def on_lost(_: LeaseLost) -> None:
        store.lost.set()

    with (
        configure(listeners=[listener]),
        hold(LockRequest("job", AT_MOST), provider=store, keep_alive=keep_alive, on_lost=on_lost) as lease,
    ):
        assert lease is not None
        with pytest.raises(LeaseLostError):
            extend_lock(AT_MOST)
        assert not lease.is_trusted()
    assert [type(event) for event in listener.events if isinstance(event, LockExtended | LeaseLost)] == [LeaseLost]
    assert not store.records("job")[0].is_held, "released at the end of the task"
