"""Tests specific to an event loop: coroutines, cancellation, and several event loops."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest

from shedlock_py import (
    AsyncLeaderElector,
    LeadershipStarted,
    LeadershipStopped,
    ProviderFailed,
    configure,
    leader_only,
)
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.forks import in_child
from tests.election.electors import DURATIONS, LONG
from tests.support.doubles import AsyncFaultyProvider
from tests.support.logs import records_of
from tests.support.loop_threads import EventLoopThread
from tests.support.polling import wait_until

MakeElector = Callable[..., AsyncLeaderElector]


@pytest.fixture
async def store() -> AsyncFaultyProvider:
    return AsyncFaultyProvider()


@pytest.fixture
async def make_elector(store: AsyncFaultyProvider) -> AsyncIterator[MakeElector]:
    async with AsyncExitStack() as stack:

        def make(holder: str = "me", **options: Any) -> AsyncLeaderElector:
            elector = AsyncLeaderElector(store, "election", holder=holder, **{**LONG, **options})
            stack.push_async_callback(elector.stop, "20s")
            return elector

        yield make
        store.recover()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (tests poll)
            await asyncio.sleep(0.005)


async def lead(elector: AsyncLeaderElector) -> None:
    await elector.start()
    assert await elector.wait_until_leader("10s")


async def test_an_elector_leaves_no_task_behind(store: AsyncFaultyProvider, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("of an ordinary callback")

    async def fail_later() -> None:
        raise ValueError("of a coroutine callback")

    before = asyncio.all_tasks()
    elector = AsyncLeaderElector(store, "election", **DURATIONS, on_stopped_leading=fail_later)
    elector.add_callbacks(on_stopped_leading=fail)
    async with elector:
        assert await elector.wait_until_leader("10s")
    assert not elector.is_leader()
    assert await elector.leader() is None
    assert asyncio.all_tasks() == before
    assert "of an ordinary callback" in caplog.text
    assert "of a coroutine callback" in caplog.text


@pytest.mark.not_quick("waits for real seconds")
async def test_i6_a_leader_whose_event_loop_is_blocked(make_elector: MakeElector) -> None:
    elector = make_elector(**DURATIONS)
    await lead(elector)
    time.sleep(1.3)  # noqa: ASYNC251 (that is the mistake)
    assert not elector.is_leader()


@pytest.mark.parametrize("wrapped", [False, True])
async def test_stop_in_a_coroutine_callback_returns_at_once(make_elector: MakeElector, wrapped: bool) -> None:
    stopped: list[bool] = []

    async def work() -> None:
        if wrapped:
            stopped.append(await asyncio.wait_for(elector.stop(), 60))  # in Python 3.11 a separate task
        else:
            stopped.append(await elector.stop())

    elector = make_elector(on_started_leading=work)
    await elector.start()
    await until(lambda: stopped == [False])
    assert await elector.stop("10s")


async def test_a_task_that_a_callback_has_left_behind_waits_in_stop(make_elector: MakeElector) -> None:
    tasks: list[asyncio.Task[bool]] = []

    def work() -> None:
        tasks.append(asyncio.create_task(elector.stop()))

    elector = make_elector(on_started_leading=work)
    await elector.start()
    await until(lambda: tasks)
    async with asyncio.timeout(10):
        assert await tasks[0] is True


async def test_leader_only_of_a_coroutine_function(make_elector: MakeElector) -> None:
    elector = make_elector()

    @leader_only(elector)
    async def tidy_up() -> str:
        return "tidied"

    assert await tidy_up() is None
    await lead(elector)
    assert await tidy_up() == "tidied"


# A campaign that ends


@pytest.mark.parametrize("leads", [True, False])
async def test_a_campaign_that_is_cancelled_resigns(
    make_elector: MakeElector, listener: RecordingListener, caplog: pytest.LogCaptureFixture, leads: bool
) -> None:
    """Callers that wait for the node to lead continue."""
    if not leads:
        await lead(make_elector("leader"))
    called: list[str] = []

    async def stop_work() -> None:
        await asyncio.sleep(0.1)
        called.append("stopped")

    elector = make_elector(on_stopped_leading=stop_work)
    campaign = await started(elector)
    if leads:
        assert await elector.wait_until_leader("10s")
    waiting = [asyncio.create_task(call()) for call in (elector.wait_until_leader, elector.take_over)]
    await asyncio.sleep(0)
    campaign.cancel()
    await until(campaign.done)
    assert campaign.cancelled()
    assert not elector.is_leader()
    assert called == ["stopped"] * leads
    assert [event.reason for event in listener.of(LeadershipStopped)] == ["resigned"] * leads
    assert (await elector.leader() is None) is leads, "the lease of this node is released"
    assert "expires" not in caplog.text
    async with asyncio.timeout(10):
        assert await elector.wait_until_leader() is False
        assert await elector.take_over() is False
        await asyncio.gather(*waiting)


async def started(elector: AsyncLeaderElector) -> asyncio.Task[Any]:
    """Start the elector, and return its task."""
    before = asyncio.all_tasks()
    await elector.start()
    (campaign,) = asyncio.all_tasks() - before
    return campaign


@pytest.mark.parametrize("end", ["cancelled again", "time limit"])
async def test_a_cancelled_campaign_does_not_wait_for_callbacks_without_limit(
    make_elector: MakeElector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It renews the lease while it waits, then lets it expire: two leaders must not work at once."""
    called: list[None] = []
    may_return = asyncio.Event()

    async def stop_work() -> None:
        called.append(None)
        await may_return.wait()

    if end == "time limit":
        monkeypatch.setattr("shedlock_py.election.async_elector.ABANDON_SECONDS", 0.3)
    elector = make_elector(on_stopped_leading=stop_work)
    campaign = await started(elector)
    assert await elector.wait_until_leader("10s")
    campaign.cancel()
    await until(lambda: called)
    assert not campaign.done()
    if end == "cancelled again":
        campaign.cancel()
    await until(campaign.done)
    assert campaign.cancelled()
    assert "cancelled before its callbacks returned: the lease expires" in caplog.text
    assert await elector.leader() is not None
    may_return.set()


