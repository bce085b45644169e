"""Electors on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLeaderElector,
    InMemoryLockProvider,
    LeadershipStopped,
    Lease,
    LockRecord,
    LockRequest,
    ProviderUnreachable,
    leader_only,
)
from shedlock_py.durations import Duration
from shedlock_py.testing import RecordingListener
from tests.election.conftest import DURATIONS

MakeElector = Callable[..., AsyncLeaderElector]


class Store(AsyncInMemoryLockProvider):
    """Can be "down" or "hanging"."""

    def __init__(self) -> None:
        self.sync = InMemoryLockProvider()
        super().__init__(shared_with=self.sync)
        self.is_down = self.hangs = False

    async def _suffer(self, operation: str) -> None:
        while self.hangs:  # noqa: ASYNC110 (a test)
            await asyncio.sleep(0.01)
        if self.is_down:
            raise ProviderUnreachable("down", operation=operation, lock_name="election") from OSError("down")

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        await self._suffer("extend")
        return await super().extend(lease, lock_at_most_for)

    async def record(self, name: str) -> LockRecord | None:
        await self._suffer("record")
        return await super().record(name)


@pytest.fixture
async def store() -> Store:
    return Store()


@pytest.fixture
async def make_elector(store: Store) -> AsyncIterator[MakeElector]:
    async with AsyncExitStack() as stack:

        def make(holder: str = "me", **options: Any) -> AsyncLeaderElector:
            elector = AsyncLeaderElector(store, "election", holder=holder, **{**DURATIONS, **options})
            stack.push_async_callback(elector.stop, "20s")
            return elector

        yield make
        store.is_down = store.hangs = False


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (tests poll)
            await asyncio.sleep(0.005)


async def test_life(store: Store, heard: RecordingListener) -> None:
    before = asyncio.all_tasks()
    elector = AsyncLeaderElector(store, "election", holder="me", **DURATIONS)  # type: ignore[arg-type]  # durations
    async with elector:
        assert await elector.wait_until_leader("10s")
        record = await elector.leader()
        assert record is not None
        assert (record.holder, record.fencing_token) == ("me", elector.term)
        await asyncio.sleep(1.5)
        assert elector.term == record.fencing_token
        with pytest.raises(RuntimeError, match="started already"):
            await elector.start()
    assert not elector.is_leader()
    assert await elector.leader() is None
    assert asyncio.all_tasks() == before


async def test_a_follower_follows_and_takes_over(make_elector: MakeElector) -> None:
    first, second = make_elector("first"), make_elector("second")
    await first.start()
    assert await first.wait_until_leader("10s")
    await second.start()
    assert not await second.wait_until_leader("500ms")
    taking = asyncio.create_task(second.take_over("10s"))
    while not taking.done():
        assert not (first.is_leader() and second.is_leader())
        await asyncio.sleep(0.002)
    assert taking.result()
    second.resign()
    assert await first.wait_until_leader("10s")
    assert await second.demote("1h")
    assert await second.wait_until_leader("10s")
    assert not first.is_leader()


@pytest.mark.parametrize("trouble", ["is_down", "hangs"])
async def test_i6_a_leader_without_a_store(
    make_elector: MakeElector, store: Store, heard: RecordingListener, trouble: str
) -> None:
    elector = make_elector()
    await elector.start()
    assert await elector.wait_until_leader("10s")
    setattr(store, trouble, True)
    while elector.is_leader():
        record = store.sync.record("election")
        assert record is not None
        assert record.is_held or not elector.is_leader()
        await asyncio.sleep(0.001)
    await until(lambda: heard.of(LeadershipStopped))
    assert [event.reason for event in heard.of(LeadershipStopped)] == ["unreachable"]
    setattr(store, trouble, False)
    assert await elector.wait_until_leader("10s")


async def test_an_event_loop_that_is_blocked(make_elector: MakeElector, store: Store) -> None:
    import time

    elector = make_elector()
    await elector.start()
    assert await elector.wait_until_leader("10s")
    time.sleep(0.5)  # noqa: ASYNC251 (that is the mistake)
    assert not elector.is_leader()


async def test_coroutine_callbacks_and_leadership_is_released_last(make_elector: MakeElector, store: Store) -> None:
    steps: list[str] = []
    may_end = asyncio.Event()

    async def work() -> None:
        steps.append("started")
        await may_end.wait()
        steps.append("work ended")

    async def fail() -> None:
        raise RuntimeError("of a callback")

    elector = make_elector(on_started_leading=work, on_stopped_leading=fail, on_new_leader=steps.append)
    await elector.start()
    assert await elector.wait_until_leader("10s")
    await until(lambda: len(steps) == 2)
    assert await elector.stop("1s") is False
    assert not elector.is_leader()
    assert store.sync.acquire(LockRequest("election", "1m")) is None
    may_end.set()
    assert await elector.stop("10s") is True
    assert store.sync.acquire(LockRequest("election", "1m")) is not None
    assert sorted(steps[:2]) == ["me", "started"]
    assert steps[2:] == ["work ended"]


async def test_a_sync_provider(heard: RecordingListener) -> None:
    async with AsyncLeaderElector(InMemoryLockProvider(), "election", **DURATIONS) as elector:  # type: ignore[arg-type]  # durations
        assert await elector.wait_until_leader("10s")


async def test_leader_only(make_elector: MakeElector) -> None:
    elector = make_elector()

    @leader_only(elector)
    async def tidy_up() -> str:
        return "tidied"

    assert await tidy_up() is None
    await elector.start()
    await elector.wait_until_leader("10s")
    assert await tidy_up() == "tidied"
