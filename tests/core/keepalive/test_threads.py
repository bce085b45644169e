"""Keep-alive of ordinary tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from shedlock_py import (
    ConfigurationError,
    Lease,
    LeaseLost,
    LeaseLostError,
    LockExtended,
    LockReleased,
    LockRequest,
    NotLocked,
    ProviderFailed,
    TaskFinished,
    assert_locked,
    attempt,
    configure,
    extend_lock,
    hold,
    scheduler_lock,
)
from shedlock_py._timers import WorkerPool
from shedlock_py.durations import Duration
from shedlock_py.testing import RecordingListener
from tests.support.doubles import FaultyProvider
from tests.support.polling import wait_until

LEASE = 0.3
"""Seconds; the tests wait for several."""


@pytest.fixture
def store() -> Iterator[FaultyProvider]:
    store = FaultyProvider()
    yield store
    store.recover()  # for requests that still hang


def outlasts(lease_lengths: float) -> None:
    """A task of so many leases."""
    until = time.monotonic() + lease_lengths * LEASE
    while time.monotonic() < until:
        assert_locked("job")
        time.sleep(0.005)


def test_the_duration_of_a_task_is_without_the_heartbeat_that_is_waited_for(
    store: FaultyProvider, recorded: RecordingListener
) -> None:
    with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
        store.hang("extend")
        wait_until(lambda: store.calls["extend"], what="a heartbeat")
        ended_at = time.monotonic()
        threading.Timer(1.0, store.recover).start()
    assert time.monotonic() - ended_at > 0.9  # it was waited for
    (finished,) = recorded.of(TaskFinished)
    assert finished.duration < timedelta(seconds=0.9)


def test_a_task_outlasts_many_leases(store: FaultyProvider, recorded: RecordingListener) -> None:
    with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
        assert lease is not None
        outlasts(5)
        assert store.acquire(LockRequest("job", "1m")) is None
    assert store.acquire(LockRequest("job", "1m")) is not None
    assert not recorded.of(LeaseLost)
    assert 5 * 3 - 5 <= store.calls["extend"] <= 5 * 3 + 5
    assert len(recorded.of(LockExtended)) == store.calls["extend"]
    assert len(recorded.of(LockReleased)) == 1


def test_a_lease_that_took_long_to_get_is_extended_in_time(recorded: RecordingListener) -> None:
    """The trust window counts from the request, and so does the first heartbeat."""

    class Slow(FaultyProvider):
        """Answers late; the trust window has begun long before."""

        def acquire(self, request: LockRequest) -> Any:
            lease = super().acquire(request)
            if lease is not None:
                lease._trusted_until -= request.lock_at_most_for.total_seconds() * 0.8
            return lease

    store = Slow()
    with hold("job", lock_at_most_for=LEASE * 3, keep_alive=True, provider=store):
        outlasts(6)
    assert not recorded.of(LeaseLost)


def test_without_it_nothing_is_extended(store: FaultyProvider) -> None:
    with hold("job", lock_at_most_for=LEASE, provider=store) as lease:
        assert lease is not None
        wait_until(lambda: not lease.is_trusted())
    assert store.calls["extend"] == 0


def test_by_decorator_attempt_and_default(store: FaultyProvider) -> None:
    @scheduler_lock("job", lock_at_most_for=LEASE, keep_alive=True, provider=store)
    def job() -> str:
        outlasts(2)
        return "done"

    assert job() == "done"
    attempt("job", lambda: outlasts(2), lock_at_most_for=LEASE, keep_alive=True, provider=store)
    with configure(provider=store, keep_alive=True):
        attempt("job", lambda: outlasts(2), lock_at_most_for=LEASE)
        with hold("job", lock_at_most_for=LEASE, keep_alive=False):
            before = store.calls["extend"]
            with pytest.raises(NotLocked):
                outlasts(2)
    assert store.calls["extend"] == before


@pytest.mark.parametrize("fault", ["fail", "hang"])
def test_a_store_that_is_away_for_half_a_lease(store: FaultyProvider, recorded: RecordingListener, fault: str) -> None:
    with hold("job", lock_at_most_for=LEASE * 4, keep_alive=True, provider=store):
        outlasts(1)
        getattr(store, fault)("extend")
        outlasts(2)
        store.recover()
        outlasts(6)
    assert not recorded.of(LeaseLost)
    assert len(recorded.of(LockReleased)) == 1
    assert bool(recorded.of(ProviderFailed)) is (fault == "fail")


@pytest.mark.parametrize("fault", ["fail", "hang"])
def test_i6_a_store_that_stays_away_loses_the_lease_before_the_store_gives_it_away(
    store: FaultyProvider, recorded: RecordingListener, fault: str
) -> None:
    called = threading.Event()
    with hold("job", lock_at_most_for=LEASE, keep_alive=True, on_lost=lambda _: called.set(), provider=store) as lease:
        assert lease is not None
        getattr(store, fault)("extend")
        while not called.is_set():
            record = store.record("job")
            assert record is not None
            assert record.is_held or not lease.is_trusted()  # in this order: the holder stops first
        assert not lease.is_trusted()
        assert [event.reason for event in recorded.of(LeaseLost)] == ["unreachable"]
        if fault == "fail":
            assert len(recorded.of(ProviderFailed)) >= 3  # none of them ended it
        store.recover()
        extensions = store.calls["extend"]
        wait_until(lambda: store.acquire(LockRequest("job", "1m")) is not None)
        assert not lease.is_trusted()
    assert store.calls["extend"] == extensions  # a lost lease is not extended
    assert len(recorded.of(LeaseLost)) == 1
    record = store.record("job")
    assert record is not None
    assert record.is_held  # by the successor


def test_a_revoked_lease_is_known_at_the_next_heartbeat(
    store: FaultyProvider, recorded: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[LeaseLost] = []
    with hold("job", lock_at_most_for=LEASE, keep_alive=True, on_lost=lost.append, provider=store) as lease:
        assert lease is not None
        successor = store.take_over(LockRequest("job", "1m"))
        wait_until(lambda: bool(lost), timeout=LEASE * 10)
        assert not lease.is_trusted()
        assert (lost[0].reason, lost[0].lease) == ("revoked", lease)
    assert recorded.of(LeaseLost) == lost
    assert successor.is_trusted()
    assert [record.levelname for record in caplog.records if "was lost" in record.message] == ["WARNING"]


def test_on_lost_also_without_keep_alive(store: FaultyProvider, recorded: RecordingListener) -> None:
    lost: list[LeaseLost] = []
    with hold("job", lock_at_most_for=LEASE, on_lost=lost.append, provider=store):
        wait_until(lambda: bool(lost))
    assert [event.reason for event in recorded.of(LeaseLost)] == ["overrun"]


def test_i8_an_on_lost_that_raises(store: FaultyProvider, recorded: RecordingListener) -> None:
    def fail(lost: LeaseLost) -> None:
        raise RuntimeError("of on_lost")

    def task() -> str:
        wait_until(lambda: bool(recorded.of(LeaseLost)))
        return "value"

    result = attempt("job", task, lock_at_most_for=LEASE, on_lost=fail, provider=store)
    assert getattr(result, "value", None) == "value"


def test_the_task_extends_its_lease_itself(store: FaultyProvider, recorded: RecordingListener) -> None:
    with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
        assert lease is not None
        outlasts(1)
        extend_lock("10m")
        assert lease.trusted_for() > timedelta(minutes=9)
        before = store.calls["extend"]
        outlasts(3)
        assert store.calls["extend"] == before  # the next heartbeat is a third of ten minutes away
        assert lease.trusted_for() > timedelta(minutes=9)
        extend_lock(LEASE)
        outlasts(3)
        assert store.calls["extend"] > before
    assert not recorded.of(LeaseLost)


def test_a_task_that_extends_while_a_heartbeat_is_under_way(recorded: RecordingListener) -> None:
    """The heartbeat never has the last word with a shorter lease."""
    begun = threading.Event()

    class SlowHeartbeats(FaultyProvider):
        def extend(self, lease: Lease, lock_at_most_for: Duration) -> Any:
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                time.sleep(0.03)
            return super().extend(lease, lock_at_most_for)

    with hold("job", lock_at_most_for=LEASE * 5, keep_alive=True, provider=SlowHeartbeats()) as lease:
        assert lease is not None
        for _ in range(4):
            begun.clear()
            assert begun.wait(10)
            extend_lock("10m")
            time.sleep(0.06)  # longer than the heartbeat takes
            assert lease.trusted_for() > timedelta(minutes=9)
            extend_lock(LEASE * 5)
    assert not recorded.of(LeaseLost)


def test_a_lease_that_the_task_has_released(store: FaultyProvider, recorded: RecordingListener) -> None:
    with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
        assert lease is not None
        assert store.release(lease)
        until = time.monotonic() + LEASE * 2
        wait_until(lambda: time.monotonic() > until)
    assert not recorded.of(LeaseLost)


def test_i4_the_last_heartbeat_does_not_come_after_the_release(store: FaultyProvider) -> None:
    released: list[bool] = []

    def task() -> None:
        with hold("job", lock_at_most_for=LEASE, lock_at_least_for=LEASE, keep_alive=True, provider=store):
            store.hang("extend")
            wait_until(lambda: store.calls["extend"] > 0)
        released.append(True)

    thread = threading.Thread(target=task)
    thread.start()
    wait_until(lambda: store.calls["extend"] > 0)
    thread.join(LEASE / 3)
    assert not released
    store.recover()
    thread.join(10)
    record = store.record("job")
    assert record is not None
    assert record.remaining <= timedelta(seconds=LEASE)


def test_fifty_at_once_do_not_take_fifty_threads(store: FaultyProvider, recorded: RecordingListener) -> None:
    before = threading.active_count()
    inside = threading.Barrier(51)
    done = threading.Event()

    def job(number: int) -> None:
        with hold(f"job-{number}", lock_at_most_for="2s", keep_alive=True, provider=store) as lease:
            assert lease is not None
            inside.wait(20)
            done.wait(20)

    threads = [threading.Thread(target=job, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    inside.wait(20)
    wait_until(lambda: store.calls["extend"] >= 150)
    most = threading.active_count() - before - 50
    done.set()
    for thread in threads:
        thread.join(20)
    assert most <= 1 + 4
    assert store.most_at_once["extend"] <= 4
    assert not recorded.of(LeaseLost)
    assert len(recorded.of(TaskFinished)) == 50


def test_a_heartbeat_for_which_there_was_no_memory_is_tried_again(
    store: FaultyProvider, recorded: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, errors = WorkerPool.submit, [MemoryError(), MemoryError()]

    def failing_submit(pool: WorkerPool, function: Callable[[], Any]) -> Any:
        if errors:
            raise errors.pop()
        return submit(pool, function)

    with hold("job", lock_at_most_for=LEASE * 8, keep_alive=True, provider=store):
        monkeypatch.setattr(WorkerPool, "submit", failing_submit)
        wait_until(lambda: len(recorded.of(LockExtended)) >= 2)
    assert [type(event.error) for event in recorded.of(ProviderFailed)] == [MemoryError] * 2
    assert not recorded.of(LeaseLost)


def test_many_leases_over_a_slow_link(recorded: RecordingListener) -> None:
    """Heartbeats that wait for a thread are not sent again and again: that would take the threads from other leases."""

    class Far(FaultyProvider):
        def extend(self, lease: Lease, lock_at_most_for: Duration) -> Any:
            time.sleep(0.1)  # the round trip
            return super().extend(lease, lock_at_most_for)

    store = Far()
    with ExitStack() as stack:
        for number in range(60):
            stack.enter_context(hold(f"job-{number}", lock_at_most_for="3s", keep_alive=True, provider=store))
        until = time.monotonic() + 8
        wait_until(lambda: time.monotonic() > until)
        assert not recorded.of(LeaseLost)
        ended_at = time.monotonic()
    assert time.monotonic() - ended_at < 5, "releases wait for heartbeats that no worker has begun"


def test_a_store_that_hangs_does_not_delay_another_one(recorded: RecordingListener, store: FaultyProvider) -> None:
    hanging = FaultyProvider()
    hanging.hang("extend")
    blocks = [hold(f"job-{number}", lock_at_most_for="1m", keep_alive=True, provider=hanging) for number in range(8)]
    for block in blocks:
        block.__enter__()
    with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
        outlasts(4)
    hanging.recover()
    for block in blocks:
        block.__exit__(None, None, None)
    assert not recorded.of(LeaseLost)


@pytest.mark.parametrize("on_lost", ["cancel", "stop", None, 3])
def test_what_on_lost_cannot_be(store: FaultyProvider, on_lost: object) -> None:
    calls: list[Callable[[], object]] = [
        lambda: hold("job", lock_at_most_for="1m", on_lost=on_lost, provider=store),  # type: ignore[arg-type]  # wrong on purpose
        lambda: attempt("job", print, lock_at_most_for="1m", on_lost=on_lost, provider=store),  # type: ignore[arg-type]  # likewise
        lambda: scheduler_lock("job", lock_at_most_for="1m", on_lost=on_lost)(print),  # type: ignore[call-overload]  # likewise
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="on_lost"):
            call()


def test_no_heartbeat_where_nothing_is_locked(store: FaultyProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEDLOCK_ACTIVE", "0")
    before = threading.active_count()
    with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
        assert threading.active_count() == before


def test_an_extension_that_is_refused_is_reported_once(store: FaultyProvider, recorded: RecordingListener) -> None:
    lost: list[LeaseLost] = []
    with hold("job", lock_at_most_for="1m", keep_alive=True, on_lost=lost.append, provider=store):
        store.take_over(LockRequest("job", "1m"))
        with pytest.raises(LeaseLostError):
            extend_lock("1m")
    assert [event.reason for event in lost] == ["revoked"]
    assert recorded.of(LeaseLost) == lost


def test_on_lost_of_an_ordinary_task_cannot_be_awaited(store: FaultyProvider) -> None:
    async def on_lost(lost: LeaseLost) -> None: ...

    with pytest.raises(ConfigurationError, match="coroutine function"):
        hold("job", lock_at_most_for="1m", on_lost=on_lost, provider=store)
