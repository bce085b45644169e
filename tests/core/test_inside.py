"""Code is inside a lease if the task calls or awaits it, in this process, while the lease lives."""

import asyncio
import copy
import multiprocessing
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from shedlock_py import (
    Event,
    Executed,
    InMemoryLockProvider,
    Lease,
    LockAcquired,
    LockRequest,
    NotLocked,
    Skipped,
    assert_locked,
    attempt,
    attempt_async,
    configure,
    current_lease,
    extend_lock_async,
    hold,
    hold_async,
    provider_from_url,
)
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.testing.forks import in_child

pytestmark = pytest.mark.anyio

T = TypeVar("T")


async def never() -> None:
    pytest.fail("the task ran beside another")


async def assert_inside() -> None:
    assert_locked("job")
    assert isinstance(await attempt_async("job", lambda: asyncio.sleep(0)), Executed)


def assert_the_child_is_not_inside() -> None:
    assert current_lease() is None
    with pytest.raises(NotLocked):
        assert_locked()
    assert attempt("job", lambda: pytest.fail("the child ran beside its parent")) == Skipped("job")


def in_the_worker(url: str) -> str:
    assert current_lease() is None
    with closing(cast(SqlAlchemyLockProvider, provider_from_url(url))) as provider:
        result = attempt("job", lambda: None, lock_at_most_for="1m", provider=provider)
        return "ran" if isinstance(result, Executed) else "skipped"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
