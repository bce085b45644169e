"""Who is inside of a lease: the code that the task calls or awaits, in this process, while the lease lives."""

import asyncio
import contextvars
import copy
import multiprocessing
import pickle
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

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
    scheduler_lock,
)
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.testing.forks import in_child

pytestmark = pytest.mark.anyio

T = TypeVar("T")


async def never() -> None:
    pytest.fail("the task ran beside another")


async def assert_not_inside() -> None:
    """Of the lock "job", which is held."""
    assert current_lease() is None
    with pytest.raises(NotLocked):
        assert_locked("job")
    assert await attempt_async("job", never) == Skipped("job")


async def made_by_a_timer(work: Callable[[], Coroutine[Any, Any, T]], **options: Any) -> T:
    """The result of a task that a callback of the event loop makes."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[asyncio.Task[T]] = loop.create_future()
    loop.call_later(0, lambda: made.set_result(loop.create_task(work(), **options)))
    return await (await made)


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

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on: of a fork while threads run
    def test_i1_a_worker_of_a_pool_stays_outside_when_its_parent_has_released(self, tmp_path: Path) -> None:
        """It ran the lock's task beside the replica that had got the lock meanwhile."""
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

    async def test_i1_a_timer_is_not_and_nor_is_a_task_that_it_makes(self, provider: InMemoryLockProvider) -> None:
        loop = asyncio.get_running_loop()
        for arm in (loop.call_soon, loop.call_soon_threadsafe, lambda callback: loop.call_later(0.001, callback)):
            outcome: asyncio.Future[object] = loop.create_future()

            def fire(outcome: asyncio.Future[object] = outcome) -> None:
                try:
                    assert current_lease() is None
                    assert attempt("job", lambda: pytest.fail("ran in a timer")) == Skipped("job")
                    loop.create_task(assert_not_inside()).add_done_callback(outcome.set_result)
                except BaseException as error:
                    outcome.set_exception(error)

            async with hold_async("job"):
                arm(fire)
                task: Any = await outcome
                await task

    async def test_i1_nor_what_such_a_task_makes_and_awaits(self, provider: InMemoryLockProvider) -> None:
        async def grandchild() -> None:
            await asyncio.gather(assert_not_inside())
            await asyncio.to_thread(lambda: asyncio.run(assert_not_inside()))

        async with hold_async("job"):
            await made_by_a_timer(grandchild)

    async def test_i1_nor_is_another_event_loop_in_a_thread_of_the_task(self, provider: InMemoryLockProvider) -> None:
        async with hold_async("job"):
            await asyncio.to_thread(lambda: asyncio.run(assert_not_inside()))

    async def test_i1_an_asyncio_scheduler_to_which_it_adds_a_job(self, provider: InMemoryLockProvider) -> None:
        """Its timer is armed in the context of the task; so were all later jobs of that scheduler."""
        ran: list[str] = []
        both_were_called = asyncio.Event()
        scheduler = AsyncIOScheduler()
        scheduler.start(paused=False)

        @scheduler_lock("report", "1m")
        async def rebuild() -> None:
            ran.append("rebuild begins")
            scheduler.add_job(export, id="first")
            scheduler.add_job(observe, "interval", seconds=0.01, id="second")
            async with asyncio.timeout(20):
                await both_were_called.wait()
            ran.append("rebuild ends")

        @scheduler_lock("report", "1m", on_skip=lambda skipped: ran.append("export skipped"))
        async def export() -> None:
            ran.append("export")

        async def observe() -> None:
            if "export skipped" in ran or "export" in ran:
                assert current_lease() is None
                both_were_called.set()

        try:
            await rebuild()
        finally:
            scheduler.shutdown(wait=False)
        assert ran == ["rebuild begins", "export skipped", "rebuild ends"]

    async def test_i1_nor_are_jobs_of_a_scheduler_that_the_task_has_started(
        self, provider: InMemoryLockProvider
    ) -> None:
        seen: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()

        async def job() -> None:
            seen.set_result(current_lease())

        async with hold_async("job"), asyncio.timeout(20):
            scheduler = AsyncIOScheduler()
            scheduler.add_job(job)
            scheduler.start()
            assert await seen is None
            scheduler.shutdown(wait=False)

    async def test_i1_nor_is_what_a_thread_of_the_task_gives_to_an_event_loop(
        self, provider: InMemoryLockProvider
    ) -> None:
        """Python cannot distinguish it from a scheduler's timer: both begin as a callback of the loop."""
        loop = asyncio.get_running_loop()

        def in_thread() -> None:
            assert_locked("job")
            asyncio.run_coroutine_threadsafe(assert_not_inside(), loop).result(20)

        async with hold_async("job"):
            await asyncio.to_thread(in_thread)

    async def test_i1_nor_is_what_an_ordinary_task_gives_to_the_loop_of_another_thread(
        self, provider: InMemoryLockProvider
    ) -> None:
        loop = asyncio.get_running_loop()

        def in_thread() -> None:
            with hold("job"):
                asyncio.run_coroutine_threadsafe(assert_not_inside(), loop).result(20)

        thread = threading.Thread(target=in_thread)
        thread.start()
        await asyncio.to_thread(thread.join, 30)

    def test_an_ordinary_task_that_runs_an_event_loop_is_inside_there(self, provider: InMemoryLockProvider) -> None:
        async def main() -> None:
            await assert_inside()
            await asyncio.gather(assert_inside())

        with hold("job"):
            asyncio.run(main())

    async def test_an_ordinary_block_in_a_coroutine(self, provider: InMemoryLockProvider) -> None:
        with hold("job"):
            await asyncio.gather(assert_inside())
            await made_by_a_timer(assert_not_inside)


