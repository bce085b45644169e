"""I12 in a managed client's pool: a cancelled task never loses a connection, a permit or a lock.

It leaves no reply for the next request.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from shedlock_py import Lease, LockRequest, ShedLockError
from shedlock_py.providers.redis import AsyncRedisLockProvider
from shedlock_py.testing.forks import in_child
from tests.faults.awaits import Moment, nothing_goes_on
from tests.support.forks import in_a_loop_of_its_own
from tests.support.redis import RedisEndpoint

MOST_AWAITS = 200

Cancel = Callable[[asyncio.Task[Any]], None]


class Pool:
    """A provider with one pooled connection, and the server's view of it."""

    def __init__(self, server: RedisEndpoint, name: str) -> None:
        self.server, self.name = server, name
        self.provider = AsyncRedisLockProvider(f"{server.url()}?max_connections=1&timeout=20&client_name={name}")

    def connections(self) -> list[dict[str, Any]]:
        with self.server.client() as client:
            return [each for each in client.client_list() if each["name"] == self.name]

    def kill_connections(self) -> None:
        with self.server.client() as client:
            for each in self.connections():
                client.client_kill_filter(_id=each["id"])

    async def acquired(self, name: str, at_most: str = "1h") -> Lease:
        lease = await self.provider.acquire(LockRequest(name, at_most))
        assert lease is not None, f"{name} should be free, but {await self.provider.record(name)} has it"
        return lease

    async def assert_as_good_as_new(self) -> None:
        for number in range(2):
            lease = await self.acquired(f"{self.name}-{number}")
            record = await self.provider.record(lease.name)
            assert record is not None
            assert record.locked_by == lease.locked_by
            assert await self.provider.release(lease)


@pytest.fixture
def pool(redis_server: RedisEndpoint, name: str) -> Pool:
    return Pool(redis_server, name)


class AnyMoment(Moment):
    """Include tasks that are cancelled before their first step, so the watched work never begins."""

    def task_factory(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().task_factory(loop, work, **options)
        task.add_done_callback(lambda _: work.close())
        return task


# The state of the connection before the operation


async def warm(pool: Pool) -> None:
    await pool.provider.record("warm")


async def cold(pool: Pool) -> None:
    await pool.provider.close()


async def closed_by_the_server(pool: Pool) -> None:
    await warm(pool)
    pool.kill_connections()


# Which task is cancelled


def caller(task: asyncio.Task[Any]) -> None:
    task.cancel()


def caller_twice(task: asyncio.Task[Any]) -> None:
    task.cancel()
    asyncio.get_running_loop().call_soon(task.cancel)


def caller_once_more_later(task: asyncio.Task[Any]) -> None:
    task.cancel()
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: loop.call_soon(lambda: loop.call_soon(task.cancel)))


CALLERS = (caller, caller_twice, caller_once_more_later)


def everybody(task: asyncio.Task[Any]) -> None:
    """An event loop does this at its end, and so do some shutdown routines."""
    for each in asyncio.all_tasks() - {main}:
        each.cancel()


main: asyncio.Task[Any]


# The operation


async def acquire(pool: Pool, lease: Lease) -> Lease | None:
    return await pool.provider.acquire(LockRequest(f"{lease.name}-new", "1h"))


async def extend(pool: Pool, lease: Lease) -> None:
    assert await pool.provider.extend(lease, "2h") is lease


async def release(pool: Pool, lease: Lease) -> None:
    assert await pool.provider.release(lease)


async def all_at_once(pool: Pool, lease: Lease) -> None:
    """All but one of the tasks wait for a permit."""
    skip = pool.provider.acquire(LockRequest(lease.name, "1h"))
    await asyncio.gather(skip, pool.provider.record(lease.name), extend(pool, lease))


OPERATIONS = (acquire, extend, release, all_at_once)


