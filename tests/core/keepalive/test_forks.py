"""A child that is forked in a task with keep-alive: the heartbeats are its parent's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest

from shedlock_py import LeaseLost, NotLocked, extend_lock, extend_lock_async, hold, hold_async
from shedlock_py.context import current
from shedlock_py.keepalive import TaskKeepAlive, ThreadKeepAlive
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.forks import in_child
from tests.support.doubles import AsyncFaultyProvider, FaultyProvider
from tests.support.forks import in_a_loop_of_its_own
from tests.support.polling import wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (tests poll)
            await asyncio.sleep(0.005)


async def test_a_child_does_not_wait_for_its_parents_heartbeat(recorded: RecordingListener) -> None:
    store = AsyncFaultyProvider()
    store.hang("extend")
    block = hold_async("job", lock_at_most_for="10m", keep_alive=True, provider=store)
    async with block:
        held = current.get()
        assert held is not None
        keep_alive = held.keep_alive
        assert isinstance(keep_alive, TaskKeepAlive)
        keep_alive._plan._plan.due = 0
        keep_alive._changed.set()
        await until(lambda: store.calls["extend"] == 1)

        async def work() -> None:
            current.set(held)
            async with asyncio.timeout(5):
                with pytest.raises(NotLocked):  # the lease is its parent's
                    await extend_lock_async("20m")
                await block.__aexit__(None, None, None)

        def child() -> None:
            del keep_alive._loop  # it is the parent's, and whoever wakes it wakes the parent
            store.hanging.clear()
            in_a_loop_of_its_own(work)
            assert keep_alive._plan.pauses == 0
            assert not recorded.of(LeaseLost)
            assert not keep_alive._plan.has_ended

        in_child(child)
        store.recover()
        await until(lambda: not keep_alive.is_busy(is_async=True))
        await extend_lock_async("20m")


def test_a_child_does_not_wait_for_its_parents_thread(recorded: RecordingListener) -> None:
    store = FaultyProvider()
    store.hang("extend")
    told: list[LeaseLost] = []
    block = hold("job", lock_at_most_for="10m", keep_alive=True, on_lost=told.append, provider=store)
    with block:
        held = current.get()
        assert held is not None
        keep_alive = held.keep_alive
        assert isinstance(keep_alive, ThreadKeepAlive)
        keep_alive._plan._plan.due = 0
        keep_alive.start()
        wait_until(lambda: store.calls["extend"] == 1)

        def child() -> None:
            del keep_alive._changed  # a thread of the parent may have it for ever
            store.hanging.clear()
            with pytest.raises(NotLocked):  # the lease is its parent's
                extend_lock("20m")
            block.__exit__(None, None, None)
            assert not told
            assert not recorded.of(LeaseLost)

        in_child(child)
        store.recover()
        extend_lock("20m")
