"""I12: an async acquire that is cancelled, at whatever moment, leaves the lock free."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import LockProvider, LockRequest
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.stores.sql.stores import ASYNC_DRIVERS, Store, acquired

MOMENTS = 50


@pytest.fixture(params=[*ASYNC_DRIVERS, "sqlite+aiosqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite+aiosqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/locks.db"
    return Store(request.getfixturevalue(ASYNC_DRIVERS[request.param]), request.param).url()


@pytest.fixture
def witness(url: str) -> Iterator[LockProvider]:
    scheme = url.partition("://")[0]
    sync = {
        "postgresql+psycopg_async": "postgresql+psycopg",
        "postgresql+asyncpg": "postgresql+psycopg",
        "sqlite+aiosqlite": "sqlite",
    }
    provider = SqlAlchemyLockProvider(url.replace(scheme, sync.get(scheme, "mysql+pymysql")))
    provider.create_schema()
    yield provider
    provider.close()


async def cancel_after(
    provider: AsyncSqlAlchemyLockProvider, name: str, turns: int, seconds: float, times: int
) -> bool:
    """Whether the acquire was cancelled before it ended; if it was not, its lease is released."""
    task = asyncio.create_task(provider.acquire(LockRequest(name, "1h")))
    deadline = time.perf_counter() + seconds
    for _ in range(turns):
        await asyncio.sleep(0)
    while time.perf_counter() < deadline:  # noqa: ASYNC110 - nothing is waited for, these are turns of the loop
        await asyncio.sleep(0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with suppress(asyncio.CancelledError):
        if lease := await task:
            assert await provider.release(lease)
    return task.cancelled()


async def nothing_goes_on() -> None:
    """Wait for what ends in the background."""
    deadline = time.monotonic() + 30
    while len(asyncio.all_tasks()) > 1:
        assert time.monotonic() < deadline, asyncio.all_tasks()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["url", "engine"])
@pytest.mark.parametrize("times", [1, 2])
def test_i12_cancelled_at_every_moment(kind: str, times: int, url: str, witness: LockProvider, name: str) -> None:
    async def main() -> int:
        engine = create_async_engine(url)
        provider = AsyncSqlAlchemyLockProvider(url if kind == "url" else engine)
        await provider.record("warm")
        # By turns of the event loop until the request is sent, by the clock while the server works on it.
        moments = [(turns, 0.0) for turns in range(MOMENTS)] + [(0, i * 1e-4) for i in range(MOMENTS)]
        cancelled = 0
        for i, (turns, seconds) in enumerate(moments):
            cancelled += await cancel_after(provider, f"{name}-{i}", turns, seconds, times)
        await nothing_goes_on()  # a second cancellation does not wait for the acquire to be undone
        assert all_free()
        assert await provider.acquire(LockRequest(name, "1m")), "the pool must have survived"
        await provider.close()
        await engine.dispose()
        return cancelled

    def all_free() -> bool:
        return not any(record.is_held for record in witness.records(f"{name}-"))

    assert asyncio.run(main()) >= 5


@pytest.mark.parametrize("kind", ["url", "engine"])
def test_i12_a_crowd_cancelled_at_once(kind: str, url: str, witness: LockProvider, name: str) -> None:
    """Most of them are still waiting for a connection."""

    async def main() -> None:
        engine = create_async_engine(url, pool_size=2, max_overflow=0)
        provider = AsyncSqlAlchemyLockProvider(url if kind == "url" else engine)
        tasks = [asyncio.create_task(provider.acquire(LockRequest(f"{name}-{i}", "1h"))) for i in range(MOMENTS)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert done
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException):
                assert isinstance(result, asyncio.CancelledError)
            elif result is not None:
                assert await provider.release(result)
        await nothing_goes_on()
        await provider.close()
        await engine.dispose()

    def all_free() -> bool:
        return not any(record.is_held for record in witness.records(f"{name}-"))

    asyncio.run(main())
    assert all_free()


def test_i12_a_cancelled_take_over(url: str, witness: LockProvider, name: str) -> None:
    async def main() -> None:
        provider = AsyncSqlAlchemyLockProvider(url)
        for i in range(MOMENTS):
            task = asyncio.create_task(provider.take_over(LockRequest(f"{name}-{i}", "1h")))
            for _ in range(i):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                assert await provider.release(await task)
        await nothing_goes_on()
        await provider.close()

    asyncio.run(main())
    assert not any(record.is_held for record in witness.records(f"{name}-"))


def test_i12_a_cancelled_release_is_a_release(url: str, witness: LockProvider, name: str) -> None:
    async def main() -> None:
        provider = AsyncSqlAlchemyLockProvider(url)
        for i in range(MOMENTS):
            lease = await provider.acquire(LockRequest(f"{name}-{i}", "1h"))
            assert lease
            task = asyncio.create_task(provider.release(lease))
            for _ in range(i):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await provider.release(lease)  # again, in case it was cancelled before it was sent
        await provider.close()

    asyncio.run(main())
    for i in range(MOMENTS):
        assert witness.release(acquired(witness, f"{name}-{i}"))
