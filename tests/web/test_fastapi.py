"""The lifespan for ASGI applications, and a job that repeats in a single worker."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLeaderElector,
    ConfigurationError,
    Event,
    InMemoryLockProvider,
    LeaderElector,
    Lease,
    LockRequest,
    ProviderFailed,
    ProviderNotConfigured,
    ProviderUnreachable,
    RunMissed,
    TaskFinished,
    configure,
    current_lease,
    provider_from_url,
    reset,
    scheduler_lock,
)
from shedlock_py.guard import repeating
from shedlock_py.integrations import fastapi
from shedlock_py.integrations.apscheduler import ShedLockExecutor, lead
from shedlock_py.integrations.fastapi import lifespan, repeat_every
from shedlock_py.settings.defaults import Settings, lock_request
from shedlock_py.testing import RecordingListener
from tests.support.doubles import AsyncFaultyProvider, FaultyProvider
from tests.support.logs import records_of, warnings_of
from tests.support.polling import until

SLOT = 0.2


@pytest.fixture
def provider() -> InMemoryLockProvider:
    return InMemoryLockProvider()


def workers(provider: InMemoryLockProvider, count: int, job: Callable[[], Any], **options: Any) -> list[Any]:
    options = dict[str, Any](seconds=SLOT, lock="job") | options
    shared = AsyncInMemoryLockProvider(shared_with=provider)
    return [repeat_every(**options, provider=shared)(job) for _ in range(count)]


def is_held(provider: InMemoryLockProvider, name: str) -> bool:
    record = provider.record(name)
    return record is not None and record.is_held


async def run_all(begins: list[Any]) -> None:
    await asyncio.gather(*[await begin() for begin in begins])


@pytest.mark.parametrize("kind", ["coroutine", "function"])
def test_i11_each_slot_runs_in_one_worker(kind: str, provider: InMemoryLockProvider) -> None:
    runs: list[datetime | None] = []

    def job() -> None:
        lease = current_lease()
        assert lease is not None
        runs.append(lease.fire_time)

    async def job_async() -> None:
        job()

    asyncio.run(run_all(workers(provider, 4, job if kind == "function" else job_async, max_repetitions=3)))
    assert len(set(runs)) == len(runs)
    assert 3 <= len(runs) <= 6, "three slots, and those of workers that had begun a slot later"


def test_a_worker_that_is_restarted_waits_for_the_next_slot(provider: InMemoryLockProvider) -> None:
    runs = []
    for _ in range(3):
        begins = workers(provider, 1, lambda: runs.append(1), seconds=3600, max_repetitions=2)

        async def restarted(begin: Any) -> None:
            task = await begin()
            await asyncio.wait({task}, timeout=0.1)
            task.cancel()
            await asyncio.wait({task})

        asyncio.run(restarted(begins[0]))
    assert len(runs) <= 2, "one, unless an hour has ended just now"


def test_a_timer_that_is_early_repeats_no_slot(provider: InMemoryLockProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock decides the slots; the event loop has another clock."""
    lags = [0, 0, SLOT / 2]  # seconds; after the first sleep the next slot has not begun

    class Clock:
        @staticmethod
        def now(zone: Any) -> datetime:
            return datetime.now(zone) - timedelta(seconds=lags.pop(0) if lags else 0)

    monkeypatch.setattr(repeating, "datetime", Clock)
    runs: list[None] = []
    recorded = RecordingListener()
    with configure(listeners=[recorded]):
        asyncio.run(run_all(workers(provider, 1, lambda: runs.append(None), wait_first=True, max_repetitions=2)))
    assert len(runs) == 2
    assert recorded.skips == []


def test_a_failing_job_goes_on(provider: InMemoryLockProvider, caplog: pytest.LogCaptureFixture) -> None:
    caught: list[Exception] = []
    done = []

    async def notify() -> None:
        done.append("complete")

    def job() -> None:
        raise ValueError("no feed")

    (begin,) = workers(provider, 1, job, max_repetitions=2, on_exception=caught.append, on_complete=notify)
    with caplog.at_level(logging.ERROR):
        asyncio.run(run_all([begin]))
    assert [str(error) for error in caught] == ["no feed", "no feed"]
    assert done == ["complete"]
    assert caplog.text.count("job failed: ValueError('no feed')") == 2


