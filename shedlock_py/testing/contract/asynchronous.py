"""Cancellation: the lock after the caller of an async provider was cancelled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shedlock_py import (
    AsyncLockProvider,
    Executed,
    LeaseLost,
    LockProvider,
    LockReleased,
    LockRequest,
    ProviderFailed,
    ProviderUnreachable,
    Skipped,
    attempt_async,
    configure,
    current_lease,
    extend_lock_async,
    hold_async,
)
from shedlock_py.testing.blocking import BlockingLockProvider
from shedlock_py.testing.contract.base import (
    LONG,
    AsyncContractBase,
    acquired,
    eventually,
    failing,
    record_of,
)
from shedlock_py.testing.contract.fencing import FIRE_TIME
from shedlock_py.testing.contract.recovering import again, dead_runs
from shedlock_py.testing.doubles import RecordingListener


async def pass_moment(moment: int) -> None:
    """Run ``moment`` iterations of the event loop. Above 25, also sleep 0.2 ms for each further moment."""
    for _ in range(min(moment, 25)):
        await asyncio.sleep(0)
    if moment > 25:
        await asyncio.sleep(0.0002 * (moment - 25))


async def cancel_at(moment: int, work: Awaitable[Any]) -> None:
    """Cancel ``work`` after ``moment``, as :func:`pass_moment` counts."""
    task = asyncio.ensure_future(work)
    await pass_moment(moment)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


class CancellationContract(AsyncContractBase):
    @pytest.fixture
    def facade(self, provider: LockProvider) -> BlockingLockProvider:
        assert isinstance(provider, BlockingLockProvider)
        return provider

    def _is_clean_after(
        self, facade: BlockingLockProvider, other: LockProvider, name: str, work: Callable[[str], Awaitable[Any]]
    ) -> None:
        """Check that the lock of ``work(lock)`` is free after a cancellation at each moment, long before its lease
        ends."""

        async def at_all_moments() -> None:
            for moment in self.moments:
                await cancel_at(moment, work(f"{name}/{moment}"))

        facade.run(at_all_moments())
        zombies = [moment for moment in self.moments if other.acquire(LockRequest(f"{name}/{moment}", LONG)) is None]
        assert zombies == []

    def test_i12_a_cancelled_acquire_is_undone(
        self, facade: BlockingLockProvider, other: LockProvider, name: str
    ) -> None:
        provider = facade.async_provider

        async def acquire_and_release(lock: str) -> None:
            lease = await provider.acquire(LockRequest(lock, "1h"))
            assert lease is not None
            try:
                await asyncio.sleep(0)
            finally:
                await asyncio.shield(asyncio.ensure_future(provider.release(lease)))

        # A caller that was cancelled during its release does not learn when the release ends.
        async def work(lock: str) -> None:
            try:
                await acquire_and_release(lock)
            finally:
                await asyncio.to_thread(eventually, lambda: not is_held(other, lock), "the end of a release")

        self._is_clean_after(facade, other, name, work)

    def test_i12_a_cancelled_acquire_keeps_neither_minimum_hold_nor_fire_time(
        self, facade: BlockingLockProvider, other: LockProvider, name: str
    ) -> None:
        """The run did not begin, so another replica may run the same fire time at once."""
        provider = facade.async_provider

        async def cancel_each() -> None:
            for moment in self.moments:
                request = LockRequest(f"{name}/{moment}", "1h", "1h", fire_time=FIRE_TIME)
                task = asyncio.ensure_future(provider.acquire(request))
                for _ in range(moment // 2):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():  # it was granted before it could be cancelled
                    lease = task.result()
                    assert lease is not None
                    await provider.undo(lease)  # type: ignore[attr-defined]  # not in the protocol

        facade.run(cancel_each())

        def can_run(moment: int) -> bool:
            return other.acquire(LockRequest(f"{name}/{moment}", LONG, fire_time=FIRE_TIME)) is not None

        used_up = [moment for moment in self.moments if not can_run(moment)]
        assert used_up == []

    # Client tasks are cancelled too: before their first step, or while anyio connects.
    @pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
    @pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited:RuntimeWarning")
    def test_i3_the_end_of_the_event_loop_loses_no_release(
        self, facade: BlockingLockProvider, other: LockProvider, name: str
    ) -> None:
        """At its end ``asyncio.run()`` cancels all tasks, including the library's, and waits for them."""

        async def guarded(lock: str, is_inside: asyncio.Event) -> None:
            async with hold_async(lock, lock_at_most_for="1h", provider=facade.async_provider):
                is_inside.set()

        async def end_at_all_moments() -> None:
            for moment in self.moments:
                others, is_inside = asyncio.all_tasks(), asyncio.Event()
                guard = asyncio.ensure_future(guarded(f"{name}/{moment}", is_inside))
                await is_inside.wait()
                await pass_moment(moment)
                ended = asyncio.all_tasks() - others
                for task in ended:
                    task.cancel()
                await asyncio.gather(guard, *ended, return_exceptions=True)

        listener = RecordingListener()
        with configure(listeners=[listener]):
            facade.run(end_at_all_moments())
        assert [moment for moment in self.moments if is_held(other, f"{name}/{moment}")] == []
        assert len(listener.of(LockReleased)) == len(self.moments)

    def test_i1_a_cancelled_take_over_does_not_free_the_lock(
        self, facade: BlockingLockProvider, other: LockProvider, name: str
    ) -> None:
        """The previous holder may still trust its lease."""
        provider, locks = facade.async_provider, [f"{name}/{moment}" for moment in self.moments]
        for lock in locks:
            acquired(other, LockRequest(lock, LONG))

        async def cancel_each() -> None:
            for moment, lock in enumerate(locks):
                task = asyncio.ensure_future(provider.take_over(LockRequest(lock, LONG)))
                for _ in range(moment // 2):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])

        facade.run(cancel_each())
        assert [lock for lock in locks if not is_held(other, lock)] == []

    @pytest.mark.usefixtures("recovery")
    def test_i14_a_cancelled_recovery_does_not_end_the_run(
        self, facade: BlockingLockProvider, other: LockProvider, name: str
    ) -> None:
        """The record still belongs to the dead holder, or to the recovery, which expires."""
        provider, moments = facade.async_provider, self.moments[::5]
        dead = dead_runs(other, [f"{name}/{moment}" for moment in moments])

        async def cancel_each() -> None:
            for moment, record in zip(moments, dead, strict=True):
                task = asyncio.ensure_future(provider.recover(again(record.name), record))  # type: ignore[attr-defined]
                for _ in range(moment // 2):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])

        facade.run(cancel_each())
        records = [record_of(other, record.name) for record in dead]
        assert [record.is_released for record in records] == [False] * len(dead)

    def test_i12_a_cancelled_guard_is_clean(self, facade: BlockingLockProvider, other: LockProvider, name: str) -> None:
        async def work(lock: str) -> None:
            async with hold_async(lock, lock_at_most_for="1h", provider=facade.async_provider) as lease:
                assert lease is not None
                await asyncio.sleep(0.001)

        self._is_clean_after(facade, other, name, work)

    def test_i12_a_timed_out_guard_is_clean(self, facade: BlockingLockProvider, other: LockProvider, name: str) -> None:
        async def work(lock: str) -> None:
            try:
                async with (
                    asyncio.timeout(int(lock.rpartition("/")[2]) * 0.0002),
                    hold_async(lock, lock_at_most_for="1h", provider=facade.async_provider),
                ):
                    await asyncio.sleep(1)
            except TimeoutError:
                pass

        async def at_all_moments() -> None:
            for moment in self.moments[::2]:
                await work(f"{name}/{moment}")

        facade.run(at_all_moments())
        for moment in self.moments[::2]:
            acquired(other, LockRequest(f"{name}/{moment}", LONG))

    def test_i12_the_provider_works_after_cancellations(self, facade: BlockingLockProvider, name: str) -> None:
        provider = facade.async_provider

        async def extend_new(lock: str) -> None:
            lease = await provider.take_over(LockRequest(lock, LONG))
            await provider.extend(lease, LONG)
            await provider.release(lease)

        async def many() -> None:
            for operation in (provider.record, provider.records, provider.force_release, extend_new):
                for moment in self.moments[::2]:
                    await cancel_at(moment, operation(f"{name}/cancelled"))
            for _ in range(10):
                lease = await provider.acquire(LockRequest(name, LONG))
                assert lease is not None
                assert await provider.extend(lease, LONG) is lease
                assert await provider.release(lease) is True

        facade.run(many())
        gc.collect()  # report lost connections here, not in another test

    def test_i1_a_herd_on_one_event_loop_is_skipped(self, facade: BlockingLockProvider, name: str) -> None:
        acquired(facade, LockRequest(name, LONG))

        async def many() -> list[object]:
            skips = (facade.async_provider.acquire(LockRequest(name, LONG)) for _ in range(self.herd))
            return await asyncio.gather(*skips)

        assert facade.run(many()) == [None] * self.herd

    def test_i1_counters_behind_locks_come_out_exact_on_one_event_loop(
        self, facade: BlockingLockProvider, name: str
    ) -> None:
        counters = {f"{name}/a": 0, f"{name}/b": 0}
        provider = facade.async_provider

        async def work(index: int) -> None:
            for number in range(5):
                lock = f"{name}/{'ab'[(number + index) % 2]}"
                while (lease := await provider.acquire(LockRequest(lock, LONG))) is None:  # noqa: ASYNC110 (another task ends it)
                    await asyncio.sleep(0.01)
                value = counters[lock]
                await asyncio.sleep(0.001)
                counters[lock] = value + 1
                assert await provider.release(lease) is True

        async def all_at_once() -> None:
            async with asyncio.timeout(50):
                await asyncio.gather(*(work(index) for index in range(5)))

        facade.run(all_at_once())
        assert sum(counters.values()) == 5 * 5

    def test_an_async_guard_runs_skips_and_is_reentrant(self, facade: BlockingLockProvider, name: str) -> None:
        provider = facade.async_provider

        async def inner() -> str:
            lease = current_lease()
            assert lease is not None
            async with hold_async(name, provider=provider) as again:
                assert again is lease
            assert await extend_lock_async("1h") is lease
            return "value"

        async def guarded() -> None:
            result = await attempt_async(name, inner, provider=provider)
            assert isinstance(result, Executed)
            assert result.value == "value"
            assert current_lease() is None
            assert await provider.acquire(LockRequest(name, LONG)) is not None
            assert await attempt_async(name, never, provider=provider) == Skipped(name, "held")

        facade.run(guarded())

    def test_i5_no_reply_is_an_error_under_asyncio(self, failing_provider: LockProvider, name: str) -> None:
        assert isinstance(failing_provider, BlockingLockProvider)
        provider: AsyncLockProvider = failing_provider.async_provider
        with pytest.raises(ProviderUnreachable) as caught:
            failing_provider.run(attempt_async(name, never, provider=provider))
        assert (caught.value.operation, caught.value.lock_name) == ("acquire", name)

    def test_i8_a_lost_lease_and_a_failing_release_keep_value_and_exception_under_asyncio(
        self, facade: BlockingLockProvider, other: LockProvider, name: str, events: RecordingListener
    ) -> None:
        provider = facade.async_provider

        async def task(fail: bool) -> str:
            await asyncio.to_thread(other.take_over, LockRequest(name, LONG))
            return str(1 / (not fail))

        async def all_of_it() -> None:
            for store in (provider, failing(provider, "release")):
                await asyncio.to_thread(other.force_release, name)
                result = await attempt_async(name, lambda: task(False), provider=store)
                assert isinstance(result, Executed)
                assert result.value == "1.0"
                await asyncio.to_thread(other.force_release, name)
                with pytest.raises(ZeroDivisionError):
                    await attempt_async(name, lambda: task(True), provider=store)

        facade.run(all_of_it())
        assert [event.reason for event in events.of(LeaseLost)] == ["revoked", "revoked"]
        assert [event.operation for event in events.of(ProviderFailed)] == ["release", "release"]
        assert record_of(other, name).is_held

    def test_i9_a_lease_holds_nothing_but_its_record_under_asyncio(
        self, facade: BlockingLockProvider, name: str
    ) -> None:
        provider = facade.async_provider
        all_are_inside = asyncio.Event()
        inside: list[str] = []

        @asynccontextmanager
        async def noted(lock: str) -> AsyncIterator[None]:
            inside.append(lock)
            if len(inside) == 25:
                all_are_inside.set()
            yield

        async def task(lock: str) -> None:
            async with hold_async(lock, provider=provider) as lease, noted(lock):
                assert lease is not None
                async with asyncio.timeout(30):
                    await all_are_inside.wait()

        async def all_at_once() -> None:
            await asyncio.gather(*(task(f"{name}/{number}") for number in range(25)))

        facade.run(all_at_once())


def is_held(provider: LockProvider, name: str) -> bool:
    record = provider.record(name)
    return record is not None and record.is_held


async def never() -> None:
    pytest.fail("the task ran")
