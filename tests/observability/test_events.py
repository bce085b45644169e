"""The events of each way into a guard, in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLeaderElector,
    ConfigurationError,
    InMemoryLockProvider,
    LeaderChanged,
    LeaderElector,
    LeadershipStarted,
    LeadershipStopped,
    Lease,
    LeaseLost,
    LeaseLostError,
    LockEvent,
    LockExtended,
    LockRequest,
    LockSkipped,
    ProviderFailed,
    TaskFinished,
    attempt,
    attempt_async,
    current_lease,
    extend_lock,
    extend_lock_async,
    hold,
    set_active,
)
from shedlock_py.guard import block
from shedlock_py.testing import FakeClock, RecordingListener
from shedlock_py.testing.contract.base import failing
from tests.observability.ways import (
    ASYNC,
    ELECTION,
    KEPT_ALIVE,
    SYNC,
    WAYS,
    Body,
    Job,
    Way,
    by_executor,
    by_executor_async,
    fails,
    is_taken_over,
    never,
    releases,
    succeeds,
    summary,
)  # fmt: skip
from tests.support.doubles import FaultyProvider
from tests.support.polling import until

every_way = pytest.mark.parametrize("way", WAYS, ids=str)
each_twin = pytest.mark.parametrize("way", [SYNC[2], ASYNC[2]], ids=str)


# One table for every way


async def is_taken_over_and_extends(job: Job) -> None:
    await is_taken_over(job)
    await job.extend()


async def waits_for_a_heartbeat(job: Job) -> None:
    await job.until(lambda: job.recorder.of(LockExtended))


async def waits_for_the_report_of_its_loss(job: Job) -> None:
    await is_taken_over(job)
    await job.until(lambda: job.recorder.of(LeaseLost))


async def waits_for_the_end_of_its_lease(job: Job) -> None:
    await job.until(lambda: job.recorder.of(LeaseLost) and not job.store.records()[0].is_held)


async def is_refused_an_extension(job: Job) -> None:
    """A provider that the task calls itself refuses it."""
    lease = current_lease()
    assert lease
    await is_taken_over(job)
    assert job.store.extend(lease, "10m") is None


ACQUIRED, RELEASED, SUCCEEDED, FAILED = "LockAcquired", "LockReleased", "TaskFinished succeeded", "TaskFinished failed"


@dataclass(frozen=True)
class Scenario:
    body: Body
    expected: list[str]
    broken: str = ""
    options: dict[str, Any] = field(default_factory=dict)


SCENARIOS = {
    "success": Scenario(succeeds, [ACQUIRED, SUCCEEDED, RELEASED]),
    "failure": Scenario(fails, [ACQUIRED, FAILED, RELEASED]),
    "acquire fails": Scenario(never, ["ProviderFailed acquire"], "acquire"),
    "release fails": Scenario(succeeds, [ACQUIRED, SUCCEEDED, "ProviderFailed release"], "release"),
    "extended": Scenario(Job.extend, [ACQUIRED, "LockExtended", SUCCEEDED, RELEASED]),
    "extend fails": Scenario(Job.extend, [ACQUIRED, "ProviderFailed extend", FAILED, RELEASED], "extend"),
    "extend refused": Scenario(is_taken_over_and_extends, [ACQUIRED, "LeaseLost revoked", FAILED]),
    "taken over": Scenario(is_taken_over, [ACQUIRED, SUCCEEDED, "LeaseLost revoked"]),
    "kept alive": Scenario(waits_for_a_heartbeat, [ACQUIRED, "LockExtended", SUCCEEDED, RELEASED], options=KEPT_ALIVE),
    "kept alive, taken over": Scenario(
        waits_for_the_report_of_its_loss, [ACQUIRED, "LeaseLost revoked", SUCCEEDED], options=KEPT_ALIVE
    ),
    "kept alive, extend refused": Scenario(
        is_taken_over_and_extends, [ACQUIRED, "LeaseLost revoked", FAILED], options={"keep_alive": True}
    ),
    "kept alive, extend fails": Scenario(
        waits_for_the_end_of_its_lease,
        [ACQUIRED, "ProviderFailed extend", "LeaseLost unreachable", SUCCEEDED],
        "extend",
        {**KEPT_ALIVE, "lock_at_most_for": 1.5},
    ),
}


@every_way
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_every_way_emits_the_events_of_the_outcome_in_order(
    way: Way, scenario: Scenario, recorder: RecordingListener, store: InMemoryLockProvider
) -> None:
    broken = (scenario.broken,) if scenario.broken else ()
    way.run(scenario.body, store, *broken, recorder=recorder, **scenario.options)
    assert summary(recorder.events) == scenario.expected
    assert all(event.lock_name == "job" for event in recorder.events if isinstance(event, LockEvent))
    leases = [getattr(event, "lease", None) for event in recorder.events]
    if scenario.broken == "acquire":
        assert leases == [None]
    else:
        assert all(lease is leases[0] for lease in leases)
    if scenario.body is fails:
        assert isinstance(recorder.of(TaskFinished)[0].error, ZeroDivisionError)


OF_THE_GUARD = {
    "extend by the provider refused": Scenario(is_refused_an_extension, [ACQUIRED, SUCCEEDED, "LeaseLost revoked"]),
    "released by the task": Scenario(releases, [ACQUIRED, SUCCEEDED]),
    "inside its own lease": Scenario(Job.again, [ACQUIRED, SUCCEEDED, RELEASED]),
}


@each_twin
@pytest.mark.parametrize("scenario", OF_THE_GUARD.values(), ids=OF_THE_GUARD)
def test_the_events_show_what_a_task_did_to_its_own_lease(
    way: Way, scenario: Scenario, recorder: RecordingListener, store: InMemoryLockProvider
) -> None:
    way.run(scenario.body, store)
    assert summary(recorder.events) == scenario.expected


@every_way
def test_a_held_lock_emits_only_a_skip(way: Way, recorder: RecordingListener, store: InMemoryLockProvider) -> None:
    store.acquire(LockRequest("job", "10m"))
    way.run(never, store)
    assert summary(recorder.events) == ["LockSkipped held"]


@every_way
def test_a_process_that_shuts_down_emits_only_a_skip(
    way: Way, recorder: RecordingListener, store: InMemoryLockProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "process_gates", [lambda: "shutting_down"])
    way.run(never, store)
    assert summary(recorder.events) == ["LockSkipped shutting_down"]


@every_way
def test_an_overrun_emits_a_lost_lease_and_no_release(way: Way, recorder: RecordingListener) -> None:
    clock = FakeClock()

    async def body(job: Job) -> None:
        clock.advance("11m")

    way.run(body, InMemoryLockProvider(clock=clock))
    assert summary(recorder.events) == [ACQUIRED, SUCCEEDED, "LeaseLost overrun"]


@every_way
def test_switched_off_it_emits_the_events_of_a_run(
    way: Way, recorder: RecordingListener, store: InMemoryLockProvider
) -> None:
    set_active(False)
    way.run(succeeds, store)
    assert summary(recorder.events) == [ACQUIRED, SUCCEEDED, RELEASED]


@each_twin
def test_granted_too_late(way: Way, recorder: RecordingListener, store: InMemoryLockProvider) -> None:
    clock = FakeClock()

    class Slow(InMemoryLockProvider):
        def acquire(self, request: LockRequest) -> Lease | None:
            lease = super().acquire(request)
            clock.advance("9.95s")  # within the margin: the store would still accept the release
            return lease

    way.run(never, store, provider=Slow(clock=clock), lock_at_most_for="10s")
    assert summary(recorder.events) == ["ProviderFailed acquire"]


@each_twin
def test_a_store_that_raises_anything(way: Way, recorder: RecordingListener, store: InMemoryLockProvider) -> None:
    class Broken(InMemoryLockProvider):
        def extend(self, lease: Lease, lock_at_most_for: object) -> Lease | None:
            raise RuntimeError("a bug in the provider")

    way.run(Job.extend, store, provider=Broken())
    assert summary(recorder.events) == [ACQUIRED, "ProviderFailed extend", FAILED, RELEASED]


def test_a_bad_duration_is_no_failure_of_the_store(recorder: RecordingListener, store: InMemoryLockProvider) -> None:
    with pytest.raises(ConfigurationError, match="'soon'"), hold("job", provider=store):
        extend_lock("soon")
    assert summary(recorder.events) == [ACQUIRED, FAILED, RELEASED]


# Cancellation


async def cancels_itself(job: Job) -> None:
    task = asyncio.current_task()
    assert task
    task.cancel()
    await asyncio.sleep(10)


async def is_taken_over_and_sleeps(job: Job) -> None:
    await is_taken_over(job)
    await asyncio.sleep(10)


@pytest.mark.parametrize("way", ASYNC, ids=str)
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(cancels_itself, [ACQUIRED, "TaskFinished cancelled", RELEASED]),
        Scenario(
            is_taken_over_and_sleeps,
            [ACQUIRED, "LeaseLost revoked", "TaskFinished cancelled"],
            options={**KEPT_ALIVE, "on_lost": "cancel"},
        ),
    ],
    ids=["by itself", "because it was lost"],
)
def test_a_task_that_is_cancelled_is_reported_as_cancelled(
    way: Way, scenario: Scenario, recorder: RecordingListener, store: InMemoryLockProvider
) -> None:
    way.run(scenario.body, store, **scenario.options)
    assert summary(recorder.events) == scenario.expected


@pytest.mark.parametrize("goes_on", [False, True])
async def test_an_extension_that_is_refused_is_no_cancellation_unless_the_task_goes_on(
    goes_on: bool, recorder: RecordingListener, store: InMemoryLockProvider
) -> None:
    async def task() -> None:
        store.take_over(LockRequest("job", "10m"))
        try:
            await extend_lock_async("5m")
        except LeaseLostError:
            if not goes_on:
                raise
        await asyncio.sleep(10)

    with pytest.raises(LeaseLostError):
        await attempt_async("job", task, provider=store, keep_alive=True, on_lost="cancel")
    await asyncio.sleep(0)  # a remaining cancellation would be raised here
    current = asyncio.current_task()
    assert current
    assert current.cancelling() == 0
    outcome = "cancelled" if goes_on else "failed"
    assert summary(recorder.events) == [ACQUIRED, "LeaseLost revoked", f"TaskFinished {outcome}"]


class SlowRelease(AsyncInMemoryLockProvider):
    """A provider that releases only when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.fails = False

    async def release(self, lease: Lease) -> bool:
        self.has_begun.set()
        await self.may_go_on.wait()
        if self.fails:
            raise OSError("cable")
        return await super().release(lease)