def test_nothing_ends_the_repetition_unnoticed(
    provider: InMemoryLockProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed callback does not end it. Nor does a cancelled task that the function or callback awaits."""
    runs: list[int] = []

    async def await_something_cancelled() -> None:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled

    async def job() -> None:
        runs.append(1)
        await await_something_cancelled()

    def fail(error: Exception) -> Any:
        if len(runs) == 2:
            raise OSError("no mail server")
        return await_something_cancelled()

    (begin,) = workers(provider, 1, job, max_repetitions=3, on_exception=fail)
    with caplog.at_level(logging.ERROR):
        asyncio.run(run_all([begin]))
    assert len(runs) == 3
    messages = [record.getMessage() for record in records_of(caplog)]
    assert len([text for text in messages if "awaited something that was cancelled" in text]) == 3
    assert messages.count("job: on_exception failed") == 3


def test_a_first_wait_of_one_slot(provider: InMemoryLockProvider) -> None:
    """The slot may be any spelling of a duration."""
    runs: list[float] = []
    started = time.monotonic()
    slot: Any = timedelta(seconds=SLOT)
    once = repeat_every(seconds=slot, wait_first=True, max_repetitions=1, lock="job", provider=provider)
    asyncio.run(run_all([once(lambda: runs.append(time.monotonic()))]))
    assert runs[0] - started >= SLOT


def test_a_failing_job_ends_the_task_if_it_is_to(provider: InMemoryLockProvider) -> None:
    def job() -> None:
        raise ValueError("no feed")

    with pytest.raises(ValueError, match="no feed"):
        asyncio.run(run_all(workers(provider, 1, job, raise_exceptions=True)))


@pytest.mark.parametrize("raises", [True, False])
def test_i5_i14_a_slot_without_a_reply_of_the_store_is_lost_with_two_warnings(
    caplog: pytest.LogCaptureFixture, raises: bool
) -> None:
    down, caught = FaultyProvider(), list[Exception]()
    down.fail()
    runs: list[int] = []
    options: dict[str, Any] = {"seconds": SLOT, "max_repetitions": 1, "lock": "job", "raise_exceptions": raises}
    begin = repeat_every(**options, on_exception=caught.append, provider=down)(lambda: runs.append(1))
    with caplog.at_level(logging.WARNING), pytest.raises(ProviderUnreachable) if raises else nullcontext():
        asyncio.run(run_all([begin]))
    assert runs == []
    assert [type(error) for error in caught] == [ProviderUnreachable]
    # The end of the slot may cancel an attempt, which is also logged.
    first, last = [text for text in warnings_of(caplog) if "after a cancellation" not in text]
    assert "is late, because the store is unreachable; trying again" in first
    assert "is lost: the store was unreachable for too long" in last


def test_i14_a_shutdown_ends_the_attempts_and_says_what_is_lost() -> None:
    down, events = FaultyProvider(), RecordingListener()
    down.fail()

    async def main() -> None:
        task = await repeat_every(seconds=3600, lock="job", provider=down)(lambda: None)()
        await until(lambda: events.of(ProviderFailed))
        task.cancel()
        await asyncio.wait({task})

    with configure(listeners=[events]):
        asyncio.run(main())
    assert [(event.lock_name, event.reason) for event in events.of(RunMissed)] == [("job", "cancelled")]


@pytest.mark.slow("waits for the next slot")
def test_i14_a_slot_is_run_late_when_the_store_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """The next slot is also run, although the late run is still going on when that slot begins."""
    store = FaultyProvider()
    store.fail()
    fire_times: list[datetime] = []
    slot = timedelta(seconds=2)

    async def job() -> None:
        lease = current_lease()
        assert lease is not None
        assert lease.fire_time is not None
        fire_times.append(lease.fire_time)
        if len(fire_times) == 1:
            await until(lambda: datetime.now(UTC) > fire_times[0] + slot + timedelta(seconds=0.1))

    begin = repeat_every(seconds=2, max_repetitions=2, lock="job", provider=store)(job)

    async def main() -> None:
        await until(lambda: time.time() % 2 < 0.5)
        task = await begin()
        await until(lambda: warnings_of(caplog))
        store.recover()
        await task

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert fire_times[1] - fire_times[0] == slot
    assert "s late, because the store was unreachable" in warnings_of(caplog)[1]


@pytest.mark.not_quick("waits for the next slot")
@pytest.mark.parametrize("ends", [False, True], ids=["died", "runs"])
def test_i14_a_run_is_watched_beyond_its_slot(provider: InMemoryLockProvider, ends: bool) -> None:
    fire_times: list[datetime | None] = []

    def job() -> None:
        lease = current_lease()
        assert lease is not None
        fire_times.append(lease.fire_time)

    options: dict[str, Any] = {"lock_at_most_for": "900ms", "keep_alive": True, "recover": True, "max_repetitions": 3}
    begin = repeat_every(seconds=1, lock="job", provider=provider, **options)(job)

    async def main() -> datetime:
        await until(lambda: time.time() % 1 < 0.2)
        slot = datetime.fromtimestamp(int(time.time()), UTC)
        former = provider.acquire(LockRequest("job", "1400ms", fire_time=slot, holder="former"))
        assert former is not None
        task = await begin()
        await until(lambda: datetime.now(UTC) > slot + timedelta(seconds=1.2))
        if ends:
            provider.release(former)
        await task
        return slot

    slot = asyncio.run(main())
    second = timedelta(seconds=1)
    assert fire_times == ([slot + 2 * second] if ends else [slot, slot + 2 * second])


class LosesAReply(InMemoryLockProvider):
    """The replies to the first acquire and to its first undo are lost."""

    claimed: Lease | None = None

    def __init__(self, undone_after: int) -> None:
        super().__init__()
        self.left = undone_after

    def acquire(self, request: LockRequest) -> Lease | None:
        if self.claimed is None:
            self.claimed = super().acquire(replace(request, lock_at_most_for=timedelta(milliseconds=500)))
            raise ProviderUnreachable("no reply", operation="acquire", lock_name=request.name)
        self.left -= 1
        if self.left == 0:
            self.undo(self.claimed)
        return super().acquire(request)


@pytest.mark.slow("waits for the next slot")
@pytest.mark.parametrize(("undone_after", "runs"), [(2, 1), (1000, 0)])
def test_i14_a_slot_whose_own_claim_is_in_doubt_runs_or_is_lost_with_an_event(undone_after: int, runs: int) -> None:
    ran: list[int] = []
    events: list[Event] = []
    store = LosesAReply(undone_after)
    begin = repeat_every(seconds=4, max_repetitions=1, lock="job", provider=store)(lambda: ran.append(1))

    async def main() -> None:
        await until(lambda: time.time() % 4 < 0.5)
        await (await begin())

    with configure(listeners=[events.append]):
        asyncio.run(main())
    assert len(ran) == runs
    assert len([event for event in events if isinstance(event, RunMissed)]) == 1 - runs


@pytest.mark.parametrize("wait_first", [0.3, "300ms", timedelta(milliseconds=300)])
def test_the_first_wait_can_be_written_as_any_duration(wait_first: Any, provider: InMemoryLockProvider) -> None:
    async def main() -> float:
        (begin,) = workers(provider, 1, lambda: None, wait_first=wait_first, max_repetitions=1)
        began = asyncio.get_running_loop().time()
        await (await begin())
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(main()) >= 0.3


TOO_LONG = r"lock_at_least_for \(0:15:00\) is longer than lock_at_most_for \(0:10:00\)"


@pytest.mark.parametrize(
    ("durations", "defaults", "words"),
    [({"lock_at_least_for": "15m"}, {}, TOO_LONG), ({}, {"default_lock_at_most_for": None}, "no lock_at_most_for")],
)
def test_durations_that_cannot_work_end_the_start_of_the_application(
    provider: InMemoryLockProvider, durations: dict[str, Any], defaults: dict[str, Any], words: str
) -> None:
    """Otherwise the repeating task would end at its first slot, and log nothing."""
    begin = repeat_every(seconds=3600, lock="job", **durations)(lambda: None)

    async def main() -> None:
        async with lifespan(provider, start=[begin], **defaults)("app"):
            raise AssertionError("it began")

    with pytest.raises(ConfigurationError, match=words):
        asyncio.run(main())


@pytest.mark.parametrize("before", [Settings(), Settings.from_env({})], ids=["not configured", "configured anew"])
def test_durations_that_cannot_work_are_an_error_of_each_repetition(
    provider: InMemoryLockProvider, caplog: pytest.LogCaptureFixture, before: Settings
) -> None:
    caught: list[Exception] = []
    options: dict[str, Any] = {"lock": "job", "max_repetitions": 2, "on_exception": caught.append}
    begin = repeat_every(seconds=SLOT, provider=provider, **options)(lambda: None)

    async def main() -> None:
        with before.apply():
            task = await begin()
        with configure(default_lock_at_most_for=None):
            await task

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert [type(error) for error in caught] == [ConfigurationError] * 2
    assert caplog.text.count("job failed: ConfigurationError") == 2


def test_it_may_be_configured_after_its_start(provider: InMemoryLockProvider) -> None:
    ran: list[int] = []
    begin = repeat_every(seconds=SLOT, lock="job", max_repetitions=1)(lambda: ran.append(1))

    async def main() -> None:
        with Settings().apply():
            task = await begin()
        with configure(provider=provider):
            await task

    asyncio.run(main())
    assert ran == [1]


def test_a_coroutine_that_swallows_a_cancellation_runs_again(provider: InMemoryLockProvider) -> None:
    """A library's own time limit may do so, without ``uncancel()``."""
    ran: list[int] = []

    async def job() -> None:
        ran.append(1)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(5)

    asyncio.run(run_all(workers(provider, 1, job, max_repetitions=2)))
    assert ran == [1, 1]


def test_a_function_that_waits_for_a_free_thread_does_not_begin_after_a_cancellation(
    provider: InMemoryLockProvider,
) -> None:
    ran: list[int] = []
    may_end = threading.Event()
    (begin,) = workers(provider, 1, lambda: ran.append(1), seconds=3600)

    async def main() -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, may_end.wait, 10)
        task: asyncio.Task[None] = await begin()
        await until(lambda: is_held(provider, "job"))
        task.cancel()
        loop.call_later(0.1, may_end.set)
        await asyncio.wait({task})
        await busy
        return task

    assert asyncio.run(main()).cancelled()
    assert ran == []
    assert not is_held(provider, "job")


