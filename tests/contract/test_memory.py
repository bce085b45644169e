"""The contract on the store in memory, and tests that need a clock of our own."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    InMemoryLockProvider,
    LeaseLost,
    LockRequest,
    attempt,
    configure,
)
from shedlock_py.providers.kit import locking
from shedlock_py.testing import FakeClock, RecordingListener
from shedlock_py.testing.contract import (
    AsyncHistoryContract,
    AsyncLockProviderContract,
    AsyncPauseContract,
    ContractBase,
    HistoryContract,
    LockProviderContract,
    LockProviderFactory,
    PauseContract,
)
from tests.contract.parts import SAME_PROGRAMS, AsyncClient, without


class TestMemory(LockProviderContract, HistoryContract, PauseContract):
    @pytest.fixture
    def make_provider(self) -> LockProviderFactory:
        provider = InMemoryLockProvider()
        return lambda: provider

    @pytest.fixture
    def make_history_provider(self, provider: InMemoryLockProvider) -> object:
        return lambda history: InMemoryLockProvider(shared_with=provider, history=history)


class AsyncMemory(ContractBase):
    @pytest.fixture
    def shared(self) -> InMemoryLockProvider:
        return InMemoryLockProvider()

    @pytest.fixture
    def make_async_provider(self, shared: InMemoryLockProvider) -> object:
        return lambda: AsyncInMemoryLockProvider(shared_with=shared)

    @pytest.fixture
    def make_async_history_provider(self, shared: InMemoryLockProvider) -> object:
        return lambda history: AsyncInMemoryLockProvider(shared_with=shared, history=history)


class TestAsyncMemory(AsyncMemory, AsyncClient): ...


@pytest.mark.slow(SAME_PROGRAMS)
@without(AsyncClient)
class TestAsyncMemoryPrograms(AsyncMemory, AsyncLockProviderContract, AsyncHistoryContract, AsyncPauseContract): ...


def test_sync_and_async_share_one_store() -> None:
    sync = InMemoryLockProvider()
    shared = AsyncInMemoryLockProvider(shared_with=sync)
    alone = AsyncInMemoryLockProvider()
    assert sync.acquire(LockRequest("job", "1m"))
    for provider, is_free in ((shared, False), (alone, True)):
        lease = asyncio.run(provider.acquire(LockRequest("job", "1m")))
        assert (lease is not None) is is_free


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def provider(clock: FakeClock) -> InMemoryLockProvider:
    return InMemoryLockProvider(clock=clock)


def test_i3_a_lease_ends_at_the_very_microsecond(provider: InMemoryLockProvider, clock: FakeClock) -> None:
    provider.acquire(LockRequest("job", "10s"))
    clock.advance(timedelta(seconds=10, microseconds=-1))
    assert provider.acquire(LockRequest("job", "10s")) is None
    clock.advance(timedelta(microseconds=1))
    assert provider.acquire(LockRequest("job", "10s"))


def test_i1_the_maximum_hold_is_exact_at_any_moment() -> None:
    for moment, seconds in product((0.0, 1000.0, 1234.567891), (0.1, 59.9, 86_399.999)):
        clock = FakeClock()
        clock.advance(moment)
        provider = InMemoryLockProvider(clock=clock)
        assert provider.acquire(LockRequest("job", seconds))
        clock.advance(timedelta(seconds=seconds) - timedelta(microseconds=1))
        assert provider.acquire(LockRequest("job", seconds)) is None
        clock.advance(timedelta(microseconds=1))
        assert provider.acquire(LockRequest("job", seconds))


def test_i4_the_minimum_hold_is_exact(provider: InMemoryLockProvider, clock: FakeClock) -> None:
    lease = provider.acquire(LockRequest("job", "10s", "4s"))
    assert lease
    clock.advance("1s")
    assert provider.release(lease)
    clock.advance(timedelta(seconds=3, microseconds=-1))
    assert provider.acquire(LockRequest("job", "10s")) is None
    clock.advance(timedelta(microseconds=1))
    assert provider.acquire(LockRequest("job", "10s"))


def test_i4_a_shorter_extension_is_stretched_to_the_minimum_hold(
    provider: InMemoryLockProvider, clock: FakeClock
) -> None:
    lease = provider.acquire(LockRequest("job", "10s", "4s"))
    assert lease
    clock.advance("1s")
    assert provider.extend(lease, "1s") is lease
    assert lease.trusted_for() == timedelta(seconds=2.968)
    clock.advance("2.9s")
    assert provider.acquire(LockRequest("job", "10s")) is None
    clock.advance("0.1s")
    assert provider.acquire(LockRequest("job", "10s"))


def test_i6_trust_ends_at_99_percent_less_2_milliseconds(provider: InMemoryLockProvider, clock: FakeClock) -> None:
    lease = provider.acquire(LockRequest("job", "10s"))
    assert lease
    assert lease.trusted_for() == timedelta(seconds=9.898)
    clock.advance("9.897s")
    assert lease.is_trusted()
    assert lease.trusted_for() == timedelta(milliseconds=1)
    clock.advance("1ms")
    assert not lease.is_trusted()
    assert lease.trusted_for() == timedelta(0)
    assert provider.acquire(LockRequest("job", "10s")) is None  # the store gives it away 102 ms later


def test_i6_an_extension_moves_the_trust_to_exactly_its_own_end(
    provider: InMemoryLockProvider, clock: FakeClock
) -> None:
    lease = provider.acquire(LockRequest("job", "10s"))
    assert lease
    clock.advance("5s")
    assert provider.extend(lease, "20s") is lease
    assert lease.trusted_for() == timedelta(seconds=19.798)
    assert provider.extend(lease, "1s") is lease
    assert lease.trusted_for() == timedelta(seconds=0.988)


def test_a_task_that_outlives_its_lease_in_virtual_time_is_an_overrun(
    provider: InMemoryLockProvider, clock: FakeClock
) -> None:
    heard = RecordingListener()
    with configure(provider=provider, listeners=[heard]):
        attempt("job", lambda: clock.advance("11m"))
    assert [event.reason for event in heard.of(LeaseLost)] == ["overrun"]


def test_prune_deletes_records_that_are_old_enough(provider: InMemoryLockProvider, clock: FakeClock) -> None:
    for name in ("old", "older", "held"):
        assert provider.acquire(LockRequest(name, "1h"))
    for name in ("old", "older"):
        assert provider.force_release(name)
    clock.advance("30m")
    assert provider.prune("31m") == 0
    assert provider.prune("30m") == 2
    assert [record.name for record in provider.records()] == ["held"]


def test_i7_tokens_outlive_the_records_when_the_clock_stands_still(provider: InMemoryLockProvider) -> None:
    tokens = []
    for _ in range(100):
        lease = provider.acquire(LockRequest("job", "1h"))
        assert lease
        assert lease.fencing_token
        tokens.append(lease.fencing_token)
        provider.release(lease)
        provider.prune(0)
    assert tokens == sorted(set(tokens))


def test_i2_a_take_over_that_is_late_replaces_no_successor_of_the_same_instant(provider: InMemoryLockProvider) -> None:
    """It names the record to replace by its token, and a release has changed the token."""
    lease = provider.acquire(LockRequest("job", "1h"))
    assert lease
    provider.release(lease)
    store, program = provider.programs.store, locking.take_over(provider.programs, LockRequest("job", "1h"))
    late = program.send(store.execute(next(program), None))
    successor = provider.acquire(LockRequest("job", "1h"))
    assert successor
    assert store.execute(late, None) is None
    assert provider.release(successor) is True


def test_a_run_in_which_the_stores_clock_was_set_back_has_taken_no_negative_time() -> None:
    now = 1000.0
    provider = InMemoryLockProvider(clock=lambda: now, history=5)
    lease = provider.acquire(LockRequest("job", "1h"))
    assert lease
    now -= 10
    provider.release(lease)
    [run] = provider.runs("job")
    assert run.ended is not None
    assert run.ended < run.started
    assert run.duration == timedelta(0)


def test_i11_a_late_copy_of_forget_fire_time_forgets_none_that_was_granted_since(
    provider: InMemoryLockProvider,
) -> None:
    def grant(fire_time: datetime) -> None:
        lease = provider.acquire(LockRequest("job", "1m", fire_time=fire_time))
        assert lease
        provider.release(lease)

    now = datetime.now(UTC)
    grant(now - timedelta(seconds=2))
    store, program = provider.programs.store, provider.programs.forget_fire_time("job")
    late = program.send(store.execute(next(program), None))
    grant(now - timedelta(seconds=1))
    assert store.execute(late, None) is False
    record = provider.record("job")
    assert record is not None
    assert record.last_fire_time == now - timedelta(seconds=1)