@pytest.mark.parametrize("cancellations", [1, 2])
@pytest.mark.parametrize("end", ["LockReleased", "LeaseLost revoked", "ProviderFailed release"])
async def test_a_release_that_is_cancelled_is_reported_all_the_same(
    recorder: RecordingListener, end: str, cancellations: int
) -> None:
    store = SlowRelease()
    task = asyncio.create_task(attempt_async("job", lambda: asyncio.sleep(0), provider=store))
    await store.has_begun.wait()
    for _ in range(cancellations):  # the second does not wait for the release
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    if end == "LeaseLost revoked":
        await store.take_over(LockRequest("job", "10m"))
    store.fails = end == "ProviderFailed release"
    store.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: len(recorder.events) == 3)
    assert summary(recorder.events) == [ACQUIRED, SUCCEEDED, end]


async def test_a_cancelled_acquire_emits_nothing(recorder: RecordingListener) -> None:
    class Slow(InMemoryLockProvider):
        def acquire(self, request: LockRequest) -> Lease | None:
            has_begun.set()
            assert may_go_on.wait(10)
            return super().acquire(request)

    has_begun, may_go_on = threading.Event(), threading.Event()
    store = Slow()
    task = asyncio.create_task(attempt_async("job", lambda: asyncio.sleep(0), provider=store))
    await asyncio.to_thread(has_begun.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not store.records()[0].is_held)
    assert recorder.events == []


