"""The lease that the running code is inside of."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    Executed,
    InMemoryLockProvider,
    LeaseLost,
    LeaseLostError,
    LockExtended,
    LockRequest,
    NotLocked,
    ProviderFailed,
    ProviderUnreachable,
    Skipped,
    assert_locked,
    attempt,
    attempt_async,
    configure,
    current_lease,
    extend_lock,
    extend_lock_async,
    hold,
    hold_async,
    set_active,
    try_hold,
    try_hold_async,
)
from shedlock_py.testing import FakeClock, RecordingListener
from shedlock_py.testing.contract.base import failing


def in_thread(work: Callable[[], object]) -> object:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


class TestCurrentLease:
    def test_inside_and_outside(self, provider: InMemoryLockProvider) -> None:
        assert current_lease() is None
        with hold("job") as lease:
            assert current_lease() is lease
            assert_locked()
            assert_locked("job")
        assert current_lease() is None

    def test_outside_of_a_lock_assert_locked_and_extend_lock_raise(self, provider: InMemoryLockProvider) -> None:
        with pytest.raises(NotLocked, match="any lock") as caught:
            assert_locked()
        assert "@scheduler_lock" in str(caught.value)
        with hold("job"), pytest.raises(NotLocked, match="lock 'other'"):
            assert_locked("other")
        with pytest.raises(NotLocked):
            extend_lock("1m")

    def test_a_skipped_block_is_not_inside(self, provider: InMemoryLockProvider) -> None:
        provider.acquire(LockRequest("job", "10m"))
        with try_hold("job") as lease:
            assert lease is None
            assert current_lease() is None

    def test_locks_that_are_not_left_in_the_order_of_nesting(self, provider: InMemoryLockProvider) -> None:
        first, second = ExitStack(), ExitStack()
        first.enter_context(hold("first"))
        lease = second.enter_context(hold("second"))
        assert current_lease() is lease
        assert_locked("first")
        first.close()
        assert current_lease() is lease
        second.close()
        assert current_lease() is None

    def test_after_the_trust_window_code_is_not_inside(self, provider: InMemoryLockProvider, clock: FakeClock) -> None:
        with hold("enclosing", lock_at_most_for="1h") as enclosing, hold("inner", lock_at_most_for="10s"):
            clock.advance("9.9s")
            assert current_lease() is enclosing
            with pytest.raises(NotLocked):
                assert_locked("inner")

    def test_a_thread_is_outside_and_a_copied_context_inside(self, provider: InMemoryLockProvider) -> None:
        with hold("job") as lease:
            assert in_thread(current_lease) is None
            context = contextvars.copy_context()
            assert in_thread(lambda: context.run(current_lease)) is lease
            assert isinstance(in_thread(lambda: context.run(attempt, "job", lambda: None)), Executed)
        assert in_thread(lambda: context.run(current_lease)) is None
        provider.acquire(LockRequest("job", "10m"))
        assert context.run(attempt, "job", pytest.fail) == Skipped("job")


class TestReentrancy:
    def test_the_store_gets_one_request(self, provider: InMemoryLockProvider, recorded: RecordingListener) -> None:
        with hold("job") as enclosing:
            before = provider.record("job")
            for _ in range(3):
                with hold("job", lock_at_most_for="1h", lock_at_least_for="1h") as inner:
                    assert inner is enclosing
            assert provider.record("job") == before
            assert enclosing is not None
            assert attempt("job", current_lease) == Executed(enclosing, enclosing)
        assert recorded.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]
        assert not provider.records()[0].is_held

    def test_the_same_provider_named_and_configured(self, provider: InMemoryLockProvider) -> None:
        with hold("job") as enclosing, hold("job", provider=provider) as inner:
            assert inner is enclosing
        with hold("job", provider=provider) as enclosing, hold("job") as inner:
            assert inner is enclosing

    def test_the_configured_provider_is_another_lock_than_the_named_one_around(
        self, provider: InMemoryLockProvider
    ) -> None:
        other = InMemoryLockProvider()
        provider.acquire(LockRequest("job", "10m"))
        with hold("job", provider=other) as enclosing:
            assert enclosing
            assert attempt("job", pytest.fail) == Skipped("job")

    def test_another_provider_is_another_lock(self, provider: InMemoryLockProvider) -> None:
        other = InMemoryLockProvider()
        with hold("job") as enclosing, hold("job", provider=other) as inner:
            assert inner is not enclosing
            assert other.record("job")

    def test_a_task_that_ended_is_no_pass_although_its_release_failed(self, provider: InMemoryLockProvider) -> None:
        with hold("job", provider=failing(provider, "release")) as lease:
            context = contextvars.copy_context()
        assert lease is not None
        assert lease.is_trusted()
        assert context.run(current_lease) is None

    def test_a_lease_that_ended_is_no_pass(self, provider: InMemoryLockProvider, clock: FakeClock) -> None:
        with hold("job", lock_at_most_for="10s"):
            clock.advance("11s")
            provider.acquire(LockRequest("job", "10m"))
            assert attempt("job", pytest.fail) == Skipped("job")

    @pytest.mark.anyio
    async def test_a_task_that_outlives_the_job_is_not_inside(self, provider: InMemoryLockProvider) -> None:
        job_is_over = asyncio.Event()

        async def afterwards() -> tuple[object, object]:
            inside = current_lease()
            await job_is_over.wait()
            assert current_lease() is None
            return inside, await attempt_async("job", never)

        async with hold_async("job") as lease:
            task = asyncio.create_task(afterwards())
            await asyncio.sleep(0)
        provider.acquire(LockRequest("job", "10m"))
        job_is_over.set()
        assert await task == (lease, Skipped("job"))

    @pytest.mark.anyio
    async def test_to_thread_is_inside(self, provider: InMemoryLockProvider) -> None:
        async with hold_async("job") as lease:
            assert lease is not None
            assert await asyncio.to_thread(attempt, "job", current_lease) == Executed(lease, lease)

    @pytest.mark.anyio
    async def test_tasks_side_by_side_are_not_inside_of_each_other(self) -> None:
        configure(async_provider=AsyncInMemoryLockProvider())
        both_requested = asyncio.Barrier(2)

        async def job() -> str:
            async with try_hold_async("job") as lease:
                await both_requested.wait()
                return "ran" if lease else "skipped"

        assert sorted(await asyncio.gather(job(), job())) == ["ran", "skipped"]


class TestExtendLock:
    def test_it_extends_the_innermost(self, provider: InMemoryLockProvider, recorded: RecordingListener) -> None:
        with hold("enclosing", lock_at_most_for="1m"), hold("inner", lock_at_most_for="1m") as inner:
            assert extend_lock("1h") is inner
        assert [event.lock_name for event in recorded.of(LockExtended)] == ["inner"]

    def test_a_lost_lease_is_not_extended_and_its_loss_is_reported_once(
        self, provider: InMemoryLockProvider, recorded: RecordingListener
    ) -> None:
        with hold("job"):
            provider.take_over(LockRequest("job", "10m"))
            with pytest.raises(LeaseLostError, match="'job'"):
                extend_lock("1h")
            with pytest.raises(NotLocked):
                extend_lock("1h")
        assert [event.reason for event in recorded.of(LeaseLost)] == ["revoked"]
        assert recorded.kinds().count("LockReleased") == 0

    def test_a_failing_store(self, provider: InMemoryLockProvider, recorded: RecordingListener) -> None:
        broken = failing(provider, "extend")
        with hold("job", provider=broken) as lease:
            with pytest.raises(ProviderUnreachable) as caught:
                extend_lock("1h")
            assert current_lease() is lease
        assert isinstance(caught.value.__cause__, OSError)
        assert [event.operation for event in recorded.of(ProviderFailed)] == ["extend"]

    @pytest.mark.anyio
    async def test_async_code_extends_its_lease_until_it_is_lost(
        self, provider: InMemoryLockProvider, recorded: RecordingListener
    ) -> None:
        async with hold_async("job") as lease:
            assert await extend_lock_async("1h") is lease
            provider.force_release("job")
            with pytest.raises(LeaseLostError):
                await extend_lock_async("1h")
        with pytest.raises(NotLocked):
            await extend_lock_async("1h")
        assert recorded.kinds() == ["LockAcquired", "LockExtended", "LeaseLost", "TaskFinished"]

    def test_switched_off_it_returns_the_lease(self) -> None:
        set_active(False)
        with hold("job") as lease:
            assert extend_lock("1h") is lease


async def never() -> None:
    pytest.fail("the task ran")
