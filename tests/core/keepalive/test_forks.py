"""A child that is forked in a task with keep-alive: the heartbeats belong to the parent."""

from __future__ import annotations

import asyncio
import sys

import pytest

from shedlock_py import LeaseLost, NotLocked, extend_lock, extend_lock_async, hold, hold_async
from shedlock_py.guard.context import current
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.forks import in_child
from tests.support.doubles import AsyncFaultyProvider, FaultyProvider
from tests.support.forks import in_a_loop_of_its_own
from tests.support.polling import until, wait_until
from tests.support.timing import Stopwatch

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork"),
    pytest.mark.slow("waits for the first heartbeat of a long lease"),
]

LEASE = "18s"
"""The first heartbeat is sent after six seconds. A child that waits for its reply would wait for ten, and fails after
five. The lease is still live then, even if a busy machine takes seconds to fork."""


async def test_a_child_does_not_wait_for_its_parents_heartbeat(recorded: RecordingListener) -> None:
    store = AsyncFaultyProvider()
    store.hang("extend")
    block = hold_async("job", lock_at_most_for=LEASE, keep_alive=True, provider=store)
    async with block:
        active = current.get()
        await until(lambda: store.calls["extend"] == 1)

        async def work() -> None:
            current.set(active)
            async with asyncio.timeout(5):
                with pytest.raises(NotLocked):  # the lease belongs to the parent
                    await extend_lock_async("20m")
                await block.__aexit__(None, None, None)

        def child() -> None:
            in_a_loop_of_its_own(work)
            assert not recorded.of(LeaseLost)

        in_child(child)
        store.recover()
        await extend_lock_async("20m")


def test_a_child_does_not_wait_for_its_parents_thread(recorded: RecordingListener) -> None:
    store = FaultyProvider()
    store.hang("extend")
    lost: list[LeaseLost] = []
    block = hold("job", lock_at_most_for=LEASE, keep_alive=True, on_lost=lost.append, provider=store)
    with block:
        wait_until(lambda: store.calls["extend"] == 1, timeout=20)

        def child() -> None:
            with pytest.raises(NotLocked):  # the lease belongs to the parent
                extend_lock("20m")
            with Stopwatch() as watch:
                block.__exit__(None, None, None)
            assert watch.seconds < 5
            assert not lost
            assert not recorded.of(LeaseLost)

        in_child(child)
        store.recover()
        extend_lock("20m")
