"""What test_elector_faults.py is about, on an event loop; and electors that several event loops have to do with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLeaderElector,
    InMemoryLockProvider,
    LeadershipStopped,
    LockRequest,
)
from shedlock_py.testing import RecordingListener
from tests.election.test_async_elector import until
from tests.support.polling import wait_until

LONG: dict[str, Any] = {"lease_duration": "1h", "renew_deadline": "50m", "retry_period": "50ms"}
"""Nothing but what the test does ends such a leadership."""


@pytest.fixture
def store() -> InMemoryLockProvider:
    return InMemoryLockProvider()


@pytest.fixture
def make_elector(store: InMemoryLockProvider) -> Callable[..., AsyncLeaderElector]:
    def make(holder: str = "me", **options: Any) -> AsyncLeaderElector:
        shared = AsyncInMemoryLockProvider(shared_with=store)
        return AsyncLeaderElector(shared, "election", holder=holder, **{**LONG, **options})

    return make


MakeElector = Callable[..., AsyncLeaderElector]


# stop() and resign()


@pytest.mark.parametrize("wrapped", [False, True])
async def test_stop_in_a_callback_returns_at_once_and_the_lease_is_released(
    make_elector: MakeElector, store: InMemoryLockProvider, wrapped: bool
) -> None:
    stopped: list[bool] = []

    async def work() -> None:
        if wrapped:
            stopped.append(await asyncio.wait_for(elector.stop(), 60))  # in Python 3.11 a task of its own
        else:
            stopped.append(await elector.stop())

    elector = make_elector(on_started_leading=work)
    await elector.start()
    await until(lambda: stopped == [False])
    assert not elector.is_leader()
    assert await elector.stop("10s")
    assert store.acquire(LockRequest("election", "1m")) is not None


async def test_a_task_that_a_callback_has_left_behind_waits_in_stop(make_elector: MakeElector) -> None:
    tasks: list[asyncio.Task[bool]] = []

    def work() -> None:
        tasks.append(asyncio.create_task(elector.stop()))

    elector = make_elector(on_started_leading=work)
    await elector.start()
    await until(lambda: tasks)
    async with asyncio.timeout(10):
        assert await tasks[0] is True


@pytest.mark.parametrize("how", ["resign", "stop"])
async def test_a_node_that_gives_up_its_leadership_is_no_leader_from_that_moment(
    make_elector: MakeElector, how: str
) -> None:
    may_end = asyncio.Event()
    elector = make_elector(on_started_leading=may_end.wait)
    await elector.start()
    assert await elector.wait_until_leader("10s")
    if how == "resign":
        elector.resign()
    else:
        assert await elector.stop(0) is False  # 0: does not wait
    assert not elector.is_leader()
    assert elector.term is None
    may_end.set()
    assert await elector.stop("10s")


# Waiting for an elector that will never lead


@pytest.mark.parametrize("call", ["wait_until_leader", "take_over"])
async def test_who_waits_for_an_elector_that_does_not_take_part(make_elector: MakeElector, call: str) -> None:
    elector = make_elector()
    async with asyncio.timeout(10):
        assert await getattr(elector, call)() is False, "never started"
        await elector.start()
        assert await elector.stop("10s")
        assert await getattr(elector, call)() is False, "stopped"


@pytest.mark.parametrize("call", ["wait_until_leader", "take_over"])
async def test_who_waits_while_an_elector_is_stopped(make_elector: MakeElector, call: str) -> None:
    leader, elector = make_elector("leader"), make_elector()
    await leader.start()
    assert await leader.wait_until_leader("10s")
    await elector.start()
    waiting = asyncio.create_task(getattr(elector, call)())
    await until(lambda: elector._waiters)
    assert await elector.stop("10s")
    async with asyncio.timeout(10):
        assert await waiting is False
    await leader.stop("10s")


# Other threads


@pytest.fixture
def elsewhere() -> Any:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_resign_and_stop_from_other_threads(make_elector: MakeElector, elsewhere: asyncio.AbstractEventLoop) -> None:
    """The event loop of the elector is idle: only a call that is thread-safe wakes it."""
    stopped: list[None] = []
    elector = make_elector(on_stopped_leading=lambda: stopped.append(None), retry_period="10m")

    def there(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, elsewhere).result(10)

    there(elector.start())
    assert asyncio.run(elector.wait_until_leader("10s")), "waited for on another event loop"
    elector.resign()
    wait_until(lambda: stopped, what="the loop of the elector was woken")

    async def wait_and_stop() -> list[bool]:
        waiting = asyncio.create_task(elector.wait_until_leader())
        await until(lambda: elector._waiters)
        stopping = await elector.stop("10s")
        return [stopping, await waiting]

    assert asyncio.run(wait_and_stop()) == [True, False]
    assert there(elector.stop("1s"))


# What callbacks raise, and a campaign that is cancelled


def test_a_callback_that_calls_sys_exit_ends_the_program_and_the_leadership(
    make_elector: MakeElector, caplog: pytest.LogCaptureFixture
) -> None:
    """As Python's tasks do. Who goes on with the event loop has an elector that leads no more, and is not busy."""
    loop = asyncio.new_event_loop()

    def leave() -> None:
        raise SystemExit(3)

    async def leave_later() -> None:
        leave()

    for callback, is_released in ((leave, False), (leave_later, True)):
        elector = make_elector(on_started_leading=callback)
        loop.run_until_complete(elector.start())
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.wait_for(asyncio.sleep(20), 20))
        assert loop.run_until_complete(asyncio.wait_for(elector.stop(), 10))
        assert not elector._callbacks.are_running()
        assert not elector.is_leader()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        # The sync callback ended the elector's own task, so that the lease has to end by itself.
        assert (loop.run_until_complete(elector.leader()) is None) is is_released
        loop.run_until_complete(elector._provider.force_release("election"))
    loop.close()


async def test_a_campaign_that_is_cancelled_ends_the_leadership(
    make_elector: MakeElector, heard: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []
    elector = make_elector(on_stopped_leading=lambda: called.append("stopped"))
    await elector.start()
    assert await elector.wait_until_leader("10s")
    waiting = [asyncio.create_task(call()) for call in (elector.wait_until_leader, elector.take_over)]
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "elector election"]
    task.cancel()
    await until(task.done)
    assert not elector.is_leader()
    assert called == ["stopped"]
    assert [event.reason for event in heard.of(LeadershipStopped)] == ["unreachable"]
    assert "cancelled" in caplog.text
    async with asyncio.timeout(10):
        assert await elector.wait_until_leader() is False
        assert await elector.take_over() is False
        await asyncio.gather(*waiting)


async def test_a_campaign_that_is_cancelled_lets_its_waiters_go(make_elector: MakeElector) -> None:
    leader, elector = make_elector("leader"), make_elector()
    await leader.start()
    assert await leader.wait_until_leader("10s")
    await elector.start()
    waiting = asyncio.create_task(elector.wait_until_leader())
    await until(lambda: elector._waiters)
    assert elector._task is not None
    elector._task.cancel()
    async with asyncio.timeout(10):
        assert await waiting is False
    await leader.stop("10s")
