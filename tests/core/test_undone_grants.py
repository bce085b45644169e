"""A grant is undone if no task will run under it: the lock is free at once, without minimum hold, and its fire time is
given back."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any, NoReturn

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    InMemoryLockProvider,
    Lease,
    LockRecord,
    LockRequest,
    ProviderFailed,
    ProviderUnreachable,
    Skipped,
    attempt,
    attempt_async,
    configure,
    current_lease,
    hold,
)
from shedlock_py.guard import async_keepalive, block
from shedlock_py.guard.context import running
from shedlock_py.providers.kit import ProgramProvider
from shedlock_py.testing import FakeClock, RecordingListener
from tests.core.conftest import SlowProvider
from tests.core.test_block_endings import Interruption

pytestmark = pytest.mark.anyio

FIRE_TIME = datetime(2026, 1, 1, tzinfo=UTC)
REQUEST = LockRequest("job", "10m", "5m", fire_time=FIRE_TIME)


@pytest.fixture
def store(clock: FakeClock, recorded: RecordingListener) -> Iterator[SlowProvider]:
    store = SlowProvider(clock)
    with configure(provider=store, async_provider=AsyncSlowProvider(store), listeners=[recorded]):
        yield store


class AsyncSlowProvider(AsyncInMemoryLockProvider):
    """The operations of ``store``, for asyncio."""

    def __init__(self, store: SlowProvider) -> None:
        super().__init__()
        self.store = store

    async def acquire(self, request: LockRequest) -> Lease | None:
        return self.store.acquire(request)

    async def undo(self, lease: Lease) -> bool:
        return self.store.undo(lease)

    async def record(self, name: str) -> LockRecord | None:
        return self.store.record(name)


def never() -> NoReturn:
    pytest.fail("the task ran")


async def never_async() -> NoReturn:
    pytest.fail("the task ran")


def assert_undone(store: InMemoryLockProvider) -> None:
    """A release would have kept the minimum hold and the fire time."""
    (record,) = store.records()
    assert not record.is_held
    assert record.last_fire_time is None or record.last_fire_time < FIRE_TIME
    assert current_lease() is None
    assert not running


def test_i4_a_real_run_keeps_its_minimum_hold_however_it_ended(store: SlowProvider) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(REQUEST, interrupted)
    (record,) = store.records()
    assert (record.is_held, record.last_fire_time) == (True, FIRE_TIME)


async def attempt_sync(request: LockRequest, **options: Any) -> object:
    return attempt(request, never, **options)


async def attempt_in_asyncio(request: LockRequest, **options: Any) -> object:
    return await attempt_async(request, never_async, **options)


ways = pytest.mark.parametrize("way", [attempt_sync, attempt_in_asyncio])


@ways
async def test_a_grant_that_came_too_late(way: Any, store: SlowProvider, recorded: RecordingListener) -> None:
    store.seconds = 599
    with pytest.raises(ProviderUnreachable, match="may be over already"):
        await way(REQUEST)
    assert_undone(store)
    assert recorded.kinds() == ["ProviderFailed"]


def failing_keep_alive(*_: object) -> NoReturn:
    raise MemoryError


@ways
async def test_a_keep_alive_that_cannot_start(
    way: Any, store: SlowProvider, recorded: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "ThreadKeepAlive", failing_keep_alive)
    monkeypatch.setattr(async_keepalive, "TaskKeepAlive", failing_keep_alive)
    with pytest.raises(MemoryError):
        await way(REQUEST, keep_alive=True)
    assert_undone(store)
    assert recorded.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]


def test_i12_an_interruption_between_the_grant_and_the_task(store: SlowProvider) -> None:
    """Ctrl-C, or a SystemExit from SIGTERM, at each moment when Python notices it."""
    begins = (SlowProvider.acquire.__code__, "return")
    ends = (block.Block.__enter__.__code__, "return")
    for number in itertools.count():
        interruption = Interruption(number, begins, ends)
        with suppress(KeyboardInterrupt), interruption:
            copy_context().run(attempt, REQUEST, lambda: None)
        running.clear()  # left behind by an interruption at the very end
        if not interruption.has_come:
            break  # all moments were tried
        assert_undone(store)
    assert number >= 5
    assert store.records()[0].is_held  # the run that happened keeps its minimum hold


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interruption_of_the_acquire_itself_is_no_event(
    store: SlowProvider, recorded: RecordingListener, kind: type[BaseException]
) -> None:
    def interrupted(request: LockRequest) -> Lease | None:
        raise kind

    store.acquire = interrupted  # type: ignore[method-assign]  # the provider undoes what it has begun, and raises it again
    with pytest.raises(kind):
        attempt(REQUEST, never)
    with pytest.raises(kind), hold(REQUEST):
        never()
    assert recorded.events == []
    assert store.records() == []
    assert current_lease() is None
    assert not running


@pytest.mark.parametrize("has_name", [False, True])
def test_a_provider_without_undo_releases(
    has_name: bool, provider: InMemoryLockProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``undo = None`` in a class means that the method does not exist, like ``__hash__ = None``."""
    if has_name:
        monkeypatch.setattr(ProgramProvider, "undo", None)
    else:
        monkeypatch.delattr(ProgramProvider, "undo")
    monkeypatch.setattr(block, "ThreadKeepAlive", failing_keep_alive)
    with pytest.raises(MemoryError):
        attempt("job", never, keep_alive=True)
    assert not provider.records()[0].is_held


def test_i8_an_undo_that_fails_is_reported_and_does_not_replace_the_error(
    store: SlowProvider, recorded: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_undo(lease: Lease) -> bool:
        raise ProviderUnreachable("no reply", operation="undo", lock_name=lease.name)

    store.undo = failing_undo  # type: ignore[method-assign]  # a fault
    monkeypatch.setattr(block, "ThreadKeepAlive", failing_keep_alive)
    with pytest.raises(MemoryError):
        attempt(REQUEST, never, keep_alive=True)
    assert [event.operation for event in recorded.of(ProviderFailed)] == ["release"]


@pytest.mark.parametrize("error", [ProviderUnreachable("no reply", operation="record"), OSError("odd"), KeyError("x")])
class TestALookUpThatFails:
    """The record that explains a skip is read after the refusal. The task is skipped in any case, with a warning."""

    @ways
    async def test_i5_raises_nothing(
        self, way: Any, store: SlowProvider, recorded: RecordingListener, error: Exception
    ) -> None:
        def record(name: str) -> LockRecord | None:
            raise error

        store.acquire(REQUEST)
        store.record = record  # type: ignore[method-assign]  # a fault
        assert await way(REQUEST) == Skipped("job", "held")
        assert recorded.kinds() == ["ProviderFailed", "LockSkipped"]
