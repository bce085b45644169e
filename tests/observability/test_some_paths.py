"""What only some ways into a guard can meet: cancellation, fire times, skips of the executor, forks; and elections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLeaderElector,
    InMemoryLockProvider,
    LeaderChanged,
    LeaderElector,
    LeadershipStarted,
    LeadershipStopped,
    Lease,
    LeaseLostError,
    LockRequest,
    LockSkipped,
    ProviderFailed,
    attempt,
    attempt_async,
    extend_lock_async,
)
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.contract.base import failing
from tests.guides.examples.scripts import run_python
from tests.observability.ways import ASYNC, ELECTION, Job, Way, by_executor, by_executor_async, told
from tests.support.doubles import FaultyProvider


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (tests poll)
            await asyncio.sleep(0.002)


# Cancellation


@pytest.mark.parametrize("way", ASYNC, ids=str)
def test_a_cancelled_task(way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
    async def body(job: Job) -> None:
        task = asyncio.current_task()
        assert task
        task.cancel()
        await asyncio.sleep(10)

    way.run(body, store)
    assert told(heard.events) == ["LockAcquired", "TaskFinished cancelled", "LockReleased"]


@pytest.mark.parametrize("way", ASYNC, ids=str)
def test_cancelled_because_it_was_lost(way: Way, heard: RecordingListener, store: InMemoryLockProvider) -> None:
    async def body(job: Job) -> None:
        store.take_over(LockRequest("job", "10m"))
        await asyncio.sleep(10)

    way.run(body, store, lock_at_most_for=0.6, keep_alive=True, on_lost="cancel")
    assert told(heard.events) == ["LockAcquired", "LeaseLost revoked", "TaskFinished cancelled"]


async def test_an_extension_that_is_refused_is_no_cancellation(
    heard: RecordingListener, store: InMemoryLockProvider
) -> None:
    async def task() -> None:
        store.take_over(LockRequest("job", "10m"))
        await extend_lock_async("5m")

    with pytest.raises(LeaseLostError):
        await attempt_async("job", task, provider=store, keep_alive=True, on_lost="cancel")
    await asyncio.sleep(0)  # where a cancellation that is left would be raised
    current = asyncio.current_task()
    assert current
    assert current.cancelling() == 0
    assert told(heard.events) == ["LockAcquired", "LeaseLost revoked", "TaskFinished failed"]


async def test_it_is_cancelled_all_the_same_if_it_goes_on(
    heard: RecordingListener, store: InMemoryLockProvider
) -> None:
    async def task() -> None:
        store.take_over(LockRequest("job", "10m"))
        with pytest.raises(LeaseLostError):
            await extend_lock_async("5m")
        await asyncio.sleep(10)

    with pytest.raises(LeaseLostError):
        await attempt_async("job", task, provider=store, keep_alive=True, on_lost="cancel")
    assert told(heard.events) == ["LockAcquired", "LeaseLost revoked", "TaskFinished cancelled"]


class SlowRelease(AsyncInMemoryLockProvider):
    """Releases only when told to."""

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
async def test_a_release_that_is_cancelled_is_told_all_the_same(
    heard: RecordingListener, end: str, cancellations: int
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
    await until(lambda: len(heard.events) == 3)
    assert told(heard.events) == ["LockAcquired", "TaskFinished succeeded", end]


async def test_a_cancelled_question_tells_nothing(heard: RecordingListener) -> None:
    class Slow(InMemoryLockProvider):
        def acquire(self, request: LockRequest) -> Lease | None:
            is_asked.set()
            assert may_answer.wait(10)
            return super().acquire(request)

    is_asked, may_answer = threading.Event(), threading.Event()
    store = Slow()
    task = asyncio.create_task(attempt_async("job", lambda: asyncio.sleep(0), provider=store))
    await asyncio.to_thread(is_asked.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not store.records()[0].is_held)
    assert heard.events == []


# Fire times, and the executor's own skips


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_fire_time_that_has_run(is_async: bool, heard: RecordingListener, store: InMemoryLockProvider) -> None:
    request = LockRequest("job", "10m", fire_time=datetime(2024, 5, 1, tzinfo=UTC))
    lease = store.acquire(request)
    assert lease
    store.release(lease)
    if is_async:
        await attempt_async(request, never_async, provider=store)
    else:
        attempt(request, never, provider=store)
    assert told(heard.events) == ["LockSkipped already_ran"]


def never() -> None:
    pytest.fail("the task ran")


async def never_async() -> None:
    pytest.fail("the task ran")


def run_job(is_async: bool, provider: Any, task: Any, **executor_options: Any) -> Any:
    """The event of one run of a job, as APScheduler tells it."""
    if not is_async:
        return by_executor(provider, task, {}, **executor_options)[0]

    async def task_async() -> None:
        task()

    return asyncio.run(by_executor_async(provider, task_async, {}, **executor_options))[0]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_fire_time_that_has_run_under_apscheduler(
    is_async: bool, heard: RecordingListener, store: InMemoryLockProvider
) -> None:
    lease = store.acquire(LockRequest("job", "10m", fire_time=datetime.now(UTC) + timedelta(minutes=4)))
    assert lease
    store.release(lease)
    assert run_job(is_async, store, never, once_per_fire_time=True).reason == "already_ran"
    assert told(heard.events) == ["LockSkipped already_ran"]


@pytest.mark.parametrize("is_async", [False, True])
def test_not_the_leader(is_async: bool, heard: RecordingListener, store: InMemoryLockProvider) -> None:
    elector = LeaderElector(store, "election")  # does not even take part
    assert run_job(is_async, store, never, elector=elector).reason == "not_leader"
    assert told(heard.events) == ["LockSkipped not_leader"]
    assert heard.of(LockSkipped)[0].lock_name == "election"
    assert store.records() == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failing_store_is_one_event_also_where_it_is_a_skip(
    is_async: bool, heard: RecordingListener, store: InMemoryLockProvider
) -> None:
    event = run_job(is_async, failing(store, "acquire"), never, on_provider_error="skip")
    assert event.reason == "provider_error"
    assert told(heard.events) == ["ProviderFailed acquire"]


# Forks

FORK = """
import os
from shedlock_py import InMemoryLockProvider, configure, hold
from shedlock_py.testing import RecordingListener

