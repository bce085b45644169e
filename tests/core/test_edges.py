"""Unusual uses of blocks: forks, late extensions, mixed-up stores, wrong arguments."""

import asyncio
from collections.abc import Callable
from datetime import UTC, time
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    InMemoryLockProvider,
    Lease,
    LeaseLostError,
    LockRequest,
    Skipped,
    attempt_async,
    configure,
    current_lease,
    extend_lock,
    extend_lock_async,
    hold,
    hold_async,
    scheduler_lock,
    set_active,
)
from shedlock_py.guard.context import add_alias, current
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.testing import FakeClock, RecordingListener
from shedlock_py.testing.forks import in_child
from tests.support.polling import let_pass


@pytest.mark.parametrize("block", [hold, hold_async])
def test_a_block_is_no_decorator(provider: InMemoryLockProvider, block: Any) -> None:
    with pytest.raises(TypeError, match="use @scheduler_lock"):
        block("job")(print)


@pytest.mark.parametrize("age", ["1s", "1h"])
def test_i1_a_forked_child_that_leaves_the_block_releases_nothing_and_emits_nothing(
    provider: InMemoryLockProvider, recorded: RecordingListener, clock: FakeClock, age: str
) -> None:
    block = hold("job", lock_at_most_for="30m")

    def child() -> None:
        clock.advance(age)
        block.__exit__(None, None, None)
        assert recorded.kinds() == ["LockAcquired"]
        assert provider.records()[0].is_held == (age == "1s")

    with block:
        in_child(child)
    assert recorded.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]


def test_i3_a_block_made_before_a_fork_is_released_by_the_child_that_enters_it(provider: InMemoryLockProvider) -> None:
    block = hold("job")

    def child() -> None:
        with block:
            assert provider.records()[0].is_held
        assert not provider.records()[0].is_held

    in_child(child)


class TestExtensions:
    def test_i6_one_that_comes_after_the_release_gives_no_trust_back(self, provider: InMemoryLockProvider) -> None:
        lease = provider.acquire(LockRequest("job", "10s"))
        assert lease is not None
        extension = lease._begin_extension("1h")
        provider.release(lease)
        assert not extension.granted().is_trusted()

    def test_i12_a_cancelled_one_ends_before_the_release(self, provider: InMemoryLockProvider) -> None:
        """The request runs in a worker thread, which cannot be stopped."""
        order: list[str] = []
        extending: list[Callable[[], object]] = []
        extend, release = provider.extend, provider.release

        def slow_extend(lease: Lease, lock_at_most_for: Duration) -> Lease | None:
            extending[0]()
            let_pass(0.05)  # long enough for a release that does not wait to begin
            extended = extend(lease, lock_at_most_for)
            order.append("extended")
            return extended

        def noted_release(lease: Lease) -> bool:
            order.append("released")
            return release(lease)

        provider.extend = slow_extend  # type: ignore[method-assign]  # a spy
        provider.release = noted_release  # type: ignore[method-assign]  # a spy

        async def main() -> None:
            async def job() -> None:
                async with hold_async("job"):
                    await extend_lock_async("1h")

            task = asyncio.create_task(job())
            loop = asyncio.get_running_loop()
            extending.append(lambda: loop.call_soon_threadsafe(task.cancel))
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert order == ["extended", "released"]
        assert not provider.records()[0].is_held

    def test_the_sync_one_on_an_async_provider_names_its_twin(self) -> None:
        async def main() -> None:
            async with hold_async("job", provider=AsyncInMemoryLockProvider()):
                extend_lock("1m")

        with pytest.raises(ConfigurationError, match="await the async twin, such as extend_lock_async"):
            asyncio.run(main())


def test_a_job_that_ends_only_after_its_next_run_has_begun_grows_no_chain(provider: InMemoryLockProvider) -> None:
    lengths = []

    async def job(number: int, has_begun: asyncio.Event) -> None:
        async with hold_async(f"job-{number}"):
            lengths.append(_chain_length())
            has_begun.set()
            next_has_begun = asyncio.Event()
            following = asyncio.create_task(job(number + 1, next_has_begun)) if number < 20 else None
            if following is not None:
                await next_has_begun.wait()
        if following is not None:
            await following

    asyncio.run(job(0, asyncio.Event()))
    assert len(lengths) == 21
    assert max(lengths) <= 3


def _chain_length() -> int:
    length, held = 0, current.get()
    while held is not None:
        length, held = length + 1, held.parent
    return length


def test_an_alias_counts_as_that_lock_of_that_function_only(provider: InMemoryLockProvider) -> None:
    @scheduler_lock("sync-{tenant}")
    def sync(tenant: str) -> str:
        return tenant

    spec = sync.__shedlock__  # type: ignore[attr-defined]  # what every guarded function carries
    for tenant in ("a", "b"):
        provider.acquire(LockRequest(f"sync-{tenant}", "10m"))
    with hold("other"):
        add_alias(spec, "sync-a")
        assert sync("a") == "a"
        assert sync.attempt("b") == Skipped("sync-b")
        assert sync("a") == "a"
    assert sync("a") is None


def test_attempt_async_refuses_what_cannot_be_awaited(provider: InMemoryLockProvider) -> None:
    with pytest.raises(TypeError, match="not something to await: use attempt or hold"):
        asyncio.run(attempt_async("job", lambda: None))  # type: ignore[arg-type,return-value]  # the mistake


def test_a_class_is_no_provider() -> None:
    with pytest.raises(ConfigurationError, match="InMemoryLockProvider is a class"):
        configure(provider=InMemoryLockProvider)  # type: ignore[arg-type]  # the mistake


def test_switching_locks_off_does_not_make_extensions_up(provider: InMemoryLockProvider) -> None:
    with hold("job") as lease:
        provider.force_release("job")
        set_active(False)
        with pytest.raises(LeaseLostError):
            extend_lock("1h")
        assert current_lease() is None
        assert lease is not None
        assert not lease.is_trusted()


def test_a_time_of_day_is_no_fire_time() -> None:
    with pytest.raises(ConfigurationError, match="fire_time must be an aware datetime"):
        LockRequest("job", "1m", fire_time=time(12, tzinfo=UTC))  # type: ignore[arg-type]  # the mistake


def test_a_number_too_long_to_print_is_no_duration() -> None:
    with pytest.raises(ConfigurationError, match="over ten years"):
        parse_duration(10**5000)