@pytest.mark.parametrize("end", ["lifespan", "two cancellations", "event loop"])
def test_i1_a_function_in_a_thread_keeps_its_lock_until_it_ends(provider: InMemoryLockProvider, end: str) -> None:
    """A cancelled task does not stop its thread: otherwise another worker would run the job at the same time."""
    has_begun, may_end = threading.Event(), threading.Event()
    happened: list[str] = []

    def job() -> None:
        has_begun.set()
        assert may_end.wait(10)
        happened.append("held" if is_held(provider, "job") else "free")

    (begin,) = workers(provider, 1, job, seconds=3600)

    async def main() -> None:
        async with lifespan(provider, start=[begin] if end == "lifespan" else [])("app"):
            task = None if end == "lifespan" else await begin()
            assert await asyncio.to_thread(has_begun.wait, 5)
            asyncio.get_running_loop().call_later(0.1, may_end.set)
            if task is not None and end == "two cancellations":
                for _ in range(2):
                    task.cancel()
                    await asyncio.sleep(0.01)
                await asyncio.wait({task})
                assert task.cancelled()
        happened.append("end")

    asyncio.run(main())
    assert happened == (["end", "held"] if end == "event loop" else ["held", "end"])
    assert not is_held(provider, "job")


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
def test_i8_a_function_that_ends_after_the_cancellation_has_its_own_outcome(
    provider: InMemoryLockProvider, caplog: pytest.LogCaptureFixture, outcome: str
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    caught: list[Exception] = []
    listener = RecordingListener()

    def job() -> None:
        has_begun.set()
        assert may_end.wait(10)
        if outcome == "failed":
            raise ValueError("no feed")

    (begin,) = workers(provider, 1, job, seconds=3600, on_exception=caught.append)

    async def main() -> asyncio.Task[None]:
        task: asyncio.Task[None] = await begin()
        assert await asyncio.to_thread(has_begun.wait, 5)
        task.cancel()
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.wait({task}, timeout=10)
        return task

    with configure(listeners=[listener]), caplog.at_level(logging.ERROR):
        assert asyncio.run(main()).cancelled()
    assert [event.outcome for event in listener.of(TaskFinished)] == [outcome]
    assert [str(error) for error in caught] == (["no feed"] if outcome == "failed" else [])
    assert ("job failed: ValueError('no feed')" in caplog.text) == (outcome == "failed")


def test_mistakes_of_repeat_every() -> None:
    with pytest.raises(ConfigurationError, match="repeat_every takes the lock itself"):
        repeat_every(seconds=1)(scheduler_lock("job")(lambda: None))
    with pytest.raises(ConfigurationError, match="seconds=0"):
        repeat_every(seconds=0)
    with pytest.raises(ConfigurationError, match="lock_at_most_for"):
        repeat_every(seconds=1, lock_at_most_for="ten")
    with pytest.raises(ConfigurationError, match="repeat_every takes no wait"):
        repeat_every(seconds=1, wait="5s")
    with pytest.raises(ConfigurationError, match="lock name"):
        repeat_every(seconds=1, lock="x" * 65)(lambda: None)
    for wait_first in ("5", float("nan"), -1):
        with pytest.raises(ConfigurationError, match=r"wait_first=\S+ is "):
            repeat_every(seconds=1, wait_first=wait_first)
    with pytest.raises(ConfigurationError, match="max_repetitions must be a whole number or None, not '3'"):
        repeat_every(seconds=1, max_repetitions="3")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigurationError, match="has no name: give repeat_every a lock="):
        repeat_every(seconds=1)(partial(print, 1))
    with pytest.raises(TypeError, match="decorates a function, not 5"):
        repeat_every(seconds=1)(5)  # type: ignore[arg-type]  # on purpose


