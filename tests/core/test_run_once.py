"""``run_once``: once per key in the whole fleet, until it has succeeded."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    InMemoryLockProvider,
    Lease,
    LeaseLost,
    LockRecord,
    LockRequest,
    LockSkipped,
    ProviderUnreachable,
    RunMissed,
    RunRecovered,
    TaskNotDone,
    configure,
    hold,
    run_once,
    run_once_async,
    set_active,
)
from shedlock_py.guard import block, once
from shedlock_py.model.record import ONCE
from shedlock_py.testing import FakeClock, RecordingListener
from tests.support.doubles import FaultyProvider
from tests.support.locks import record_of
from tests.support.logs import warnings_of

REQUEST = LockRequest("migrate", "1m", holder="other", fire_time=ONCE)


class World:
    """A store with a clock that moves while a caller waits. ``while_waiting`` is called in each pause."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.store = InMemoryLockProvider(clock=self.clock)
        self.began = self.clock()
        self.events = RecordingListener()
        self.while_waiting: Callable[[], object] = lambda: None
        self.pauses: list[float] = []
        for module in (block, once):
            monkeypatch.setattr(module, "monotonic", self.clock)
        monkeypatch.setattr(block.time, "sleep", self._sleep)  # type: ignore[attr-defined]  # of the module it imports

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)
        self.while_waiting()

    def begin(self, request: LockRequest = REQUEST) -> Lease:
        lease = self.store.acquire(request)
        assert lease is not None
        return lease

    def record(self) -> LockRecord:
        return record_of(self.store, "migrate")

    def elapsed(self) -> float:
        return self.clock() - self.began

    def run(self, task: Callable[[], object] = lambda: None, **options: Any) -> bool:
        with configure(self.store, listeners=[self.events]):
            return run_once("migrate", task, **options)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def fail() -> None:
    raise ValueError("no column")


def test_it_runs_once_and_then_is_done(world: World) -> None:
    ran: list[str] = []
    assert world.run(lambda: ran.append("first")) is True
    assert world.run(lambda: ran.append("second")) is False
    assert ran == ["first"]
    assert world.record().is_done
    assert [event.reason for event in world.events.of(LockSkipped)] == ["already_ran"]


def test_a_key_that_is_done_costs_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultyProvider()
    run_once("migrate", lambda: None, provider=store)
    store.calls.clear()
    run_once("migrate", lambda: None, provider=store)
    assert store.calls == {"record": 1}


def test_a_task_that_raises_is_tried_by_the_next(world: World) -> None:
    with pytest.raises(ValueError, match="no column"):
        world.run(fail)
    record = world.record()
    assert (record.is_done, record.is_held) == (False, False)
    assert world.run() is True
    assert world.events.of(RunMissed) == []


def test_a_caller_waits_until_another_has_done_it(world: World) -> None:
    lease = world.begin()
    world.while_waiting = lambda: world.elapsed() > 20 and world.store.release(lease)
    assert world.run() is False
    assert 20 < world.elapsed() < 22
    assert max(world.pauses) <= 1


def test_i14_a_caller_takes_over_when_the_runner_dies(world: World) -> None:
    world.begin()
    assert world.run() is True
    assert 60 <= world.elapsed() < 62
    [recovered] = world.events.of(RunRecovered)
    assert (recovered.fire_time, recovered.former_holder) == (None, "other")
    assert world.record().is_done


def test_a_recovered_task_that_raises_is_tried_by_the_next(world: World) -> None:
    world.begin()
    with pytest.raises(ValueError, match="no column"):
        world.run(fail)
    assert not world.record().is_done
    assert world.run() is True


def test_the_time_is_over(world: World) -> None:
    world.store.acquire(LockRequest("migrate", "1h", holder="web-1:7", fire_time=ONCE))
    with pytest.raises(TaskNotDone, match="not done within 0:00:30; web-1:7 runs it") as caught:
        world.run(wait="30s")
    assert world.elapsed() == pytest.approx(30, abs=0.01)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_without_a_wait_there_is_one_look(world: World) -> None:
    world.begin()
    with pytest.raises(TaskNotDone):
        world.run(wait=0)
    assert world.pauses == []


def test_i5_an_unreachable_store_is_tried_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyProvider(world.store, fail=["record", "acquire"])

    def come_back() -> None:
        if world.elapsed() > 20:
            store.recover()

    world.while_waiting = come_back
    assert world.run(provider=store) is True
    assert len(warnings_of(caplog, "unreachable")) == 1


def test_i5_a_store_that_stays_away_is_an_error(world: World) -> None:
    with pytest.raises(ProviderUnreachable):
        world.run(provider=FaultyProvider(world.store, fail=["record"]), wait="10s")
    assert world.elapsed() == pytest.approx(10, abs=0.01)