def test_asyncio_run_ends_with_a_release(listener: RecordingListener) -> None:
    """A signal handler raises SystemExit in the event loop, and ``asyncio.run()`` then cancels all tasks at once."""
    store = AsyncFaultyProvider(delay=0.02)
    renewals: list[None] = []

    async def main() -> None:
        elector = AsyncLeaderElector(store, "election", on_stopped_leading=hand_over, **LONG)
        elector.add_callbacks(on_renewed=lambda: renewals.append(None))
        async with elector:
            await until(lambda: renewals)
            asyncio.get_running_loop().call_soon(sys.exit, 143)
            await asyncio.sleep(20)

    async def hand_over() -> None:
        before = store.calls["extend"]
        await until(lambda: store.calls["extend"] > before + 2)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert [event.reason for event in listener.of(LeadershipStopped)] == ["resigned"]
    assert store.calls["release"] == 1
    assert asyncio.run(store.inner.record("election")).is_held is False


def test_a_callback_that_calls_sys_exit_ends_the_program_and_the_leadership(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python's tasks do so. If the program continues the event loop, its elector no longer leads."""
    loop = asyncio.new_event_loop()

    def leave() -> None:
        raise SystemExit(3)

    async def leave_later() -> None:
        leave()

    for callback in (leave, leave_later):
        elector = AsyncLeaderElector(AsyncFaultyProvider(), "election", on_started_leading=callback, **LONG)
        loop.run_until_complete(elector.start())
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.wait_for(asyncio.sleep(20), 20))
        assert loop.run_until_complete(asyncio.wait_for(elector.stop(), 10))
        assert not elector.is_leader()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        assert loop.run_until_complete(elector.leader()) is None, "the lease is released"
    loop.close()
    assert "the elector has failed" not in caplog.text


def test_ctrl_c_in_a_listener_keeps_no_callback_from_being_called() -> None:
    loop = asyncio.new_event_loop()
    called: list[str] = []
    callbacks: dict[str, Any] = {
        "on_started_leading": lambda: called.append("started"),
        "on_stopped_leading": lambda: called.append("stopped"),
    }

    def leave(event: object) -> None:
        if isinstance(event, LeadershipStarted | LeadershipStopped):
            raise KeyboardInterrupt

    elector = AsyncLeaderElector(AsyncFaultyProvider(), "election", **callbacks, **LONG)
    with configure(listeners=[leave]):
        loop.run_until_complete(elector.start())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait_for(asyncio.sleep(20), 20))
    assert called == ["started", "stopped"]
    assert not elector.is_leader()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


# Several event loops


@pytest.fixture
def other_loop() -> Iterator[EventLoopThread]:
    with closing(EventLoopThread()) as loop:
        yield loop