# The lifespan


def test_it_starts_and_stops_in_order(provider: InMemoryLockProvider) -> None:
    happened: list[str] = []

    class Service:
        def start(self) -> None:
            happened.append("start")

        def stop(self) -> None:
            happened.append("stop")

    @asynccontextmanager
    async def own(app: str) -> AsyncIterator[None]:
        happened.append(f"{app} begins")
        yield
        happened.append(f"{app} ends")

    @scheduler_lock("job")
    def job() -> str:
        return "ran"

    async def main() -> None:
        async with lifespan(provider, start=[Service()], then=own)("app"):
            happened.append(str(job()))

    asyncio.run(main())
    assert happened == ["start", "app begins", "ran", "app ends", "stop"]
    with pytest.raises(ProviderNotConfigured):  # as before the start
        job()


def test_a_url_is_opened_its_tables_are_made_and_it_is_closed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"

    @scheduler_lock("job")
    async def job() -> str:
        return "ran"

    async def main() -> None:
        for _ in range(2):
            async with lifespan(url, default_lock_at_least_for="1s")("app"):
                await job()

    asyncio.run(main())
    record = provider_from_url(url).record("job")
    assert record is not None
    assert record.lock_until - record.locked_at > timedelta(seconds=0.9)


def test_a_job_that_is_cancelled_at_the_end_releases_its_lock(provider: InMemoryLockProvider) -> None:
    has_begun = asyncio.Event()

    @scheduler_lock("long", lock_at_most_for="1h")
    async def long() -> None:
        has_begun.set()
        await asyncio.sleep(3600)

    async def main() -> None:
        scheduler = AsyncIOScheduler(executors={"default": ShedLockExecutor()}, timezone="UTC")
        scheduler.add_job(long, "date", run_date=datetime.now(UTC))
        async with lifespan(provider, start=[scheduler], drain="50ms")("app"):
            await has_begun.wait()
            record = provider.record("long")
            assert record is not None
            assert record.is_held

    asyncio.run(main())
    record = provider.record("long")
    assert record is not None
    assert not record.is_held


