"""I12: async operations are cancelled twice, or by the hundred. The contract cancels each operation once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from shedlock_py import LockRequest
from tests.stores.sql.stores import ASYNC_DRIVERS, Application, Store, on
from tests.support import tiers

MOMENTS = 50 if tiers.runs("full") else 20
KINDS: dict[str, Callable[[Store], Any]] = {
    "url": lambda store: store.provider(),
    "engine": lambda store: Application(store, pool_size=2, max_overflow=0).provider,
}
pytestmark = on([*ASYNC_DRIVERS, "sqlite+aiosqlite"], kinds=tuple(KINDS))


def check(
    store: Store, kind: str, name: str, work: Callable[[Any], Awaitable[None]], *, leaves_nothing_held: bool = True
) -> None:
    """Run ``work`` on the async provider, then assert that nothing is held and no task is left."""
    provider = KINDS[kind](store)
    provider.record("warm")

    async def main() -> None:
        before = asyncio.all_tasks()
        await work(provider.async_provider)
        deadline = asyncio.get_running_loop().time() + 30
        while late := asyncio.all_tasks() - before:  # a second cancellation does not wait for the undo
            assert asyncio.get_running_loop().time() < deadline, late
            await asyncio.sleep(0.01)

    provider.run(main())
    held = [record for record in store.provider().records(name) if record.is_held]
    assert bool(held) is not leaves_nothing_held
    assert provider.acquire(LockRequest(f"{name}-after", "1m")), "the pool has survived"


async def cancel_twice(task: asyncio.Task[Any], iterations: int) -> Any:
    """Return the result of ``task`` if it ended first; otherwise None."""
    for _ in range(iterations):
        await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    with suppress(asyncio.CancelledError):
        return await task
    return None


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
def test_i12_cancelled_twice_at_every_moment(driver: str, kind: str, operation: str, store: Store, name: str) -> None:
    """An interrupted take-over must expire, not free the lock: the former holder may still trust its lease."""

    async def work(provider: Any) -> None:
        for moment in range(MOMENTS):
            request = LockRequest(f"{name}-{moment}", "1h")
            lease = await cancel_twice(asyncio.create_task(getattr(provider, operation)(request)), moment)
            if lease:
                assert await provider.release(lease)

    check(store, kind, name, work, leaves_nothing_held=operation == "acquire")


def test_i12_a_herd_cancelled_at_once(driver: str, kind: str, store: Store, name: str) -> None:
    """Most of them are still waiting for a connection."""

    async def work(provider: Any) -> None:
        tasks = [asyncio.create_task(provider.acquire(LockRequest(f"{name}-{i}", "1h"))) for i in range(MOMENTS)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert not isinstance(result, Exception)
            if not isinstance(result, BaseException):
                assert await provider.release(result)

    check(store, kind, name, work)


def test_i12_a_cancelled_release_is_a_release(driver: str, kind: str, store: Store, name: str) -> None:
    async def work(provider: Any) -> None:
        for moment in range(MOMENTS):
            lease = await provider.acquire(LockRequest(f"{name}-{moment}", "1h"))
            assert lease
            await cancel_twice(asyncio.create_task(provider.release(lease)), moment)
            await provider.release(lease)  # again, in case the cancellation came before the send

    check(store, kind, name, work)
