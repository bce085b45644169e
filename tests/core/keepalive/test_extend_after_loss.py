"""A task that extends its lease waits for a heartbeat first. If the lease is lost meanwhile, it is not extended."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    InMemoryLockProvider,
    Lease,
    LeaseLostError,
    LockRequest,
    ProviderUnreachable,
    extend_lock,
    extend_lock_async,
    hold,
    hold_async,
)
from shedlock_py.durations import Duration
from tests.support.polling import wait_until

AT_MOST = timedelta(seconds=0.3)


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