def test_it_is_not_begun_without_end(world: World) -> None:
    world.begin()
    for _ in range(15):
        world.clock.advance(60)
        world.store.recover(REQUEST, world.record())
    with pytest.raises(TaskNotDone, match=r"begun 16 times.*shedlock once --forget migrate"):
        world.run()
    assert world.store.forget_fire_time("migrate")
    assert world.run() is True


def test_a_pause_is_waited_for(world: World) -> None:
    world.store.pause("migrate", "30s", by="alice")
    assert world.run() is True
    assert world.elapsed() >= 30


def test_a_pause_that_outlives_the_wait_names_the_command_that_ends_it(world: World) -> None:
    world.store.pause("migrate", "30m", by="alice")
    with pytest.raises(TaskNotDone, match=r"it is paused by alice\. To end the pause: shedlock resume migrate"):
        world.run()


def test_after_a_pause_nobody_knows_whether_it_is_done(world: World) -> None:
    world.run()
    world.store.pause("migrate", "30s", by="alice")
    with pytest.raises(TaskNotDone, match=r"paused by alice.*--forget migrate"):
        world.run()


def test_the_name_of_a_job_with_fire_times_is_refused(world: World) -> None:
    world.store.release(world.begin(LockRequest("migrate", "1m", fire_time=datetime(2024, 5, 1, tzinfo=UTC))))
    with pytest.raises(ConfigurationError, match="a job has this lock name"):
        world.run()


def test_inside_a_lease_of_that_name_it_is_refused(world: World) -> None:
    with configure(world.store), hold("migrate"), pytest.raises(ConfigurationError, match="inside of a lease"):
        run_once("migrate", lambda: None)


def test_a_shutdown_ends_the_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.begin()
    world.while_waiting = lambda: monkeypatch.setattr(block, "process_gates", [lambda: "shutting_down"])
    with pytest.raises(TaskNotDone, match="shutting down"):
        world.run()


def test_no_other_option_is_known(world: World) -> None:
    options: Any = {"lock_at_least_for": "1m"}
    with pytest.raises(TypeError, match=r"its options are: wait, provider"):
        run_once("migrate", lambda: None, **options)


def test_a_coroutine_function_needs_the_async_twin() -> None:
    async def migrate() -> None: ...

    with pytest.raises(TypeError, match="async"):
        run_once("migrate", migrate, provider=InMemoryLockProvider())


def test_a_provider_that_cannot_undo_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemoryLockProvider, "undo", None)
    with pytest.raises(ConfigurationError, match="method undo"):
        world.run()


def test_where_locking_is_switched_off_it_runs() -> None:
    set_active(False)
    assert run_once("migrate", lambda: None) is True


def test_a_task_that_loses_its_lease_has_run(world: World) -> None:
    assert world.run(lambda: world.clock.advance(timedelta(hours=1)))
    assert len(world.events.of(LeaseLost)) == 1
    assert not world.record().is_done, "another may run it, too"


# In real time


def test_of_many_threads_one_succeeds_after_those_that_fail(caplog: pytest.LogCaptureFixture) -> None:
    store, tries, results = InMemoryLockProvider(), list[int](), dict[int, object]()

    def call(number: int) -> None:
        def task() -> None:
            tries.append(number)
            if len(tries) < 3:
                fail()

        try:
            results[number] = run_once("migrate", task, provider=store)
        except ValueError as error:
            results[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, results.values())) == ["False"] * 3 + ["True"] + ["no column"] * 2
    assert len(tries) == 3


def test_of_many_tasks_one_runs_and_all_wait_for_it() -> None:
    async def main() -> None:
        store, is_begun, is_done = AsyncInMemoryLockProvider(), asyncio.Event(), asyncio.Event()
        began: list[int] = []

        async def call(number: int) -> bool:
            async def task() -> None:
                began.append(number)
                is_begun.set()
                await is_done.wait()

            return await run_once_async("migrate", task, provider=store)

        calls = [asyncio.create_task(call(number)) for number in range(5)]
        await is_begun.wait()
        assert not any(call.done() for call in calls)
        is_done.set()
        assert sorted(await asyncio.gather(*calls)) == [False] * 4 + [True]
        assert len(began) == 1

    asyncio.run(main())


def test_i12_a_cancelled_task_is_run_by_the_next() -> None:
    async def main() -> None:
        store = AsyncInMemoryLockProvider()
        begun = asyncio.Event()

        async def endless() -> None:
            begun.set()
            await asyncio.Event().wait()

        async def quick() -> None: ...

        first = asyncio.create_task(run_once_async("migrate", endless, provider=store))
        await begun.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await run_once_async("migrate", quick, provider=store) is True

    asyncio.run(main())
