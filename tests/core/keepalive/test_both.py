"""Keep-alive of ordinary and of async tasks, which must behave the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from shedlock_py import (
    Executed,
    InMemoryLockProvider,
    LeaseLost,
    LockExtended,
    LockReleased,
    LockRequest,
    NotLocked,
    ProviderFailed,
    assert_locked,
    attempt,
    attempt_async,
    configure,
    current_lease,
    extend_lock,
    extend_lock_async,
    scheduler_lock,
)
from shedlock_py.guard import async_keepalive
from shedlock_py.guard.keepalive import MAX_IN_FLIGHT
from shedlock_py.testing import FakeClock, RecordingListener
from tests.observability.ways import run_at_once
from tests.support.doubles import AsyncFaultyProvider
from tests.support.logs import records_of
from tests.support.stepped_loop import run_stepped
from tests.support.stepped_timer import STEP, SteppedTimer

LEASE = 0.9
"""Seconds of virtual time."""

Body = Callable[[], Awaitable[object]]


class Twin:
    """A way to guard a task, and the store. In ordinary code, the task's coroutine never waits."""

    def __init__(self, timer: SteppedTimer, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_async = is_async
        self._monkeypatch = monkeypatch
        self._timer = timer
        self.clock = timer.clock
        self.store: Any = AsyncFaultyProvider(clock=self.clock) if is_async else timer.store()
        self.peer: Any = self.store.sync if is_async else self.store.inner
        """Another replica's provider on the same store, without faults."""

    def run(self, body: Body, **options: Any) -> Any:
        options = {"lock_at_most_for": LEASE, "keep_alive": True, "provider": self.store} | options
        if self.is_async:
            return self.run_on_loop(lambda: attempt_async("job", body, **options))
        return attempt("job", self.in_ordinary_code(body), **options)

    def run_on_loop(self, work: Callable[[], Any]) -> Any:
        return run_stepped(lambda _: work(), self._monkeypatch, self.clock)

    def in_ordinary_code(self, body: Body) -> Callable[[], object]:
        result: list[object] = []

        async def work() -> None:
            result.append(await body())

        def task() -> object:
            run_at_once(work())
            return result.pop()

        return task

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = self.clock() + 20
        while not condition():
            assert self.clock() < deadline
            if self.is_async:
                await asyncio.sleep(STEP)
            else:
                self._timer.advance(STEP)

    async def outlasts(self, lease_lengths: float) -> None:
        """Let the task run for so many leases, and check that it always has the lock."""
        end = self.clock() + lease_lengths * LEASE

        def is_over() -> bool:
            assert_locked("job")
            return self.clock() >= end

        await self.until(is_over)

    async def extend(self, lock_at_most_for: str | float) -> None:
        if self.is_async:
            await extend_lock_async(lock_at_most_for)
        else:
            extend_lock(lock_at_most_for)


@pytest.fixture(params=[pytest.param(False, id="thread"), pytest.param(True, id="event loop")])
def twin(request: pytest.FixtureRequest, timer: SteppedTimer, monkeypatch: pytest.MonkeyPatch) -> Twin:
    return Twin(timer, request.param, monkeypatch)


def test_a_task_outlasts_its_lease(twin: Twin, recorded: RecordingListener) -> None:
    async def body() -> str:
        await twin.outlasts(1.8)
        assert twin.peer.acquire(LockRequest("job", "1m")) is None
        return "done"

    result = twin.run(body)
    assert isinstance(result, Executed)
    assert result.value == "done"
    assert twin.peer.acquire(LockRequest("job", "1m")) is not None
    assert not recorded.of(LeaseLost)
    assert 2 <= twin.store.calls["extend"] == len(recorded.of(LockExtended)) <= 1.8 * 3 + 2
    assert len(recorded.of(LockReleased)) == 1


def test_keep_alive_is_an_option_of_the_decorator_and_a_default(twin: Twin) -> None:
    async def body() -> None:
        await twin.outlasts(1.2)

    task: Any = body if twin.is_async else twin.in_ordinary_code(body)
    guard: Any = scheduler_lock("job", lock_at_most_for=LEASE, keep_alive=True, provider=twin.store)
    guarded = guard(task)
    if twin.is_async:
        twin.run_on_loop(guarded)
    else:
        guarded()
    with configure(keep_alive=True):
        twin.run(body, keep_alive=None)
        before = twin.store.calls["extend"]
        assert before >= 2
        with pytest.raises(NotLocked):
            twin.run(body, keep_alive=False)
    assert twin.store.calls["extend"] == before


@pytest.mark.parametrize("fault", ["fail", "hang"])
def test_a_store_that_is_away_for_half_a_lease(twin: Twin, recorded: RecordingListener, fault: str) -> None:
    async def body() -> None:
        await twin.until(lambda: recorded.of(LockExtended))
        getattr(twin.store, fault)("extend")
        await twin.outlasts(1)
        twin.store.recover()
        await twin.outlasts(1.5)

    twin.run(body, lock_at_most_for=LEASE * 2)
    assert not recorded.of(LeaseLost)
    assert len(recorded.of(LockReleased)) == 1
    assert bool(recorded.of(ProviderFailed)) is (fault == "fail")


@pytest.mark.parametrize("fault", ["fail", "hang"])
def test_i6_a_store_that_stays_away_loses_the_lease_before_the_store_gives_it_away(
    twin: Twin, recorded: RecordingListener, fault: str
) -> None:
    lost: list[LeaseLost] = []

    async def body() -> None:
        lease = current_lease()
        assert lease is not None

        def is_reported() -> bool:
            is_held = twin.peer.record("job").is_held
            assert is_held or not lease.is_trusted()  # in this order: the holder stops first
            return bool(lost)

        getattr(twin.store, fault)("extend")
        trust_ends = lease.trusted_until
        await twin.until(is_reported)
        assert twin.clock() - trust_ends < 2 * STEP, "reported when the trust has ended, and no later"
        assert not lease.is_trusted()
        if fault == "fail":
            assert len(recorded.of(ProviderFailed)) >= 3  # no error ended it
        assert twin.store.most_at_once["extend"] <= MAX_IN_FLIGHT
        twin.store.recover()
        extensions = twin.store.calls["extend"]
        await twin.until(lambda: twin.peer.acquire(LockRequest("job", "1m")))
        assert not lease.is_trusted()
        assert twin.store.calls["extend"] == extensions  # a lost lease is not extended

    twin.run(body, on_lost=lost.append)
    assert [event.reason for event in recorded.of(LeaseLost)] == ["unreachable"]
    assert twin.peer.record("job").is_held  # by the successor


def test_a_revoked_lease_is_known_at_the_next_heartbeat(
    twin: Twin, recorded: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[LeaseLost] = []

    async def body() -> str:
        lease = current_lease()
        assert lease is not None
        successor = twin.peer.take_over(LockRequest("job", "1m"))
        await twin.until(lambda: lost)
        assert not lease.is_trusted()
        assert (lost[0].reason, lost[0].lease) == ("revoked", lease)
        assert successor.is_trusted()
        return "value"

    assert twin.run(body, on_lost=lost.append).value == "value"
    assert recorded.of(LeaseLost) == lost
    assert [record.levelname for record in records_of(caplog, "was lost")] == ["WARNING"]


def test_the_task_extends_its_lease_itself(twin: Twin, recorded: RecordingListener) -> None:
    async def body() -> None:
        lease = current_lease()
        assert lease is not None
        await twin.until(lambda: recorded.of(LockExtended))
        await twin.extend("10m")
        before = twin.store.calls["extend"]
        await twin.outlasts(1)
        assert twin.store.calls["extend"] == before  # the next heartbeat comes only after a third of ten minutes
        for _ in range(100):
            await twin.extend("10m")
            assert lease.trusted_for() > timedelta(minutes=9)
            await twin.extend(LEASE / 3)
        await twin.extend(LEASE)
        before = twin.store.calls["extend"]
        await twin.outlasts(1.2)
        assert twin.store.calls["extend"] > before

    twin.run(body)
    assert not recorded.of(LeaseLost)


def test_heartbeats_extend_by_what_the_task_has_requested_last(twin: Twin, recorded: RecordingListener) -> None:
    async def body() -> None:
        lease = current_lease()
        assert lease is not None
        await twin.extend(LEASE)
        await twin.until(lambda: len(recorded.of(LockExtended)) >= 3)  # two of them are heartbeats
        assert lease.lock_at_most_for == timedelta(seconds=LEASE)

    twin.run(body, lock_at_most_for="1m")


def test_an_extension_that_is_refused_is_reported_once(twin: Twin, recorded: RecordingListener) -> None:
    lost: list[LeaseLost] = []

    async def body() -> None:
        twin.peer.take_over(LockRequest("job", "1m"))
        with pytest.raises(Exception, match="could not be extended"):
            await twin.extend("1m")
        await twin.until(lambda: lost)

    twin.run(body, lock_at_most_for="1m", on_lost=lost.append)
    assert [event.reason for event in lost] == ["revoked"]
    assert recorded.of(LeaseLost) == lost


def test_an_extension_in_doubt_does_not_hurry_the_heartbeats(twin: Twin) -> None:
    """The store may still execute it, so the next extension is trusted for no longer than the one in doubt."""

    async def body() -> None:
        lease = current_lease()
        assert lease is not None
        lease._begin_extension("30s")  # as a provider does before the store fails to reply
        await twin.extend("10m")
        assert lease.trusted_for() < timedelta(seconds=30)
        await twin.outlasts(1)

    twin.run(body, lock_at_most_for="30s")
    assert twin.store.calls["extend"] == 1


def test_on_lost_also_without_keep_alive(twin: Twin, recorded: RecordingListener) -> None:
    lost: list[LeaseLost] = []

    async def body() -> None:
        await twin.until(lambda: lost)

    twin.run(body, keep_alive=False, on_lost=lost.append)
    assert [event.reason for event in recorded.of(LeaseLost)] == ["overrun"]
    assert twin.store.calls["extend"] == 0


def test_i3_heartbeats_end_with_the_limit_so_that_a_hung_task_loses_its_lease(
    twin: Twin, recorded: RecordingListener
) -> None:
    lost: list[LeaseLost] = []

    async def body() -> None:
        start = twin.clock()
        await twin.until(lambda: lost)
        assert 3 <= twin.clock() - start <= 3 + LEASE
        await twin.until(lambda: twin.peer.acquire(LockRequest("job", "1m")))

    twin.run(body, keep_alive="3s", on_lost=lost.append)
    assert [event.reason for event in lost] == ["kept_too_long"]
    assert recorded.of(LeaseLost) == lost
    assert 3 / LEASE * 3 - 2 <= twin.store.calls["extend"] == len(recorded.of(LockExtended)) <= 3 / LEASE * 3


def test_a_loss_before_the_limit_has_its_own_reason(twin: Twin, recorded: RecordingListener) -> None:
    async def body() -> None:
        await twin.until(lambda: recorded.of(LeaseLost))

    twin.store.fail("extend")
    twin.run(body, keep_alive="3s")
    assert [event.reason for event in recorded.of(LeaseLost)] == ["unreachable"]


def test_a_lease_on_the_clock_of_a_test() -> None:
    """Heartbeats follow real time: a test's clock neither brings nor prevents a heartbeat."""
    for start in (0.0, 1e9):  # before and after this machine's own
        recorded = RecordingListener()
        provider = InMemoryLockProvider(clock=FakeClock(start=start))
        with configure(listeners=[recorded]):
            assert attempt("job", lambda: time.sleep(0.2), lock_at_most_for="30m", keep_alive=True, provider=provider)
        assert recorded.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]


@pytest.mark.parametrize("is_async", [False, True])
def test_heartbeats_of_a_lease_on_the_clock_of_a_test(is_async: bool) -> None:
    clock, recorded = FakeClock(start=1e9), RecordingListener()
    provider = InMemoryLockProvider(clock=clock)

    async def body() -> None:
        deadline = time.monotonic() + 20
        while "LockExtended" not in recorded.kinds() and time.monotonic() < deadline:
            clock.advance(0.05)
            await asyncio.sleep(0.05)

    with configure(provider=provider, listeners=[recorded]):
        if is_async:
            asyncio.run(attempt_async("job", body, lock_at_most_for=1, keep_alive=True))
        else:
            attempt("job", lambda: asyncio.run(body()), lock_at_most_for=1, keep_alive=True)
    assert "LockExtended" in recorded.kinds()


def test_i6_a_suspended_system_with_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop's timers do not count the time of a suspension. In threads: ``core/test_timers.py``."""
    monkeypatch.setattr(async_keepalive, "LONGEST_SLEEP", 0.05)
    clock, recorded = FakeClock(), RecordingListener()
    is_lost = asyncio.Event()

    async def body() -> None:
        await asyncio.sleep(0)
        clock.advance("31m")
        async with asyncio.timeout(10):
            await is_lost.wait()

    def on_lost(_: LeaseLost) -> None:
        is_lost.set()

    with configure(provider=InMemoryLockProvider(clock=clock), listeners=[recorded]):
        asyncio.run(attempt_async("job", body, lock_at_most_for="30m", keep_alive=True, on_lost=on_lost))
    assert [event.reason for event in recorded.of(LeaseLost)] == ["overrun"]