# Fire times, and the executor's own skips


def not_run() -> None:
    pytest.fail("the task ran")


async def not_run_async() -> None:
    not_run()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_fire_time_that_has_run(
    is_async: bool, recorder: RecordingListener, store: InMemoryLockProvider
) -> None:
    request = LockRequest("job", "10m", fire_time=datetime(2024, 5, 1, tzinfo=UTC))
    lease = store.acquire(request)
    assert lease
    store.release(lease)
    if is_async:
        await attempt_async(request, not_run_async, provider=store)
    else:
        attempt(request, not_run, provider=store)
    assert summary(recorder.events) == ["LockSkipped already_ran"]


def run_job(is_async: bool, provider: Any, **executor_options: Any) -> Any:
    """Return the event that APScheduler emits for a run of a job."""
    if not is_async:
        return by_executor(provider, not_run, {}, **executor_options)[0]
    return asyncio.run(by_executor_async(provider, not_run_async, {}, **executor_options))[0]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_fire_time_that_has_run_under_apscheduler(
    is_async: bool, recorder: RecordingListener, store: InMemoryLockProvider
) -> None:
    lease = store.acquire(LockRequest("job", "10m", fire_time=datetime.now(UTC) + timedelta(minutes=4)))
    assert lease
    store.release(lease)
    assert run_job(is_async, store, once_per_fire_time=None).reason == "already_ran"
    assert summary(recorder.events) == ["LockSkipped already_ran"]


