"""Keep-alive of ordinary tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    Lease,
    LeaseLost,
    LockExtended,
    LockRequest,
    ProviderFailed,
    TaskFinished,
    assert_locked,
    attempt,
    extend_lock,
    hold,
    scheduler_lock,
)
from shedlock_py.guard import keepalive
from shedlock_py.model.durations import Duration
from shedlock_py.providers.kit import ProgramProvider
from shedlock_py.runtime.threads import HEARTBEAT_WORKERS, WorkerPool, worker_pool
from shedlock_py.testing import RecordingListener
from tests.support.doubles import FaultyProvider
from tests.support.polling import wait_until
from tests.support.stepped_timer import SteppedTimer

LEASE = 0.9
"""Seconds. In real time, a heartbeat may be half a second late, as on a busy machine."""


@pytest.fixture
def store(timer: SteppedTimer) -> Iterator[FaultyProvider]:
    store = timer.store()
    yield store
    store.recover()  # for requests that still hang


def outlasts(timer: SteppedTimer, lease_lengths: float) -> None:
    """Let the task run for so many leases."""
    end = timer.clock() + lease_lengths * LEASE

    def is_over() -> bool:
        assert_locked("job")
        return timer.clock() >= end

    timer.until(is_over)


def test_the_duration_of_a_task_is_without_the_heartbeat_that_is_waited_for(
    timer: SteppedTimer, store: FaultyProvider, recorded: RecordingListener
) -> None:
    def reply() -> None:
        wait_until(lambda: not timer.due, what="the end of the task")
        timer.clock.advance(1.0)
        store.recover()

    with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
        store.hang("extend")
        timer.until(lambda: store.calls["extend"])
        ended_at = timer.clock()
        threading.Thread(target=reply).start()
    assert timer.clock() == ended_at + 1.0  # the heartbeat was waited for
    (finished,) = recorded.of(TaskFinished)
    assert finished.duration < timedelta(seconds=LEASE)


def test_a_lease_that_took_long_to_get_is_extended_in_time(timer: SteppedTimer, recorded: RecordingListener) -> None:
    """The trust window counts from the request, and so does the first heartbeat."""

    class Slow(FaultyProvider):
        def acquire(self, request: LockRequest) -> Lease | None:
            lease: Lease = super().acquire(request)
            timer.until(lambda: lease.trusted_for().total_seconds() < LEASE / 2)  # until the reply arrives
            return lease

    with hold("job", lock_at_most_for=LEASE * 2, keep_alive=True, provider=timer.store(Slow)):
        outlasts(timer, 1)
    assert not recorded.of(LeaseLost)


@pytest.mark.not_quick("waits for real seconds")
def test_a_task_that_extends_while_a_heartbeat_is_under_way(recorded: RecordingListener) -> None:
    """The heartbeat never shortens the lease afterwards."""
    begun = threading.Event()

    class SlowHeartbeats(FaultyProvider):
        def extend(self, lease: Lease, lock_at_most_for: Duration) -> Any:
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                time.sleep(0.03)
            return super().extend(lease, lock_at_most_for)

    with hold("job", lock_at_most_for=LEASE * 2, keep_alive=True, provider=SlowHeartbeats()) as lease:
        assert lease is not None
        for _ in range(3):
            begun.clear()
            assert begun.wait(10)
            extend_lock("10m")
            time.sleep(0.06)  # longer than the heartbeat takes
            assert lease.trusted_for() > timedelta(minutes=9)
            extend_lock(LEASE * 2)
    assert not recorded.of(LeaseLost)


def test_a_heartbeat_that_waits_for_a_thread_does_not_begin_while_the_task_extends(timer: SteppedTimer) -> None:
    """The heartbeat would shorten the lease again."""

    class Store(FaultyProvider):
        def extend(self, lease: Lease, lock_at_most_for: Duration) -> Any:
            extended = super().extend(lease, lock_at_most_for)
            finish_all(self)
            return extended

    store = timer.store(Store)
    keep_all_busy(timer, store)
    with hold("job", lock_at_most_for="3s", keep_alive=True, provider=store):
        timer.advance(1.3)
        extend_lock("10m")
    assert store.calls["extend"] == 1


def test_i4_a_heartbeat_that_waits_for_a_thread_does_not_begin_after_the_release(
    timer: SteppedTimer, store: FaultyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat would prolong the minimum hold. The release does not wait for it: a thread would then begin it."""
    monkeypatch.setattr(keepalive, "STOP_SECONDS", 60.0)
    keep_all_busy(timer, store)
    with hold("job", lock_at_most_for="3s", lock_at_least_for="3s", keep_alive=True, provider=store):
        timer.advance(1.3)
    finish_all(store)
    assert store.calls["extend"] == 0


def keep_all_busy(timer: SteppedTimer, store: FaultyProvider) -> None:
    """Keep all threads for the heartbeats of ``store`` busy until :func:`finish_all`."""
    store.hang("records")
    for _ in range(HEARTBEAT_WORKERS):
        timer.pool(store, "heartbeats").submit(partial(store.records, ""))