class TestTaskFactories:
    """The guard wraps the task factory of the event loop. Applications must not notice."""

    async def test_the_applications_own_still_makes_the_tasks(self, provider: InMemoryLockProvider) -> None:
        made: list[asyncio.Task[Any]] = []

        def factory(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
            made.append(asyncio.Task(coro, loop=loop, **kwargs))
            return made[-1]

        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        try:
            for _ in range(3):
                async with hold_async("job"):
                    task = asyncio.create_task(assert_inside(), name="mine")
                    assert task in made
                    assert task.get_name() == "mine"
                    await task
                await self.check_a_timer()
            count = len(made)
            await asyncio.create_task(asyncio.sleep(0))
            assert len(made) == count + 1  # wrapped once, however many guards there were
        finally:
            loop.set_task_factory(None)

    async def test_one_that_is_set_later_is_wrapped_by_the_next_guard(self, provider: InMemoryLockProvider) -> None:
        loop = asyncio.get_running_loop()
        await self.check_a_timer()
        loop.set_task_factory(None)
        await self.check_a_timer()

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="new in Python 3.12")
    async def test_eager_tasks_are_inside_and_a_timer_is_not(self, provider: InMemoryLockProvider) -> None:
        """They run up to their first wait while they are made."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 (mypy reads it as Python 3.11)
        try:
            async with hold_async("job"):
                await asyncio.gather(assert_inside(), asyncio.create_task(assert_inside()))
            await self.check_a_timer()
        finally:
            loop.set_task_factory(None)

    async def test_a_context_that_was_given_is_the_tasks(self, provider: InMemoryLockProvider) -> None:
        variable = contextvars.ContextVar("variable", default=0)
        context = contextvars.copy_context()
        context.run(variable.set, 7)

        async def seen() -> int:
            variable.set(variable.get() + 1)
            return variable.get()

        async with hold_async("job"):
            assert await asyncio.create_task(seen(), context=context) == 8
            assert await made_by_a_timer(seen, context=context) == 9
        assert context[variable] == 9

    async def check_a_timer(self) -> None:
        async with hold_async("job"):
            await made_by_a_timer(assert_not_inside)


async def test_the_caller_of_a_suspended_generator_is_inside(provider: InMemoryLockProvider) -> None:
    """Python cannot distinguish it from the body of a ``@contextmanager`` around ``hold``, which must be."""

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