@pytest.mark.parametrize("is_async", [False, True])
def test_not_the_leader(is_async: bool, recorder: RecordingListener, store: InMemoryLockProvider) -> None:
    elector = LeaderElector(store, "election")  # it does not even take part
    assert run_job(is_async, store, elector=elector).reason == "not_leader"
    assert summary(recorder.events) == ["LockSkipped not_leader"]
    assert recorder.of(LockSkipped)[0].lock_name == "election"
    assert store.records() == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failing_store_is_one_event_also_where_it_is_a_skip(
    is_async: bool, recorder: RecordingListener, store: InMemoryLockProvider
) -> None:
    event = run_job(is_async, failing(store, "acquire"), on_provider_error="skip")
    assert event.reason == "provider_error"
    assert summary(recorder.events) == ["ProviderFailed acquire"]


# Elections: more in tests/election


class Sync:
    """A sync elector with awaitable methods, like its async twin."""

    def __init__(self, store: FaultyProvider) -> None:
        self.elector = LeaderElector(store, "election", holder="me", **ELECTION)

    async def start(self) -> None:
        self.elector.start()

    async def stop(self, seconds: str) -> None:
        await asyncio.to_thread(self.elector.stop, seconds)


def make_async(store: FaultyProvider) -> AsyncLeaderElector:
    return AsyncLeaderElector(store, "election", holder="me", **ELECTION)


@pytest.mark.parametrize("make", [Sync, make_async])
@pytest.mark.parametrize("fault", ["", "stays away", "is away at the end"])
async def test_a_term_emits_its_start_and_its_end_with_the_reason(
    make: Callable[[FaultyProvider], Any], fault: str, recorder: RecordingListener
) -> None:
    store = FaultyProvider()
    node = make(store)
    await node.start()
    await until(lambda: recorder.of(LeaderChanged))
    if fault:
        store.fail()
    if fault == "stays away":
        await until(lambda: "record" in [event.operation for event in recorder.of(ProviderFailed)])
        store.recover()
    await node.stop("10s")
    words = summary(recorder.events)
    assert words[:2] == ["LeadershipStarted", "LeaderChanged"]
    (started,), (stopped,) = recorder.of(LeadershipStarted)[:1], recorder.of(LeadershipStopped)[:1]
    assert (started.name, started.holder, stopped.term) == ("election", "me", started.term)
    assert started.term is not None
    assert stopped.reason == ("unreachable" if fault == "stays away" else "resigned")
    if fault == "stays away":
        assert words[2:4] == ["ProviderFailed extend", "LeadershipStopped"]
    else:
        assert words[-2:] == (["LeadershipStopped", "ProviderFailed release"] if fault else words[1:])
