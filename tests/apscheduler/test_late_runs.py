"""Late runs: the store was unreachable, a late run blocked the next, or another replica died."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_PAUSED

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    Event,
    InMemoryLockProvider,
    Lease,
    LockAcquired,
    LockRecord,
    LockRequest,
    ProviderUnreachable,
    RunMissed,
    RunRecovered,
    configure,
    reset,
    scheduler_lock,
)
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor, late_runs
from shedlock_py.integrations.apscheduler.late_runs import LateRuns, retry_until
from tests.apscheduler import test_catch_up
from tests.apscheduler.app import ENDS, SLOW_PROCESS, App, Task, now, running, seconds, stop
from tests.apscheduler.past import PastStore, daily, ran_at
from tests.apscheduler.test_catch_up import Replica, started
from tests.support.doubles import FaultyProvider
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of
from tests.support.polling import wait_until

DAY = timedelta(days=1)

kinds = pytest.mark.parametrize("kind", ["thread", "asyncio", "coroutine"])


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_runs, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(late_runs, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(late_runs, "SCHEDULER_PAUSE", 0.01)


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """The library's events."""
    found: list[Event] = []
    with configure(listeners=[found.append], keep_alive=True):
        yield found


def missed(events: list[Event]) -> list[tuple[str, datetime | None, str]]:
    return [(each.lock_name, each.fire_time, each.reason) for each in events if isinstance(each, RunMissed)]


# The store was unreachable


@kinds
def test_i14_a_run_waits_for_its_store_and_takes_place_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores = [FaultyProvider(InMemoryLockProvider())]
    stores += [FaultyProvider(stores[0].inner) for _ in range(2)]
    with ExitStack() as stack:
        replicas = [stack.enter_context(running(tmp_path, kind, provider=store)) for store in stores]
        task, run_date = replicas[0].task(), now()
        for replica, store in zip(replicas, stores, strict=True):
            store.fail()
            replica.add(task, None, "date", run_date=run_date, misfire_grace_time=30)
        wait_until(lambda: min(store.calls["acquire"] for store in stores) > 3, what="several attempts")
        assert task.runs == 0
        for store in stores:
            store.recover()
        found = [replica.wait(task, *ENDS)[0] for replica in replicas]
    assert sorted(event.code for event in found) == [EVENT_JOB_EXECUTED, EVENT_JOB_SKIPPED, EVENT_JOB_SKIPPED]
    assert task.runs == 1
    waits = warnings_of(caplog, "is tried again until", str(run_date), logger="apscheduler")
    assert len(waits) == len(replicas)
    [late] = warnings_of(caplog, "when its store was unreachable: it runs now", logger="apscheduler")
    assert str(run_date) in late