def test_the_end_waits_for_the_releases_of_cancelled_jobs() -> None:
    """Connections are closed after the end."""

    async def main() -> None:
        store, has_begun = AsyncFaultyProvider(), asyncio.Event()

        @scheduler_lock("long", lock_at_most_for="1h", provider=store)
        async def long() -> None:
            has_begun.set()
            await asyncio.sleep(3600)

        scheduler = AsyncIOScheduler(executors={"default": ShedLockExecutor()}, timezone="UTC")
        scheduler.add_job(long, "date", run_date=datetime.now(UTC))
        async with lifespan(store, start=[scheduler], drain=0)("app"):
            await has_begun.wait()
            store.delay = 0.2
        assert not is_held(store.sync, "long")

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["coroutine", "function", "job of a scheduler"])
def test_i14_a_run_may_end_in_the_drain_time(provider: InMemoryLockProvider, kind: str) -> None:
    """Otherwise a deploy cuts such runs short, and uses up their fire times."""
    may_end, has_begun = threading.Event(), threading.Event()
    listener = RecordingListener()

    def job() -> None:
        has_begun.set()
        assert may_end.wait(20)

    async def job_async() -> None:
        has_begun.set()
        await until(may_end.is_set)

    scheduler = AsyncIOScheduler(executors={"default": ShedLockExecutor(lock_all=True)}, timezone="UTC")
    scheduler.add_job(job_async, "date", run_date=datetime.now(UTC), id="job")
    begin = repeat_every(seconds=3600, lock="job")(job if kind == "function" else job_async)

    async def main() -> None:
        async with lifespan(provider, start=[scheduler if kind == "job of a scheduler" else begin])("app"):
            await until(has_begun.is_set)
            asyncio.get_running_loop().call_later(0.1, may_end.set)
        assert not is_held(provider, "job")

    with configure(listeners=[listener]):
        asyncio.run(main())
    assert [event.outcome for event in listener.of(TaskFinished)] == ["succeeded"]