def finish_all(store: FaultyProvider) -> None:
    """Return when the threads have finished all queued work."""
    store.recover()
    all_idle = threading.Barrier(HEARTBEAT_WORKERS)
    pool = worker_pool(store, "heartbeats")
    for future in [pool.submit(lambda: all_idle.wait(20)) for _ in range(HEARTBEAT_WORKERS)]:
        future.result(20)


def test_a_lease_that_the_task_has_released(
    timer: SteppedTimer, store: FaultyProvider, recorded: RecordingListener
) -> None:
    with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
        assert lease is not None
        assert store.release(lease)
        timer.advance(LEASE * 1.2)
    assert not recorded.of(LeaseLost)


def test_i4_the_last_heartbeat_does_not_come_after_the_release(timer: SteppedTimer, store: FaultyProvider) -> None:
    released: list[bool] = []

    def task() -> None:
        with hold("job", lock_at_most_for=LEASE, lock_at_least_for=LEASE, keep_alive=True, provider=store):
            store.hang("extend")
            timer.until(lambda: store.calls["extend"])
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


def test_twenty_leases_at_once_do_not_take_twenty_threads(
    timer: SteppedTimer, store: FaultyProvider, recorded: RecordingListener
) -> None:
    before = threading.active_count()
    inside = threading.Barrier(21)
    done = threading.Event()

    def job(number: int) -> None:
        with hold(f"job-{number}", lock_at_most_for="2s", keep_alive=True, provider=store) as lease:
            assert lease is not None
            inside.wait(20)
            done.wait(20)

    threads = [threading.Thread(target=job, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    inside.wait(20)
    timer.until(lambda: store.calls["extend"] >= 60)
    most = threading.active_count() - before - 20
    done.set()
    for thread in threads:
        thread.join(20)
    assert most <= HEARTBEAT_WORKERS
    assert store.most_at_once["extend"] <= 4
    assert not recorded.of(LeaseLost)
    assert len(recorded.of(TaskFinished)) == 20


def test_a_heartbeat_for_which_there_was_no_memory_is_tried_again(
    timer: SteppedTimer, store: FaultyProvider, recorded: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, errors = WorkerPool.submit, [MemoryError(), MemoryError()]

    def failing_submit(pool: WorkerPool, function: Callable[[], Any]) -> Any:
        if errors:
            raise errors.pop()
        return submit(pool, function)

    with hold("job", lock_at_most_for="2s", keep_alive=True, provider=store):
        monkeypatch.setattr(WorkerPool, "submit", failing_submit)
        timer.until(lambda: recorded.of(LockExtended))
    assert [type(event.error) for event in recorded.of(ProviderFailed)] == [MemoryError] * 2
    assert not recorded.of(LeaseLost)


@pytest.mark.slow("eighty leases for two of their lengths")
def test_many_leases_over_a_slow_link(recorded: RecordingListener) -> None:
    """Heartbeats that wait for a thread are not sent again: that would take threads from other leases."""

    class Far(FaultyProvider):
        def extend(self, lease: Lease, lock_at_most_for: Duration) -> Any:
            time.sleep(0.1)  # the round trip
            return super().extend(lease, lock_at_most_for)

    store = Far()
    with ExitStack() as stack:
        for number in range(80):
            stack.enter_context(hold(f"job-{number}", lock_at_most_for="4s", keep_alive=True, provider=store))
        until = time.monotonic() + 8
        wait_until(lambda: time.monotonic() > until)
        assert not recorded.of(LeaseLost)


def test_a_store_that_hangs_does_not_delay_another_one(
    timer: SteppedTimer, store: FaultyProvider, recorded: RecordingListener
) -> None:
    hanging = timer.store()
    hanging.hang("extend")
    with ExitStack() as stack:
        for number in range(8):
            stack.enter_context(hold(f"job-{number}", lock_at_most_for="5s", keep_alive=True, provider=hanging))
        stack.callback(hanging.recover)
        timer.until(lambda: hanging.waiting == HEARTBEAT_WORKERS)
        with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
            outlasts(timer, 1.5)
    assert not recorded.of(LeaseLost)


async def awaited_on_lost(lost: LeaseLost) -> None: ...


@pytest.mark.parametrize("on_lost", ["cancel", "stop", None, 3, awaited_on_lost])
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
    before = {*threading.enumerate()}
    with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
        assert {*threading.enumerate()} <= before


def test_a_lease_that_the_task_itself_is_releasing_is_not_reported_lost(
    timer: SteppedTimer, recorded: RecordingListener
) -> None:
    """Trust ends when the release begins, and the reply may take long."""
    programs, goes_on = InMemoryLockProvider(clock=timer.clock).programs, threading.Event()

    class Client:
        def execute(self, command: Any, timeout: float | None) -> Any:
            if threading.current_thread().name == "releasing":
                assert goes_on.wait(30)
            return programs.store.execute(command, timeout)

    provider: Any = ProgramProvider(programs, Client())
    with hold("job", lock_at_most_for="3s", keep_alive=True, provider=provider) as lease:
        assert lease is not None
        releasing = threading.Thread(target=provider.release, args=(lease,), name="releasing")
        releasing.start()
        wait_until(lambda: not lease.is_trusted(), what="the begin of the release")
        timer.advance(1.3)  # the first heartbeat is due at one second
        goes_on.set()
        releasing.join()
    assert lease.has_ended()
    assert not recorded.of(LeaseLost)