@pytest.mark.not_quick("waits for a second")
@kinds
@pytest.mark.parametrize("choice", ["error", "skip"])
def test_i14_a_run_whose_store_stays_away_is_lost_with_one_event_and_two_warnings(
    kind: str,
    choice: Any,
    tmp_path: Path,
    events: list[Event],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(late_runs, "SHORTEST_RETRY", seconds(0.3))
    with running(tmp_path, kind, provider=FaultyProvider(fail=["acquire"]), on_provider_error=choice) as app:
        task, run_date = app.task(), now()
        app.add(task, None, "date", run_date=run_date, misfire_grace_time=1)
        [event] = app.wait(task, *ENDS)
        if choice == "error":
            assert event.code == EVENT_JOB_ERROR
            assert isinstance(event.exception, ProviderUnreachable)
        else:
            assert (event.code, event.reason) == (EVENT_JOB_SKIPPED, "provider_error")
        assert missed(events) == [(task.lock, run_date, "unreachable")]
    assert len(warnings_of(caplog, "is tried again until", logger="apscheduler")) == 1
    assert app.codes(task, *ENDS) == [event]
    assert task.runs == 0


@pytest.mark.not_quick("waits for a second")
def test_i14_a_run_whose_event_loop_is_closed_is_lost_with_an_event(
    tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: object) -> None:
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(late_runs, "SHORTEST_RETRY", seconds(0.3))
    monkeypatch.setattr(late_runs, "FIRST_PAUSE", 9)
    with running(tmp_path, provider=FaultyProvider(fail=["acquire"])) as app:
        late = app.scheduler._executors["default"]._late_runs  # no public access
        monkeypatch.setattr(late, "_loop_call", closed)
        task, run_date = app.task(), now()
        app.add(task, None, "date", run_date=run_date, misfire_grace_time=1)
        app.wait(task, *ENDS)
    assert missed(events) == [(task.lock, run_date, "unreachable")]


@pytest.mark.parametrize(
    ("following", "grace", "within", "expected"),
    [
        (None, 1, None, 60),
        (None, 90, None, 90),
        (None, 1, 600, 600),
        (300, 1, 600, 300),
        (5, 1, None, 5),
        (300, None, None, 300),
        (None, None, 600, None),
    ],
)
def test_a_run_is_tried_again_for_the_longest_time_but_not_beyond_the_next_fire_time(
    following: float | None, grace: int | None, within: float | None, expected: float | None
) -> None:
    run_time = datetime(2026, 3, 2, 12, tzinfo=UTC)

    def after(count: float | None) -> datetime | None:
        return None if count is None else run_time + seconds(count)

    found = retry_until(run_time, after(following), grace, None if within is None else seconds(within))
    assert found == after(expected)


def test_waiting_for_the_store_occupies_no_thread_and_no_instance(tmp_path: Path) -> None:
    down = FaultyProvider()
    executor = ShedLockExecutor(ThreadPoolExecutor(1), down)
    with running(tmp_path, provider=down.inner, executor=executor) as app:
        down.fail("acquire")
        task = app.task()
        app.add(task, max_instances=1)
        wait_until(lambda: down.calls["acquire"] > 1, what="a second attempt")
        app.settle()  # the only thread runs another job
        down.recover()
        app.wait(task, EVENT_JOB_EXECUTED)


@kinds
def test_i14_a_shutdown_ends_the_waiting_and_says_what_is_lost(
    kind: str, tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_runs, "FIRST_PAUSE", 60.0)
    with running(tmp_path, kind, provider=FaultyProvider(fail=["acquire"])) as app:
        task, run_date = app.task(), now()
        app.add(task, None, "date", run_date=run_date)
        wait_until(lambda: app.provider.calls["acquire"], what="the first attempt")  # type: ignore[attr-defined]
        wait_until(lambda: not app.scheduler._executors["default"].inner._instances, what="its end")  # no public access
        stop(app)
    assert missed(events) == [(task.lock, run_date, "cancelled")]
    assert [event.code for event in app.codes(task, *ENDS)] == [EVENT_JOB_ERROR]


def test_a_plain_lock_is_not_tried_again(tmp_path: Path) -> None:
    with running(tmp_path, provider=FaultyProvider(fail=["acquire"]), once_per_fire_time=False) as app:
        task = app.task()
        assert app.run_once(task).code == EVENT_JOB_ERROR


def test_while_the_scheduler_is_paused_no_run_begins_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []

    def is_paused(runs: LateRuns) -> bool:
        looks.append(paused := bool(runs.scheduler.state == STATE_PAUSED))
        return paused

    monkeypatch.setattr(LateRuns, "is_paused", is_paused)
    store = FaultyProvider(fail=["acquire"])
    with running(tmp_path, provider=store) as app:
        task = app.task()
        app.add(task)
        wait_until(lambda: store.calls["acquire"] > 1, what="a second attempt")
        app.scheduler.pause()
        wait_until(lambda: True in looks, what="the end of the attempts")
        store.recover()
        wait_until(lambda: looks.count(True) > 3, what="several looks")
        assert task.runs == 0
        app.scheduler.resume()
        app.wait(task, EVENT_JOB_EXECUTED)


def test_a_job_that_is_removed_does_not_run_late(tmp_path: Path, events: list[Event]) -> None:
    store = FaultyProvider(fail=["acquire"])
    with running(tmp_path, provider=store) as app:
        task = app.task()
        app.add(task, None, "interval", hours=1, next_run_time=now())
        wait_until(lambda: store.calls["acquire"] > 1, what="a second attempt")
        app.scheduler.remove_job(task.id)
        store.recover()
        app.settle()
        assert app.codes(task, EVENT_JOB_ERROR) == []
    assert missed(events) == []


class LosesAReply(InMemoryLockProvider):
    """Lose the first acquire's reply, and undo its claim after the third attempt."""

    attempts = 0
    claimed: Lease | None = None

    def acquire(self, request: LockRequest) -> Lease | None:
        self.attempts += 1
        if self.claimed is None:
            self.claimed = super().acquire(request)
            raise ProviderUnreachable("no reply", operation="acquire", lock_name=request.name)
        if self.attempts == 4:
            self.undo(self.claimed)
        return super().acquire(request)


def test_i11_a_run_whose_own_claim_is_in_doubt_takes_place_when_that_is_undone(tmp_path: Path) -> None:
    with running(tmp_path, provider=LosesAReply()) as app:
        task = app.task()
        assert app.run_once(task).code == EVENT_JOB_EXECUTED
        assert task.runs == 1


class LosesItsUndo(LosesAReply):
    """The claim is never undone: its short lease expires."""

    def acquire(self, request: LockRequest) -> Lease | None:
        return super().acquire(replace(request, lock_at_most_for=timedelta(milliseconds=100)))

    def undo(self, lease: Lease) -> bool:
        """Do nothing: the request is lost."""
        return False


def test_i14_a_run_whose_own_claim_expires_is_lost_with_an_event(tmp_path: Path, events: list[Event]) -> None:
    with running(tmp_path, provider=LosesItsUndo()) as app:
        task, run_date = app.task(), now()
        app.add(task, None, "date", run_date=run_date, misfire_grace_time=60)
        wait_until(lambda: missed(events), what="the event")
        assert missed(events) == [(task.lock, run_date, "unreachable")]
        assert task.runs == 0


class LosesARead(LosesItsUndo):
    """The record cannot be read after the first refusal."""

    has_failed = False

    def record(self, name: str) -> LockRecord | None:
        if not self.has_failed:
            self.has_failed = True
            raise ProviderUnreachable("no reply", operation="record", lock_name=name)
        return super().record(name)


def test_i14_a_run_whose_own_claim_cannot_be_read_is_lost_with_an_event(tmp_path: Path, events: list[Event]) -> None:
    with running(tmp_path, provider=LosesARead()) as app:
        task, run_date = app.task(), now()
        app.add(task, None, "date", run_date=run_date, misfire_grace_time=60)
        wait_until(lambda: missed(events), what="the event")
        assert missed(events) == [(task.lock, run_date, "unreachable")]


@pytest.mark.parametrize("kind", [SLOW_PROCESS])
def test_i14_a_run_in_a_process_pool_waits_for_its_store(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEDLOCK_TEST_SWITCH", str(tmp_path))
    from tests.apscheduler.app import make_inner

    executor = ShedLockExecutor(make_inner(kind), "tests.apscheduler.jobs:make_switched_provider")
    with running(tmp_path, provider=InMemoryLockProvider(), executor=executor) as app:
        task, run_date = app.task(), now()
        app.add(task, None, "date", run_date=run_date, misfire_grace_time=60)
        wait_until((tmp_path / "failed").exists, timeout=60, what="the first attempt")
        (tmp_path / "up").touch()
        assert app.wait(task, *ENDS)[0].code == EVENT_JOB_EXECUTED


# A late run leaves room


@pytest.fixture
def store() -> PastStore:
    return PastStore()


@contextmanager
def running_late(directory: Path, store: PastStore) -> Iterator[tuple[Replica, Task]]:
    """Yield a replica that runs a missed run at its start, until the task's gate is opened."""
    fire_time = now().replace(microsecond=0) - seconds(60)
    replica = Replica(directory, "thread", store, store)
    task = replica.task()
    replica.scheduler.add_job(
        replica.function("locked"), daily(fire_time), id=task.id, args=(task.lock, task.log, task.gate)
    )
    ran_at(store, task.lock, fire_time - DAY)
    with started(replica):
        wait_until(lambda: task.runs, what="the missed run")
        yield replica, task


def due_now(app: App, task: Task) -> datetime:
    moment = now()
    app.scheduler.modify_job(task.id, next_run_time=moment)
    app.settle()
    return moment


def test_i14_the_run_on_time_begins_when_the_late_run_ends(tmp_path: Path, store: PastStore) -> None:
    with running_late(tmp_path, store) as (replica, task):
        on_time = due_now(replica, task)
        assert replica.codes(task, *ENDS) == []
        task.open_gate()
        late, second = replica.wait(task, *ENDS, count=2)
        assert (late.code, second.code) == (EVENT_JOB_EXECUTED, EVENT_JOB_EXECUTED)
        assert second.scheduled_run_time == on_time
    assert record_of(store, task.lock).last_fire_time == on_time


class LosesTheFirst(ThreadPoolExecutor):
    """Lose the first run's worker, as a process pool may."""

    def __init__(self) -> None:
        super().__init__(2)
        self.lost = threading.Event()
        self.may_lose = threading.Event()

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        if self.lost.is_set():
            super()._do_submit_job(job, run_times)
            return
        self.lost.set()

        def lose() -> None:
            self.may_lose.wait()
            self._run_job_error(job.id, BrokenProcessPool("a process was terminated abruptly"))

        self._pool.submit(lose)


def test_i14_the_run_on_time_begins_when_the_worker_of_the_late_run_died(
    tmp_path: Path, store: PastStore, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = LosesTheFirst()
    monkeypatch.setattr(test_catch_up, "make_inner", lambda _: inner)
    fire_time = now().replace(microsecond=0) - seconds(60)
    replica = Replica(tmp_path, "thread", store, store)
    task = replica.plan(daily(fire_time))
    ran_at(store, task.lock, fire_time - DAY)
    with started(replica):
        wait_until(inner.lost.is_set, what="the late run")
        for _ in range(2):  # the first run waits for the late run
            on_time = due_now(replica, task)
            inner.may_lose.set()
            assert replica.wait(task, *ENDS)[-1].scheduled_run_time == on_time
            replica.events.clear()
    assert task.runs == 2
    assert missed(events) == []


def test_i14_of_two_runs_on_time_the_newer_one_gets_the_room(
    tmp_path: Path, store: PastStore, events: list[Event]
) -> None:
    with running_late(tmp_path, store) as (replica, task):
        older, newer = due_now(replica, task), due_now(replica, task)
        task.open_gate()
        assert replica.wait(task, *ENDS, count=2)[1].scheduled_run_time == newer
        wait_until(lambda: missed(events), what="the event")
        assert missed(events) == [(task.lock, older, "no_room")]


def test_i14_a_shutdown_says_which_run_on_time_is_lost(tmp_path: Path, store: PastStore, events: list[Event]) -> None:
    with running_late(tmp_path, store) as (replica, task):
        on_time = due_now(replica, task)
        replica.scheduler.shutdown(wait=False)
        task.open_gate()
        assert missed(events) == [(task.lock, on_time, "cancelled")]
        wait_until(lambda: replica.codes(task, *ENDS), what="the end of the late run")
    assert task.runs == 1


# Recovery


def dies(provider: Any, lock: str, fire_time: datetime, at_most: str = "300ms") -> None:
    """Begin the run of ``fire_time`` as a replica that is killed then."""
    acquired(provider, lock, at_most, fire_time=fire_time, holder="dead")


@kinds
def test_i14_a_run_whose_holder_died_is_recovered_once(kind: str, tmp_path: Path, events: list[Event]) -> None:
    provider = InMemoryLockProvider()
    with ExitStack() as stack:
        apps = [stack.enter_context(running(tmp_path, kind, provider=provider, recover=True)) for _ in range(2)]
        task, run_date = apps[0].task(), now()
        dies(provider, task.lock, run_date)
        for app in apps:
            app.add(task, None, "date", run_date=run_date)
        wait_until(lambda: any(app.codes(task, EVENT_JOB_EXECUTED) for app in apps), what="the recovery")
        wait_until(lambda: all(app.codes(task, EVENT_JOB_SKIPPED) for app in apps), what="the skips")
    assert task.runs == 1
    [recovered] = [each for each in events if isinstance(each, RunRecovered)]
    assert (recovered.fire_time, recovered.former_holder, recovered.recoveries) == (run_date, "dead", 1)
    order = [type(each) for each in events if isinstance(each, LockAcquired | RunRecovered)]
    assert order == [LockAcquired, RunRecovered]
    assert missed(events) == []


def test_i14_an_async_provider_is_watched_in_the_event_loop(tmp_path: Path, events: list[Event]) -> None:
    store = InMemoryLockProvider()
    provider = AsyncInMemoryLockProvider(shared_with=store)
    with running(tmp_path, "coroutine", provider=provider, recover=True) as app:
        task, run_date = app.task(), now()
        dies(store, task.lock, run_date)
        app.add(task, None, "date", run_date=run_date)
        app.wait(task, EVENT_JOB_EXECUTED)
    assert task.runs == 1


def test_i11_a_run_that_was_released_is_not_recovered(tmp_path: Path, events: list[Event]) -> None:
    store = FaultyProvider(InMemoryLockProvider())
    with running(tmp_path, provider=store, recover=True) as app:
        task, run_date = app.task(), now()
        lease = acquired(store.inner, task.lock, "300ms", fire_time=run_date, holder="other")
        app.add(task, None, "date", run_date=run_date)
        app.wait(task, EVENT_JOB_SKIPPED)
        store.inner.release(lease)
        wait_until(lambda: not app.scheduler._executors["default"]._late_runs._entries)  # no public access
        assert store.calls["record"] <= 2  # a read to explain the skip, and a read for the lease
    assert task.runs == 0
    assert missed(events) == []


class LosesTheFirstRead(InMemoryLockProvider):
    has_lost = False

    def record(self, name: str) -> Any:
        if not self.has_lost:
            self.has_lost = True
            raise ProviderUnreachable("down", operation="record", lock_name=name)
        return super().record(name)


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_i14_a_run_is_watched_though_the_read_after_its_refusal_failed(
    kind: str, tmp_path: Path, events: list[Event]
) -> None:
    provider = LosesTheFirstRead()
    with running(tmp_path, kind, provider=provider, recover=True) as app:
        task, run_date = app.task(), now()
        dies(provider, task.lock, run_date, "300ms")
        app.add(task, None, "date", run_date=run_date)
        app.wait(task, EVENT_JOB_EXECUTED)
    assert provider.has_lost
    assert task.runs == 1
    assert [event.former_holder for event in events if isinstance(event, RunRecovered)] == ["dead"]
    assert missed(events) == []


def test_i14_without_recover_a_dead_holders_run_is_not_watched(tmp_path: Path, events: list[Event]) -> None:
    store = FaultyProvider(InMemoryLockProvider())
    with running(tmp_path, provider=store) as app:
        task, run_date = app.task(), now()
        dies(store.inner, task.lock, run_date, "1m")
        assert app.run_once(task, None, "date", run_date=run_date).reason == "held"
        assert store.calls["record"] == 1
        assert not app.scheduler._executors["default"]._late_runs._entries  # no public access


def test_i14_a_run_that_was_recovered_too_often_is_lost(tmp_path: Path, events: list[Event]) -> None:
    provider = InMemoryLockProvider()
    with running(tmp_path, provider=provider, recover=True, max_recoveries=1) as app:
        task, run_date = app.task(), now()
        dies(provider, task.lock, run_date, "20ms")
        request = LockRequest(task.lock, "200ms", fire_time=run_date, holder="dead-too")
        wait_until(lambda: not record_of(provider, task.lock).is_held)
        assert provider.recover(request, record_of(provider, task.lock))
        app.add(task, None, "date", run_date=run_date)
        wait_until(lambda: missed(events), what="the event")
    assert missed(events) == [(task.lock, run_date, "too_many_recoveries")]
    assert task.runs == 0


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_i14_a_replica_that_starts_watches_the_last_run_of_each_job(
    kind: str, tmp_path: Path, store: PastStore, events: list[Event]
) -> None:
    """A deploy replaces all replicas that saw the death."""
    fire_time = now().replace(microsecond=0) - seconds(60)
    with running(tmp_path, kind, provider=store, executor=None, recover=True) as app:
        dead, done, old = app.task(), app.task(), app.task()
        app.scheduler.pause()
        with store.at(fire_time):
            dies(store, dead.lock, fire_time)
        ran_at(store, done.lock, fire_time)
        with store.at(fire_time - DAY):
            dies(store, old.lock, fire_time - DAY)
        for task in (dead, done, old):
            app.add(task, None, daily(fire_time))
        app.scheduler.resume()
        assert app.wait(dead, EVENT_JOB_EXECUTED)[0].scheduled_run_time == fire_time
        app.settle()
        assert [task.runs for task in (dead, done, old)] == [1, 0, 0]


class AnotherIsFirst(PastStore):
    """Another replica claims the missed run first, and dies."""

    def acquire(self, request: LockRequest) -> Lease | None:
        if request.fire_time is not None and request.holder != "dead":
            super().acquire(replace(request, lock_at_most_for=seconds(0.2), holder="dead"))
        return super().acquire(request)


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_i14_a_run_that_another_replica_caught_up_is_recovered_if_that_dies(
    kind: str, tmp_path: Path, events: list[Event]
) -> None:
    store = AnotherIsFirst()
    fire_time = now().replace(microsecond=0) - seconds(60)
    with running(tmp_path, kind, provider=store, recover=True, catch_up="10m") as app:
        task = app.task()
        with store.at(fire_time - DAY):
            store.release(acquired(store, task.lock, "1m", fire_time=fire_time - DAY, holder="dead"))
        app.scheduler.pause()
        app.add(task, None, daily(fire_time))
        app.scheduler.resume()
        app.wait(task, EVENT_JOB_EXECUTED)
    assert task.runs == 1
    assert [event.fire_time for event in events if isinstance(event, RunRecovered)] == [fire_time]


def test_recover_needs_keep_alive(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path, recover=True) as app:
        event = app.run_once(app.task())
        assert isinstance(event.exception, ConfigurationError)
        assert "needs keep_alive=True" in str(event.exception)
    assert len(warnings_of(caplog, "would fail", "needs keep_alive=True", logger="apscheduler")) == 1


def test_recover_needs_a_store_that_can_recover(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may be a coroutine function, which calls the store in threads."""
    monkeypatch.setattr(InMemoryLockProvider, "recover", None)
    provider = InMemoryLockProvider()

    async def job() -> None: ...

    async def main() -> None:
        scheduler = AsyncIOScheduler(
            executors={"default": ShedLockExecutor(None, provider, lock_all=True, recover=True)}
        )
        scheduler.add_job(job, "cron", hour=2, id="no-recover", timezone="UTC")
        scheduler.start()
        scheduler.shutdown()

    with configure(keep_alive=True):
        asyncio.run(main())
    needs = "recover=True needs a provider with the method recover: InMemoryLockProvider"
    assert len(warnings_of(caplog, "would fail", needs, logger="apscheduler")) == 1


def test_a_missing_provider_is_warned_of_at_the_start_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor(recover=True)}, timezone="UTC")
    scheduler.add_job(scheduler_lock("invoices", lock_at_most_for="1m")(print), "cron", day=1, id="invoices")
    with reset(), configure(keep_alive=True):
        scheduler.start()
        try:
            wait_until(lambda: warnings_of(caplog, "are not recovered here", logger="apscheduler"), what="the warning")
        finally:
            scheduler.shutdown()
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


def test_recover_needs_fire_times(tmp_path: Path, events: list[Event], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigurationError, match="recover cannot work with once_per_fire_time=False"):
        ShedLockExecutor(recover=True, once_per_fire_time=False)
    with pytest.raises(ConfigurationError, match="max_recoveries must be a number from 1 to 15"):
        ShedLockExecutor(recover="yes", max_recoveries="16")
    with running(tmp_path, recover=True) as app:
        task = app.task()
        app.add(task, None, "cron", second="*", jitter=1)
        app.scheduler.pause_job(task.id)
    assert len(warnings_of(caplog, "are not recovered", task.id, logger="apscheduler")) == 1


def test_a_catch_up_is_logged_with_its_delay(
    tmp_path: Path, store: PastStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), running_late(tmp_path, store) as (_, task):
        task.open_gate()
    assert "when no replica ran it: it runs now, 6" in caplog.text