heard = RecordingListener()
configure(provider=InMemoryLockProvider(), listeners=[heard])
with hold("job"):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
print(*heard.kinds())
"""


def test_a_forked_child_tells_nothing_of_its_parents_task() -> None:
    done = run_python("-c", FORK)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["LockAcquired", "LockAcquired TaskFinished LockReleased"]


# Elections


class Sync:
    """An elector in threads, to be awaited like its twin."""

    def __init__(self, store: FaultyProvider) -> None:
        self.elector = LeaderElector(store, "election", holder="me", **ELECTION)

    async def start(self) -> None:
        self.elector.start()

    async def stop(self) -> None:
        await asyncio.to_thread(self.elector.stop, "10s")

    async def demote(self) -> None:
        await asyncio.to_thread(self.elector.demote, "1m")


class Async:
    def __init__(self, store: FaultyProvider) -> None:
        self.elector = AsyncLeaderElector(store, "election", holder="me", **ELECTION)

    async def start(self) -> None:
        await self.elector.start()

    async def stop(self) -> None:
        await self.elector.stop("10s")

    async def demote(self) -> None:
        await self.elector.demote("1m")


@pytest.mark.parametrize("kind", [Sync, Async])
class TestElections:
    @pytest.fixture
    def election_store(self) -> FaultyProvider:
        return FaultyProvider()

    async def test_a_term(
        self, kind: type[Sync | Async], election_store: FaultyProvider, heard: RecordingListener
    ) -> None:
        node = kind(election_store)
        await node.start()
        await until(lambda: heard.of(LeaderChanged))
        await node.stop()
        assert told(heard.events) == ["LeadershipStarted", "LeaderChanged", "LeadershipStopped"]
        (started,), (stopped,) = heard.of(LeadershipStarted), heard.of(LeadershipStopped)
        assert (started.name, started.holder, stopped.reason) == ("election", "me", "resigned")
        assert started.term is not None
        assert started.term == stopped.term

    async def test_demoted(
        self, kind: type[Sync | Async], election_store: FaultyProvider, heard: RecordingListener
    ) -> None:
        node = kind(election_store)
        await node.start()
        await until(lambda: heard.of(LeaderChanged))
        await node.demote()
        await until(lambda: heard.of(LeadershipStopped))
        await node.stop()
        assert [event.reason for event in heard.of(LeadershipStopped)] == ["revoked"]

    async def test_another_leads(
        self, kind: type[Sync | Async], election_store: FaultyProvider, heard: RecordingListener
    ) -> None:
        election_store.take_over(LockRequest("election", "1m", holder="somebody"))
        node = kind(election_store)
        await node.start()
        await until(lambda: heard.of(LeaderChanged))
        await node.stop()
        assert heard.events == [LeaderChanged("election", "somebody")]

    async def test_the_store_stays_away(
        self, kind: type[Sync | Async], election_store: FaultyProvider, heard: RecordingListener
    ) -> None:
        node = kind(election_store)
        await node.start()
        await until(lambda: heard.of(LeaderChanged))
        election_store.fail()
        await until(lambda: "record" in [event.operation for event in heard.of(ProviderFailed)])
        election_store.recover()
        await node.stop()
        words = told(heard.events)
        assert words[:4] == ["LeadershipStarted", "LeaderChanged", "ProviderFailed extend", "LeadershipStopped"]
        assert heard.of(LeadershipStopped)[0].reason == "unreachable"

    async def test_it_cannot_give_its_lease_back(
        self, kind: type[Sync | Async], election_store: FaultyProvider, heard: RecordingListener
    ) -> None:
        node = kind(election_store)
        await node.start()
        await until(lambda: heard.of(LeaderChanged))
        election_store.fail()
        await node.stop()
        assert told(heard.events)[-2:] == ["LeadershipStopped", "ProviderFailed release"]
