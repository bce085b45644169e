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
from shedlock_py.model.durations import Duration
from shedlock_py.testing import RecordingListener
from tests.support.polling import wait_until

AT_MOST = timedelta(seconds=1.5)
"""Long enough that a heartbeat begins in time, even on a busy machine."""


class SlowToFail:
    """A store that executes heartbeats. The reply is lost when keep-alive has reported the lease as lost."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.is_loss_reported = threading.Event()
        self.lost_reply = ProviderUnreachable("the reply was lost", operation="extend", lock_name="job")

    def on_lost(self, _: LeaseLost) -> None:
        self.is_loss_reported.set()


class Store(SlowToFail, InMemoryLockProvider):
    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        self.calls += 1
        extension = lease._begin_extension(lock_at_most_for)
        self._drive(self.programs.set_end(lease, 100 * extension.lock_for, releasing=False))
        assert self.is_loss_reported.wait(10)
        raise self.lost_reply


class AsyncStore(SlowToFail, AsyncInMemoryLockProvider):
    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        self.calls += 1
        extension = lease._begin_extension(lock_at_most_for)
        await self._drive(self.programs.set_end(lease, 100 * extension.lock_for, releasing=False))
        while not self.is_loss_reported.is_set():  # noqa: ASYNC110 (on_lost may be called in a thread)
            await asyncio.sleep(0.005)
        raise self.lost_reply


@pytest.mark.not_quick("waits for real seconds")
def test_i6_a_lease_that_is_lost_while_its_task_waits_is_not_extended() -> None:
    store = Store()
    with hold(LockRequest("job", AT_MOST), provider=store, keep_alive=True, on_lost=store.on_lost) as lease:
        assert lease is not None
        wait_until(lambda: store.calls > 0, what="a heartbeat")
        with pytest.raises(LeaseLostError):
            extend_lock(AT_MOST)
        assert not lease.is_trusted()


@pytest.mark.not_quick("waits for real seconds")
async def test_i6_a_lease_that_is_lost_while_its_async_task_waits_is_not_extended() -> None:
    store = AsyncStore()
    async with hold_async(LockRequest("job", AT_MOST), provider=store, keep_alive=True, on_lost=store.on_lost) as lease:
        assert lease is not None
        while not store.calls:  # noqa: ASYNC110 (the store has no event)
            await asyncio.sleep(0.005)
        with pytest.raises(LeaseLostError):
            await extend_lock_async(AT_MOST)
        assert not lease.is_trusted()


class SlowStore(InMemoryLockProvider):
    """A store that replies to an extension when keep-alive has reported the lease as lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = threading.Event()

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        extension = lease._begin_extension(lock_at_most_for)
        assert self._drive(self.programs.set_end(lease, extension.lock_for, releasing=False))
        assert self.lost.wait(10)
        return extension.granted()


@pytest.mark.not_quick("waits for real seconds")
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