async def at_each_await(
    pool: Pool,
    prepare: Callable[[Pool], Awaitable[None]],
    operation: Callable[[Pool, Lease], Awaitable[Any]],
    cancel: Cancel,
) -> int:
    """Cancel at the first await of any task, then at the second await, and so on. Return the number of awaits."""
    global main
    main = asyncio.current_task()  # type: ignore[assignment]  # there is one
    loop, before, ended = asyncio.get_running_loop(), asyncio.all_tasks(), 0
    for number in count():
        assert number < MOST_AWAITS, "it never got to its end"
        lease, moment = await pool.acquired(f"{pool.name}-{operation.__name__}-{number}"), AnyMoment(number)
        await prepare(pool)
        loop.set_task_factory(moment.task_factory)
        task = asyncio.ensure_future(operation(pool, lease))
        moment.strike(lambda task=task: cancel(task))  # type: ignore[misc]  # its default
        await asyncio.wait({task})
        loop.set_task_factory(None)
        await nothing_goes_on(before)
        await check(pool, operation, lease, task, cancel)
        assert len(pool.connections()) == 1
        ended += not moment.has_come
        if ended == 3:  # the number of awaits depends on how soon the server replies
            return number - 2
    raise AssertionError("unreachable")


async def check(pool: Pool, operation: Any, lease: Lease, task: asyncio.Task[Any], cancel: Cancel) -> None:
    if not task.cancelled():
        error = task.exception()
        if error is not None and not (cancel is everybody and isinstance(error, ShedLockError)):
            raise error
    if operation is acquire and cancel in CALLERS:
        granted = None if task.cancelled() else task.result()
        following = granted or await pool.acquired(f"{lease.name}-new")
        assert await pool.provider.release(following)
    if operation is release and cancel in CALLERS:
        assert await pool.provider.release(await pool.acquired(lease.name))
    if operation is not release:
        assert await pool.provider.release(lease) is True, "no other task may have released it"
    await pool.assert_as_good_as_new()


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Expect no warning of a coroutine never awaited, an exception never retrieved, or a task destroyed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()  # report leftovers of earlier tests before this test begins
        caught.clear()
        caplog.clear()
        # redis-py and asyncio warn of each connection that outlives its loop.
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    assert [str(each.message) for each in caught] == []


@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize(
    ("prepare", "cancel"),
    [
        pytest.param(
            prepare,
            cancel,
            id=f"{prepare.__name__}-{cancel.__name__}",
            marks=[] if (prepare, cancel) == (warm, caller) else pytest.mark.slow("up to 200 cancellations"),
        )
        for prepare in (warm, cold, closed_by_the_server)
        for cancel in (*CALLERS, everybody)
    ],
)
def test_i12_a_task_cancelled_at_any_await_loses_nothing(pool: Pool, prepare: Any, cancel: Cancel) -> None:
    async def run() -> list[int]:
        awaits = [await at_each_await(pool, prepare, operation, cancel) for operation in OPERATIONS]
        await pool.provider.close()
        return awaits

    awaits = asyncio.run(run())
    print(f"{prepare.__name__}, {cancel.__name__}: {sum(awaits)} cancellations: {awaits}")
    assert min(awaits) >= 1


@pytest.mark.slow("eighty event loops")
@pytest.mark.usefixtures("reports")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_i12_event_loops_that_end_meanwhile_lose_nothing(pool: Pool) -> None:
    """A loop may end in any iteration; the next loop has everything that it needs."""

    async def main(number: int) -> None:
        lease = await pool.acquired(f"{pool.name}-{number}-held")
        tasks = [asyncio.ensure_future(work) for work in (release(pool, lease), acquire(pool, lease))]
        for _ in range(number):
            await asyncio.sleep(0)
        if number % 2:
            await pool.provider.close()
        assert tasks

    async def afterwards() -> None:
        await pool.assert_as_good_as_new()
        await pool.provider.close()

    for number in range(40):
        with suppress(ShedLockError):
            asyncio.run(main(number))
        gc.collect()
        asyncio.run(afterwards())


@pytest.mark.slow("forks at each await")
def test_a_fork_at_any_await_disturbs_nobody(pool: Pool) -> None:
    """The child has its own connections, and the parent's operation goes on."""

    def child() -> None:
        async def use() -> None:
            lease = await pool.acquired(f"{pool.name}-child")
            assert await pool.provider.release(lease)
            await pool.provider.close()

        in_a_loop_of_its_own(use)

    async def run() -> None:
        for number in count():
            lease, moment = await pool.acquired(f"{pool.name}-{number}"), AnyMoment(number)
            await cold(pool)
            loop = asyncio.get_running_loop()
            loop.set_task_factory(moment.task_factory)
            moment.strike(lambda: in_child(child))
            await asyncio.create_task(release(pool, lease))
            loop.set_task_factory(None)
            if not moment.has_come:
                assert number >= 2
                break
        await pool.assert_as_good_as_new()
        await pool.provider.close()

    asyncio.run(run())
