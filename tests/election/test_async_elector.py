"""Electors on an event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from shedlock_py import (
    AsyncLeaderElector,
    InMemoryLockProvider,
    LeadershipStopped,
    LockRequest,
    ProviderFailed,
    leader_only,
)
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.forks import in_child
from tests.election.conftest import DURATIONS
from tests.support.doubles import AsyncFaultyProvider

MakeElector = Callable[..., AsyncLeaderElector]


@pytest.fixture
async def store() -> AsyncFaultyProvider:
    return AsyncFaultyProvider()


@pytest.fixture
async def make_elector(store: AsyncFaultyProvider) -> AsyncIterator[MakeElector]:
    async with AsyncExitStack() as stack:

        def make(holder: str = "me", **options: Any) -> AsyncLeaderElector:
            elector = AsyncLeaderElector(store, "election", holder=holder, **{**DURATIONS, **options})
            stack.push_async_callback(elector.stop, "20s")
            return elector

        yield make
        store.recover()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (tests poll)
            await asyncio.sleep(0.005)


async def test_life(store: AsyncFaultyProvider, heard: RecordingListener) -> None:
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


@pytest.mark.parametrize("fault", ["fail", "hang"])
async def test_i6_a_leader_without_a_store(
    make_elector: MakeElector, store: AsyncFaultyProvider, heard: RecordingListener, fault: str
) -> None:
    elector = make_elector()
    await elector.start()
    assert await elector.wait_until_leader("10s")
    getattr(store, fault)("extend", "record")
    while elector.is_leader():
        record = store.sync.record("election")
        assert record is not None
        assert record.is_held or not elector.is_leader()
        await asyncio.sleep(0.001)
    await until(lambda: heard.of(LeadershipStopped))
    assert [event.reason for event in heard.of(LeadershipStopped)] == ["unreachable"]
    store.recover()
    assert await elector.wait_until_leader("10s")


async def test_an_event_loop_that_is_blocked(make_elector: MakeElector, store: AsyncFaultyProvider) -> None:
    import time

    elector = make_elector()
    await elector.start()
    assert await elector.wait_until_leader("10s")
    time.sleep(0.5)  # noqa: ASYNC251 (that is the mistake)
    assert not elector.is_leader()


async def test_coroutine_callbacks_and_leadership_is_released_last(
    make_elector: MakeElector, store: AsyncFaultyProvider
) -> None:
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


# Started again


def patient_elector() -> AsyncLeaderElector:
    """It leads on where the machine stands still for a second."""
    return AsyncLeaderElector(
        AsyncFaultyProvider(),
        "election",
        holder="me",
        lease_duration="2s",
        renew_deadline="1500ms",
        retry_period="50ms",
    )


async def lead_for_a_while(elector: AsyncLeaderElector, heard: RecordingListener) -> None:
    """It renews its lease, and at the end gives it back."""
    renewals: list[None] = []
    elector.add_callbacks(on_renewed=lambda: renewals.append(None))
    heard.events.clear()
    async with elector:
        assert await elector.wait_until_leader("10s")
        await until(lambda: len(renewals) > 6 or heard.of(LeadershipStopped))
        assert elector.is_leader()
    assert [event.reason for event in heard.of(LeadershipStopped)] == ["resigned"]
    assert not heard.of(ProviderFailed)
    assert await elector.leader() is None, "it was not released"


def test_started_again_on_another_event_loop(heard: RecordingListener) -> None:
    elector = patient_elector()
    for _ in range(2):
        asyncio.run(lead_for_a_while(elector, heard))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_started_again_in_a_forked_child(heard: RecordingListener) -> None:
    elector = patient_elector()
    asyncio.run(lead_for_a_while(elector, heard))
    in_child(lambda: asyncio.run(lead_for_a_while(elector, heard)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what was left on the closed loop
def test_started_again_after_its_event_loop_was_closed(heard: RecordingListener) -> None:
    """Closed while it led, and with somebody who waited: neither stops it on the next loop."""
    elector = patient_elector()
    first = asyncio.new_event_loop()
    waiting = first.create_task(elector._wait_for(lambda: False, None))
    first.run_until_complete(elector.start())
    assert first.run_until_complete(elector.wait_until_leader("10s"))
    first.run_until_complete(until(lambda: not any(waiter._event.is_set() for waiter in elector._waiters)))
    first.close()
    assert not waiting.done()

    async def stop_what_cannot_go_on() -> bool:
        async with asyncio.timeout(10):
            return await elector.stop()

    assert asyncio.run(stop_what_cannot_go_on())
    asyncio.run(lead_for_a_while(elector, heard))


async def test_who_waits_before_it_is_started(make_elector: MakeElector) -> None:
    elector = make_elector()
    waiting = asyncio.create_task(elector.wait_until_leader("20s"))
    await asyncio.sleep(0)
    assert elector._waiters
    await elector.start()
    async with asyncio.timeout(10):
        assert await waiting


async def test_a_campaign_that_fails_ends_the_leadership(
    make_elector: MakeElector, heard: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("nobody expects it")

    elector = make_elector(lease_duration="1h", renew_deadline="50m")
    elector._callbacks.call_renewed = fail  # type: ignore[method-assign]  # fails inside the campaign
    await elector.start()
    assert await elector.wait_until_leader("10s")
    await until(lambda: heard.of(LeadershipStopped))
    assert not elector.is_leader()
    assert [event.reason for event in heard.of(LeadershipStopped)] == ["unreachable"]
    assert await elector.stop("10s")
    assert "nobody expects it" in caplog.text
