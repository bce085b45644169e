"""Which events each way into a guard tells, and in which order."""

from typing import Any

import pytest

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    Lease,
    LockAcquired,
    LockEvent,
    LockReleased,
    LockRequest,
    ProviderFailed,
    TaskFinished,
    block,
    configure,
    current_lease,
    extend_lock,
    hold,
    set_active,
)
from shedlock_py.testing import FakeClock, RecordingListener
from tests.observability.ways import ASYNC, SYNC, WAYS, Job, Way, told

every_way = pytest.mark.parametrize("way", WAYS, ids=str)
each_twin = pytest.mark.parametrize("way", [SYNC[2], ASYNC[2]], ids=str)

LEASE = 0.6
"""Seconds, where a test waits for heartbeats."""


async def nothing(job: Job) -> None: ...


async def fails(job: Job) -> None:
    raise ZeroDivisionError


def never(job: Job) -> Any:
    pytest.fail("the task ran")


@every_way
class TestEveryWay:
    def test_success(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        way.run(nothing, store)
        assert told(heard.events) == ["LockAcquired", "TaskFinished succeeded", "LockReleased"]
        leases = [
            event.lease for event in heard.events if isinstance(event, LockAcquired | TaskFinished | LockReleased)
        ]
        assert len(leases) == 3
        assert len(set(leases)) == 1
        assert all(event.lock_name == "job" for event in heard.events if isinstance(event, LockEvent))

    def test_failure(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        way.run(fails, store)
        assert told(heard.events) == ["LockAcquired", "TaskFinished failed", "LockReleased"]
        assert isinstance(heard.of(TaskFinished)[0].error, ZeroDivisionError)

    def test_held(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        store.acquire(LockRequest("job", "10m"))
        way.run(never, store)
        assert told(heard.events) == ["LockSkipped held"]

    def test_shutting_down(
        self, way: Way, heard: RecordingListener, store: InMemoryLockProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(block, "process_gates", [lambda: "shutting_down"])
        way.run(never, store)
        assert told(heard.events) == ["LockSkipped shutting_down"]

    def test_the_store_fails_at_acquire(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        way.run(never, store, "acquire")
        assert told(heard.events) == ["ProviderFailed acquire"]
        assert heard.of(ProviderFailed)[0].lease is None

    def test_the_store_fails_at_release(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        way.run(nothing, store, "release")
        assert told(heard.events) == ["LockAcquired", "TaskFinished succeeded", "ProviderFailed release"]
        assert heard.of(ProviderFailed)[0].lease is heard.of(LockAcquired)[0].lease

    def test_extended_by_hand(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        way.run(Job.extend, store)
        assert told(heard.events) == ["LockAcquired", "LockExtended", "TaskFinished succeeded", "LockReleased"]

    def test_the_store_fails_at_an_extension_by_hand(
        self, way: Way, heard: RecordingListener, store: InMemoryLockProvider
    ) -> None:
        way.run(Job.extend, store, "extend")
        assert told(heard.events) == ["LockAcquired", "ProviderFailed extend", "TaskFinished failed", "LockReleased"]
        assert heard.of(ProviderFailed)[0].lease is heard.of(LockAcquired)[0].lease

    def test_an_extension_by_hand_is_refused(
        self, way: Way, heard: RecordingListener, store: InMemoryLockProvider
    ) -> None:
        async def body(job: Job) -> None:
            store.take_over(LockRequest("job", "10m"))
            await job.extend()

        way.run(body, store)
        assert told(heard.events) == ["LockAcquired", "LeaseLost revoked", "TaskFinished failed"]

    def test_taken_over(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        async def body(job: Job) -> None:
            store.take_over(LockRequest("job", "10m"))

        way.run(body, store)
        assert told(heard.events) == ["LockAcquired", "TaskFinished succeeded", "LeaseLost revoked"]

    def test_overrun(self, way: Way, heard: RecordingListener) -> None:
        clock = FakeClock()

        async def body(job: Job) -> None:
            clock.advance("11m")

        way.run(body, InMemoryLockProvider(clock=clock))
        assert told(heard.events) == ["LockAcquired", "TaskFinished succeeded", "LeaseLost overrun"]

    def test_kept_alive(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        async def body(job: Job) -> None:
            await job.until(lambda: "LockExtended" in heard.kinds())

        way.run(body, store, lock_at_most_for=LEASE, keep_alive=True)
        assert told(heard.events) == ["LockAcquired", "LockExtended", "TaskFinished succeeded", "LockReleased"]

    def test_kept_alive_and_taken_over(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        async def body(job: Job) -> None:
            store.take_over(LockRequest("job", "10m"))
            await job.until(lambda: "LeaseLost" in heard.kinds())

        way.run(body, store, lock_at_most_for=LEASE, keep_alive=True)
        assert told(heard.events) == ["LockAcquired", "LeaseLost revoked", "TaskFinished succeeded"]

    def test_kept_alive_and_the_extension_by_hand_is_refused(
        self, way: Way, heard: RecordingListener, store: InMemoryLockProvider
    ) -> None:
        async def body(job: Job) -> None:
            store.take_over(LockRequest("job", "10m"))
            await job.extend()

        way.run(body, store, keep_alive=True)
        assert told(heard.events) == ["LockAcquired", "LeaseLost revoked", "TaskFinished failed"]

    def test_kept_alive_and_the_store_stays_away(
        self, way: Way, heard: RecordingListener, store: InMemoryLockProvider
    ) -> None:
        async def body(job: Job) -> None:
            await job.until(lambda: "LeaseLost" in heard.kinds() and not store.records()[0].is_held)

        way.run(body, store, "extend", lock_at_most_for=LEASE, keep_alive=True)
        assert told(heard.events) == [
            "LockAcquired",
            "ProviderFailed extend",
            "LeaseLost unreachable",
            "TaskFinished succeeded",
        ]
        leases = {event.lease for event in heard.of(ProviderFailed)}
        assert leases == {heard.of(LockAcquired)[0].lease}

    def test_without_locks(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        set_active(False)
        way.run(nothing, store)
        assert told(heard.events) == ["LockAcquired", "TaskFinished succeeded", "LockReleased"]

    def test_listeners_that_raise(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        def broken(event: object) -> None:
            raise RuntimeError("broken listener")

        last = RecordingListener()
        with configure(listeners=[broken, heard, broken, last]):
            way.run(Job.extend, store)
        assert told(heard.events) == ["LockAcquired", "LockExtended", "TaskFinished succeeded", "LockReleased"]
        assert last.events == heard.events


@each_twin
class TestTheGuard:
    """What only the guard can do wrong, whatever calls it."""

    def test_the_provider_was_asked_by_hand_and_refused(
        self, way: Way, heard: RecordingListener, store: InMemoryLockProvider
    ) -> None:
        async def body(job: Job) -> None:
            lease = current_lease()
            assert lease
            store.take_over(LockRequest("job", "10m"))
            assert store.extend(lease, "10m") is None

        way.run(body, store)
        assert told(heard.events) == ["LockAcquired", "TaskFinished succeeded", "LeaseLost revoked"]

    def test_kept_alive_and_the_provider_was_asked_by_hand_and_refused(
        self, way: Way, heard: RecordingListener, store: InMemoryLockProvider
    ) -> None:
        async def body(job: Job) -> None:
            lease = current_lease()
            assert lease
            store.take_over(LockRequest("job", "10m"))
            assert store.extend(lease, "10m") is None
            await job.until(lambda: "LeaseLost" in heard.kinds())

        way.run(body, store, lock_at_most_for=LEASE, keep_alive=True)
        assert told(heard.events) == ["LockAcquired", "LeaseLost revoked", "TaskFinished succeeded"]

    def test_released_by_hand(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        async def body(job: Job) -> None:
            lease = current_lease()
            assert lease
            assert store.release(lease)

        way.run(body, store)
        assert told(heard.events) == ["LockAcquired", "TaskFinished succeeded"]

    def test_granted_too_late(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        clock = FakeClock()

        class Slow(InMemoryLockProvider):
            def acquire(self, request: LockRequest) -> Lease | None:
                lease = super().acquire(request)
                clock.advance("9.95s")  # in the margin: the store would still take it back
                return lease

        way.run(never, store, provider=Slow(clock=clock), lock_at_most_for="10s")
        assert told(heard.events) == ["ProviderFailed acquire"]

    def test_inside_of_its_own_lease(self, way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
        way.run(Job.again, store)
        assert heard.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]

    def test_a_store_that_raises_anything(
        self, way: Way, heard: RecordingListener, store: InMemoryLockProvider
    ) -> None:
        class Broken(InMemoryLockProvider):
            def extend(self, lease: Lease, lock_at_most_for: object) -> Lease | None:
                raise RuntimeError("a bug in the provider")

        way.run(Job.extend, store, provider=Broken())
        assert told(heard.events) == ["LockAcquired", "ProviderFailed extend", "TaskFinished failed", "LockReleased"]


def test_a_bad_duration_is_no_failure_of_the_store(heard: RecordingListener, store: InMemoryLockProvider) -> None:
    with pytest.raises(ConfigurationError, match="'soon'"), hold("job", provider=store):
        extend_lock("soon")
    assert told(heard.events) == ["LockAcquired", "TaskFinished failed", "LockReleased"]
