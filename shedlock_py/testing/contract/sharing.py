"""One provider in forked processes, or on several event loops."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shedlock_py import AsyncLockProvider, LockProvider, LockRequest
from shedlock_py.testing.contract.base import LONG, ContractBase, acquired
from shedlock_py.testing.forks import in_child

LOOPS = 4
ROUNDS = 5


class ForkContract(ContractBase):
    """The tests of a blocking provider that a process has used before it forks."""

    @pytest.fixture
    def forked_provider(self, provider: LockProvider) -> LockProvider:
        """The provider that the parent process and its children use."""
        return provider

    def test_i1_parent_and_children_use_one_provider(self, forked_provider: LockProvider, name: str) -> None:
        provider = forked_provider
        held = acquired(provider, LockRequest(f"{name}/held", LONG))

        def child() -> None:
            assert provider.acquire(LockRequest(f"{name}/held", LONG)) is None
            lease = acquired(provider, LockRequest(f"{name}/child", LONG))
            assert lease.holder.endswith(f":{os.getpid()}")
            assert provider.extend(lease, "2m") is lease
            assert provider.release(lease) is True

        for _ in range(2):
            in_child(child)
            assert provider.extend(held, "2m") is held
            assert provider.acquire(LockRequest(f"{name}/held", LONG)) is None
        assert provider.release(held) is True

    def test_i2_a_child_that_closes_its_copy_leaves_the_parents_connection_open(
        self, forked_provider: Any, name: str
    ) -> None:
        if not hasattr(forked_provider, "close"):
            pytest.skip("it has nothing to close")
        lease = acquired(forked_provider, LockRequest(name, LONG))
        in_child(forked_provider.close)
        assert forked_provider.extend(lease, "2m") is lease
        assert forked_provider.release(lease) is True


class EventLoopContract(ContractBase):
    """The tests of an async provider on several event loops. Override ``make_loop_provider``.

    A provider with a ``close`` is closed at the end of each loop.
    """

    @pytest.fixture
    def make_loop_provider(self) -> Any:
        """A function that returns a new async provider, each time on the same store."""
        raise NotImplementedError("override the fixture make_loop_provider of the contract")

    @pytest.fixture
    def loop_provider(self, make_loop_provider: Callable[[], AsyncLockProvider]) -> AsyncLockProvider:
        return make_loop_provider()

    def test_event_loops_one_after_the_other(self, loop_provider: AsyncLockProvider, name: str) -> None:
        for _ in range(3):
            asyncio.run(use_and_close(loop_provider, name))

    def test_a_fork_between_event_loops(self, loop_provider: AsyncLockProvider, name: str) -> None:
        asyncio.run(use_and_close(loop_provider, name))
        in_child(lambda: asyncio.run(use_and_close(loop_provider, name)))
        asyncio.run(use_and_close(loop_provider, name))

    def test_i1_event_loops_at_once(self, loop_provider: AsyncLockProvider, name: str) -> None:
        barrier = threading.Barrier(LOOPS)
        winners: list[int] = []

        async def main() -> None:
            for number in range(ROUNDS):
                await asyncio.to_thread(barrier.wait, 30)
                lease = await loop_provider.acquire(LockRequest(f"{name}/{number}", LONG))
                winners.extend([number] if lease else [])
                assert await loop_provider.record(f"{name}/{number}")
            await close(loop_provider)

        with ThreadPoolExecutor(LOOPS) as pool:
            for done in [pool.submit(lambda: asyncio.run(main())) for _ in range(LOOPS)]:
                done.result(60)
        assert sorted(winners) == list(range(ROUNDS))


async def use_and_close(provider: AsyncLockProvider, name: str) -> None:
    lease = await provider.acquire(LockRequest(name, LONG))
    assert lease
    assert await provider.acquire(LockRequest(name, LONG)) is None
    assert await provider.extend(lease, "2m") is lease
    assert await provider.release(lease) is True
    await close(provider)


async def close(provider: Any) -> None:
    if hasattr(provider, "close"):
        await provider.close()