@pytest.mark.parametrize("end", ["lifespan", "drain", "second cancellation"])
def test_a_run_is_cancelled_after_the_drain_time(provider: InMemoryLockProvider, end: str) -> None:
    listener = RecordingListener()
    has_begun = asyncio.Event()

    async def job() -> None:
        has_begun.set()
        await asyncio.sleep(3600)

    drain = "50ms" if end == "drain" else None
    begin = repeat_every(seconds=3600, lock="job", provider=provider, drain=drain)(job)

    async def main() -> None:
        async with lifespan(provider, start=[begin] if end == "lifespan" else [], drain="50ms")("app"):
            task = None if end == "lifespan" else await begin()
            await has_begun.wait()
            if task is not None:
                task.cancel()
                await asyncio.sleep(0.01)
                if end == "second cancellation":
                    task.cancel()
                await asyncio.wait({task})
        assert not is_held(provider, "job")

    with configure(listeners=[listener]):
        asyncio.run(main())
    assert [event.outcome for event in listener.of(TaskFinished)] == ["cancelled"]


def test_i1_the_store_of_a_thread_that_outlasts_the_drain_stays_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease is kept until it ends: the heartbeats and the release need the connections."""
    has_begun, may_end = threading.Event(), threading.Event()
    url = f"sqlite:///{tmp_path}/locks.db"

    def job() -> None:
        has_begun.set()
        assert may_end.wait(20)

    begin = repeat_every(seconds=3600, lock="job")(job)

    async def main() -> None:
        async with lifespan(url, start=[begin], drain="50ms")("app"):
            await until(has_begun.is_set)
        record = provider_from_url(url).record("job")
        assert record is not None
        assert record.is_held
        may_end.set()

    with patch.object(fastapi, "_RELEASE_SECONDS", 0.05), caplog.at_level(logging.WARNING):
        asyncio.run(main())
    (warning,) = warnings_of(caplog)
    assert "still running after the drain time, so their leases are kept until the process ends: job (of " in warning
    record = provider_from_url(url).record("job")
    assert record is not None
    assert not record.is_held


def test_electors_schedulers_and_repeated_jobs(provider: InMemoryLockProvider) -> None:
    shared = AsyncInMemoryLockProvider(shared_with=provider)
    has_run = threading.Event()
    begin = repeat_every(seconds=3600, lock="repeated")(has_run.set)

    async def main() -> None:
        one, two, third = (
            AsyncLeaderElector(shared, "one"),
            LeaderElector(provider, "two"),
            AsyncLeaderElector(shared, "3"),
        )
        leading = lead(AsyncIOScheduler(timezone="UTC"), third)
        async with lifespan(shared, start=[one, two, leading, BackgroundScheduler(timezone="UTC"), begin])("app"):
            assert await one.wait_until_leader("5s")
            assert two.wait_until_leader("5s")
            assert await third.wait_until_leader("5s")
            assert await asyncio.to_thread(has_run.wait, 5)
        assert not any([one.is_leader(), two.is_leader(), third.is_leader()])

    asyncio.run(main())
    assert not any(record.is_held for record in provider.records())


def test_a_failure_at_the_start_stops_what_was_started(provider: InMemoryLockProvider) -> None:
    elector = LeaderElector(provider, "one")

    class Broken:
        def start(self) -> None:
            raise OSError("no port")

        def stop(self) -> None: ...

    async def main() -> None:
        async with lifespan(provider, start=[elector, Broken()])("app"):
            raise AssertionError("it began")

    with pytest.raises(OSError, match="no port"):
        asyncio.run(main())
    assert not elector.is_leader()
    with pytest.raises(ProviderNotConfigured):
        scheduler_lock("job")(lambda: None)()


def test_what_cannot_be_started() -> None:
    with pytest.raises(ConfigurationError, match="is no scheduler, elector"):
        lifespan("memory://", start=[lambda: None])


@pytest.fixture(autouse=True)
def _nothing_is_configured() -> Any:
    with reset():
        yield


def test_it_changes_the_store_and_the_defaults_that_it_names_only(provider: InMemoryLockProvider) -> None:
    """With the previous store, a function and a coroutine would take one lock in two stores."""
    configure(provider, holder="replica-1", default_lock_at_most_for="1m")

    async def main() -> None:
        async with lifespan(AsyncInMemoryLockProvider(), default_lock_at_most_for="2m")(None):
            assert lock_request("job") == LockRequest("job", "2m", holder="replica-1")
            with pytest.raises(ConfigurationError, match="only an async provider"):
                scheduler_lock("job")(lambda: None)()

    asyncio.run(main())
    assert lock_request("job") == LockRequest("job", "1m", holder="replica-1")
    assert scheduler_lock("job")(lambda: "ran")() == "ran"
    with pytest.raises(ConfigurationError, match=r"the provider is None\. Is the environment variable"):
        lifespan(None)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigurationError, match="default_lock_at_most_for=0 is zero"):
        asyncio.run(_enter(lifespan(AsyncInMemoryLockProvider(), default_lock_at_most_for=0)))
    assert scheduler_lock("job")(lambda: "ran")() == "ran"


async def _enter(context: Any) -> None:
    async with context(None):
        raise NotImplementedError