def test_resign_and_stop_from_other_threads(other_loop: EventLoopThread) -> None:
    """The elector's event loop is idle: only a thread-safe call wakes it."""
    stopped: list[None] = []
    options = {**LONG, "retry_period": "10m"}
    elector = AsyncLeaderElector(
        AsyncFaultyProvider(), "election", on_stopped_leading=lambda: stopped.append(None), **options
    )
    other_loop.run(elector.start())
    assert asyncio.run(elector.wait_until_leader("10s")), "waited for on another event loop"
    elector.resign()
    wait_until(lambda: stopped, what="the loop of the elector was woken")

    async def wait_and_stop() -> list[bool]:
        waiting = asyncio.create_task(elector.wait_until_leader())
        await asyncio.sleep(0)
        stopping = await elector.stop("10s")
        return [stopping, await waiting]

    assert asyncio.run(wait_and_stop()) == [True, False]
    assert other_loop.run(elector.stop("1s"))


def long_lived_elector() -> AsyncLeaderElector:
    """Make an elector that leads on even if the machine stands still for a second."""
    durations: dict[str, Any] = {"lease_duration": "2s", "renew_deadline": "1500ms", "retry_period": "50ms"}
    return AsyncLeaderElector(AsyncFaultyProvider(), "election", holder="me", **durations)


async def lead_for_a_while(elector: AsyncLeaderElector, listener: RecordingListener) -> None:
    """Renew the lease, and release it at the end."""
    renewals: list[None] = []
    elector.add_callbacks(on_renewed=lambda: renewals.append(None))
    listener.events.clear()
    async with elector:
        assert await elector.wait_until_leader("10s")
        await until(lambda: len(renewals) > 6 or listener.of(LeadershipStopped))
        assert elector.is_leader()
    assert [event.reason for event in listener.of(LeadershipStopped)] == ["resigned"]
    assert not listener.of(ProviderFailed)
    assert await elector.leader() is None, "it was not released"


@pytest.mark.not_quick("waits for real seconds")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_started_again_on_another_event_loop_and_in_a_forked_child(listener: RecordingListener) -> None:
    elector = long_lived_elector()
    for _ in range(2):
        asyncio.run(lead_for_a_while(elector, listener))
    in_child(lambda: asyncio.run(lead_for_a_while(elector, listener)))


@pytest.mark.not_quick("waits for real seconds")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the tasks on the closed loop
def test_started_again_after_its_event_loop_was_closed(listener: RecordingListener) -> None:
    """One loop closed while a task waited for the elector, one while it led: both leave the next loop working."""
    elector = long_lived_elector()
    earlier, first = asyncio.new_event_loop(), asyncio.new_event_loop()
    waiting = earlier.create_task(elector.wait_until_leader("1h"))
    earlier.run_until_complete(asyncio.sleep(0))
    earlier.close()
    first.run_until_complete(elector.start())
    assert first.run_until_complete(elector.wait_until_leader("10s"))
    first.close()

    async def stop_what_cannot_continue() -> bool:
        async with asyncio.timeout(10):
            return await elector.stop()

    assert asyncio.run(stop_what_cannot_continue())
    asyncio.run(lead_for_a_while(elector, listener))
    task = weakref.ref(waiting)
    del earlier, first, waiting
    gc.collect()  # asyncio warns of the tasks on the closed loops
    assert task() is None, "the elector keeps no task of a closed loop"


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
async def test_an_ordinary_callback_that_raises_what_ends_a_task(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """``task.result()`` of a cancelled task raises this. Neither the election nor the leadership ends."""

    def fail() -> None:
        raise kind

    elector = long_lived_elector()
    elector.add_callbacks(on_renewed=fail)
    async with elector:
        assert await elector.wait_until_leader("10s")
        await until(lambda: caplog.text.count("failed") >= 3)
        assert elector.is_leader()


def test_a_coroutine_callback_that_the_end_of_the_event_loop_cancels_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        has_begun = asyncio.Event()

        async def work() -> None:
            has_begun.set()
            await asyncio.Event().wait()

        elector = long_lived_elector()
        elector.add_callbacks(on_started_leading=work)
        await elector.start()
        await has_begun.wait()

    asyncio.run(main())
    assert records_of(caplog, level=logging.ERROR) == []


async def test_a_take_over_whose_caller_gives_up_does_not_happen_later() -> None:
    store = AsyncFaultyProvider()
    durations: dict[str, Any] = {"lease_duration": "1h", "renew_deadline": "50m", "retry_period": "50ms"}
    async with AsyncLeaderElector(store, "election", holder="leader", **durations) as leader:
        assert await leader.wait_until_leader("10s")
        async with AsyncLeaderElector(store, "election", holder="other", **durations) as other:
            store.fail()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await other.take_over()
            for _ in range(20):
                await asyncio.sleep(0)  # a running request has failed
            failed, before = store.calls["take_over"], store.calls["record"]
            store.recover()
            await until(lambda: store.calls["record"] > before + 3)
            assert leader.is_leader()
            assert store.calls["take_over"] == failed