class TestForkedChildren:
    def test_i1_a_child_that_is_forked_in_the_task_is_not_inside(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/locks.db"
        provider = provider_from_url(url)
        provider.create_schema()
        configure(provider=provider)

        def child() -> None:
            configure(provider=provider_from_url(url))
            assert_the_child_is_not_inside()

        with closing(cast(SqlAlchemyLockProvider, provider)), hold("job"):
            in_child(child)
            assert_locked("job")

    async def test_i1_nor_is_one_that_is_forked_in_an_async_task(self, provider: InMemoryLockProvider) -> None:
        async with hold_async("job"):
            in_child(assert_the_child_is_not_inside)

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on, for a fork while threads run
    def test_i1_a_worker_of_a_pool_stays_outside_when_its_parent_has_released(self, tmp_path: Path) -> None:
        """The worker would run the lock's task while another replica has the lock."""
        url = f"sqlite:///{tmp_path}/locks.db"
        with (
            closing(cast(SqlAlchemyLockProvider, provider_from_url(url))) as provider,
            closing(cast(SqlAlchemyLockProvider, provider_from_url(url))) as other,
            ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool,
        ):
            provider.create_schema()
            with configure(provider=provider):
                with hold("job"):
                    assert pool.submit(in_the_worker, url).result(30) == "skipped"
                assert pool.submit(in_the_worker, url).result(30) == "ran"
                lease = other.acquire(LockRequest("job", "10m"))
                assert lease is not None
                assert pool.submit(in_the_worker, url).result(30) == "skipped"
                assert other.release(lease)


class TestTasksAndTimers:
    async def test_what_the_task_awaits_is_inside(self, provider: InMemoryLockProvider) -> None:
        async with hold_async("job"):
            await assert_inside()
            await asyncio.gather(assert_inside(), assert_inside())
            await asyncio.wait_for(assert_inside(), 10)
            async with asyncio.TaskGroup() as group:
                group.create_task(assert_inside())

            async def of_a_child() -> None:
                await asyncio.gather(assert_inside())

            await asyncio.create_task(of_a_child())
            await extend_lock_async("10m")

    async def test_a_timer_of_the_task_is_inside_while_the_lease_lives(self, provider: InMemoryLockProvider) -> None:
        loop = asyncio.get_running_loop()
        for arm in (loop.call_soon, loop.call_soon_threadsafe, lambda callback: loop.call_later(0.001, callback)):
            made: asyncio.Future[asyncio.Task[None]] = loop.create_future()
            async with hold_async("job"):
                arm(partial(lambda made: made.set_result(loop.create_task(assert_inside())), made))
                await (await made)

    async def test_i1_what_outlives_the_task_is_not_inside(self, provider: InMemoryLockProvider) -> None:
        loop = asyncio.get_running_loop()
        has_ended = asyncio.Event()

        async def outlives() -> None:
            await has_ended.wait()
            assert current_lease() is None
            assert await attempt_async("job", never) == Skipped("job")

        made: asyncio.Future[asyncio.Task[None]] = loop.create_future()
        async with hold_async("job"):
            task = asyncio.create_task(outlives())
            loop.call_later(0.01, lambda: made.set_result(loop.create_task(outlives())))
        other = provider.acquire(LockRequest("job", "1m"))
        has_ended.set()
        await task
        await (await made)
        assert other is not None

    async def test_a_scheduler_that_the_task_starts_is_inside_until_the_task_ends(
        self, provider: InMemoryLockProvider
    ) -> None:
        """The timer has the task's context. The documentation says to start it outside."""
        seen: asyncio.Queue[Lease | None] = asyncio.Queue()
        scheduler = AsyncIOScheduler()

        async def job() -> None:
            await seen.put(current_lease())

        async with asyncio.timeout(20):
            async with hold_async("job") as lease:
                scheduler.start()
                scheduler.add_job(job, "interval", seconds=0.01)
                assert await seen.get() is lease
            while await seen.get() is not None:
                pass
            scheduler.shutdown(wait=False)

    async def test_an_event_loop_in_a_thread_of_the_task_is_inside(self, provider: InMemoryLockProvider) -> None:
        """As in asgiref's ``async_to_sync``."""
        async with hold_async("job"):
            await asyncio.to_thread(lambda: asyncio.run(assert_inside()))

    async def test_what_a_thread_gives_to_an_event_loop_is_inside(self, provider: InMemoryLockProvider) -> None:
        loop = asyncio.get_running_loop()

        def in_thread() -> None:
            asyncio.run_coroutine_threadsafe(assert_inside(), loop).result(20)

        async with hold_async("job"):
            await asyncio.to_thread(in_thread)

    def test_an_ordinary_task_that_runs_an_event_loop_is_inside_there(self, provider: InMemoryLockProvider) -> None:
        async def main() -> None:
            await assert_inside()
            await asyncio.gather(assert_inside())

        with hold("job"):
            asyncio.run(main())

    async def test_an_ordinary_block_in_a_coroutine(self, provider: InMemoryLockProvider) -> None:
        with hold("job"):
            await asyncio.gather(assert_inside())

    async def test_a_guard_leaves_the_task_factory_alone(self, provider: InMemoryLockProvider) -> None:
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        async with hold_async("job"):
            assert loop.get_task_factory() is before
        assert loop.get_task_factory() is before

    async def test_a_task_that_a_library_makes_by_itself_is_inside(self, provider: InMemoryLockProvider) -> None:
        async with hold_async("job"):
            await asyncio.Task(assert_inside())


async def test_the_caller_of_a_suspended_generator_is_inside(provider: InMemoryLockProvider) -> None:
    """Python cannot tell it from the body of a ``@contextmanager`` around ``hold``, which must be inside."""

    def generator() -> Iterator[None]:
        with hold("job"):
            yield

    async def async_generator() -> AsyncIterator[None]:
        async with hold_async("job"):
            yield

    for _ in generator():
        assert_locked("job")
    async for _ in async_generator():
        assert_locked("job")
    assert current_lease() is None


@pytest.mark.parametrize("duplicate", [lambda lease: pickle.loads(pickle.dumps(lease)), copy.copy, copy.deepcopy])
def test_i1_a_copy_of_a_lease_is_not_trusted(
    provider: InMemoryLockProvider, duplicate: Callable[[Lease], Lease]
) -> None:
    lease = provider.acquire(LockRequest("job", "10m", "1m", "holder"))
    assert lease is not None
    copied = duplicate(lease)
    assert not copied.is_trusted()
    assert copied.trusted_for() == timedelta(0)
    for field in ("name", "holder", "claim_id", "fencing_token", "locked_by", "lock_at_most_for", "lock_at_least_for"):
        assert getattr(copied, field) == getattr(lease, field)
    assert "a copy" in repr(copied)
    assert "'job'" in repr(copied)
    assert not provider.release(copied)
    assert provider.extend(copied, "1h") is None
    assert not copied.is_trusted()
    assert lease.is_trusted()
    assert provider.records()[0].is_held
    assert "a copy" in repr(pickle.loads(pickle.dumps(copied)))


def test_an_event_about_a_lease_can_be_pickled() -> None:
    recorded: list[Event] = []
    with configure(provider=InMemoryLockProvider(), listeners=[recorded.append]), hold("job") as lease:
        pass
    assert lease is not None
    assert recorded
    for event in recorded:
        back = pickle.loads(pickle.dumps(event))
        assert back.lock_name == "job"
        assert back.lease.claim_id == lease.claim_id
        assert not back.lease.is_trusted()
    assert isinstance(recorded[0], LockAcquired)
