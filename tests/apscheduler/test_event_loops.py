"""Other schedulers and their executors, by delegation; and what an event loop hands on from one job to the next."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED

from shedlock_py import AsyncInMemoryLockProvider, InMemoryLockProvider, Skipped, attempt_async, hold, scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor
from tests.apscheduler import jobs
from tests.apscheduler.rig import Rig, Task, now, running
from tests.support.polling import wait_until

variable: ContextVar[str | None] = ContextVar("variable", default=None)

ENDS = (EVENT_JOB_EXECUTED, EVENT_JOB_ERROR, EVENT_JOB_SKIPPED)


def check(rig: Rig, finish: Callable[[Task], Any]) -> None:
    """A job runs, one whose lock is held is skipped, one that fails releases. ``finish`` waits for the event."""
    task = rig.task()
    with hold(task.lock, lock_at_most_for="1m", provider=rig.provider):
        rig.add(task)
        assert finish(task).code == EVENT_JOB_SKIPPED
    for fail, code in (("oh no", EVENT_JOB_ERROR), (None, EVENT_JOB_EXECUTED)):
        rig.events.clear()
        rig.add(task, kwargs={"fail": fail})
        assert finish(task).code == code
        assert not rig.is_held(task)
    assert task.runs == 2


def options(executor: str | None) -> tuple[Any, dict[str, Any]]:
    provider = InMemoryLockProvider()
    return provider, {"executors": {"default": ShedLockExecutor(executor, provider)}, "timezone": "UTC"}


@pytest.mark.parametrize("executor", [None, "gevent"])
def test_gevent(executor: str | None, tmp_path: Path) -> None:
    gevent = pytest.importorskip("gevent")
    from apscheduler.schedulers.gevent import GeventScheduler

    provider, settings = options(executor)
    rig = Rig(GeventScheduler(**settings), provider, tmp_path, "gevent")

    def finish(task: Task) -> Any:
        with gevent.Timeout(10):
            while not rig.codes(task, *ENDS):
                gevent.sleep(0.005)
        [event] = rig.codes(task, *ENDS)
        return event

    rig.scheduler.start()
    try:
        check(rig, finish)
        task = rig.task()
        rig.add(task, jobs.locked_async)
        assert "cannot await" in str(finish(task).exception)
    finally:
        rig.scheduler.shutdown()


@contextmanager
def tornado_loop() -> Iterator[Any]:
    """A tornado loop in a thread of its own."""
    ioloop = pytest.importorskip("tornado.ioloop")
    made: list[Any] = []

    async def main() -> None:
        stopped = asyncio.Event()
        made.extend([ioloop.IOLoop.current(), stopped])
        await stopped.wait()
        await asyncio.get_running_loop().shutdown_default_executor()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    wait_until(lambda: len(made) == 2, what="the loop runs")
    try:
        yield made[0]
    finally:
        made[0].add_callback(made[1].set)
        thread.join()


@pytest.mark.parametrize("kind", ["asyncio", "coroutine"])
@pytest.mark.parametrize("executor", [None, "tornado"])
def test_tornado(executor: str | None, kind: str, tmp_path: Path) -> None:
    with tornado_loop() as loop:
        from apscheduler.schedulers.tornado import TornadoScheduler

        provider, settings = options(executor)
        rig = Rig(TornadoScheduler(io_loop=loop, **settings), provider, tmp_path, kind)
        rig.scheduler.start()
        check(rig, lambda task: rig.wait(task, *ENDS)[0])
        inner = rig.scheduler._executors["default"]._inner
        rig.scheduler.shutdown()
        wait_until(lambda: not rig.scheduler.running, what="the scheduler shut down")
        inner.executor.shutdown()  # its threads, which the executor leaves alone


@pytest.mark.parametrize("executor", [None, "twisted"])
def test_twisted(executor: str | None, tmp_path: Path) -> None:
    selectreactor = pytest.importorskip("twisted.internet.selectreactor")
    from apscheduler.schedulers.twisted import TwistedScheduler

    provider, settings = options(executor)
    reactor = selectreactor.SelectReactor()
    thread = threading.Thread(target=lambda: reactor.run(installSignalHandlers=False))
    thread.start()
    try:
        rig = Rig(TwistedScheduler(reactor=reactor, **settings), provider, tmp_path, "twisted")
        rig.scheduler.start()
        check(rig, lambda task: rig.wait(task, *ENDS)[0])
        task = rig.task()
        rig.add(task, jobs.locked_async)
        assert "cannot await" in str(rig.wait(task, *ENDS)[0].exception)
        rig.scheduler.shutdown()
        wait_until(lambda: not rig.scheduler.running, what="the scheduler shut down")
    finally:
        reactor.callFromThread(reactor.stop)
        thread.join()


@pytest.mark.parametrize("kind", ["coroutine", "asyncio"])
def test_i1_a_job_that_a_locked_job_wakes_is_not_inside_its_lock(kind: str, tmp_path: Path) -> None:
    """The timers of an event loop inherit the context of the job that set them, and its lease with it."""
    with running(tmp_path, kind) as rig:
        outer, inner = rig.task(), rig.task()

        @scheduler_lock(outer.lock, "1m")
        async def adds_a_job() -> str:
            rig.add(inner, args=(outer.lock, inner.log), next_run_time=now())
            await jobs.unlocked_async(outer.log, until=outer.gate)
            return "done"

        rig.add(outer, adds_a_job, args=())
        [event] = rig.wait(inner, *ENDS)
        assert (event.code, inner.runs) == (EVENT_JOB_SKIPPED, 0)
        outer.open_gate()
        rig.wait(outer, EVENT_JOB_EXECUTED)


@pytest.mark.parametrize("kind", ["coroutine", "debug"])
@pytest.mark.parametrize("is_locked", [True, False])
def test_every_job_begins_in_a_fresh_context(kind: str, is_locked: bool, tmp_path: Path) -> None:
    with running(tmp_path, kind) as rig:
        first, second = rig.task(), rig.task()
        seen: list[str | None] = []

        def look() -> None:
            seen.append(variable.get())

        async def look_async() -> None:
            look()

        def change() -> None:
            variable.set("of the first job")
            function: Any = look_async if kind == "coroutine" else look
            if is_locked:
                function = scheduler_lock(second.lock, "1m")(function)
            rig.add(second, function, args=(), next_run_time=now())

        async def change_async() -> None:
            change()

        rig.add(first, scheduler_lock(first.lock, "1m")(change_async if kind == "coroutine" else change), args=())
        rig.wait(second, EVENT_JOB_EXECUTED)
        assert seen == [None]


def test_i1_an_unlocked_job_that_a_locked_job_wakes_is_not_inside_its_lock(tmp_path: Path) -> None:
    """It has no lock under the executor, and takes one itself: the very one of the job that armed the timer."""
    with running(tmp_path, "coroutine") as rig:
        rebuild, export = rig.task(), rig.task()
        results: list[object] = []

        async def takes_the_lock() -> None:
            results.append(await attempt_async(rebuild.lock, nothing, lock_at_most_for="1m", provider=rig.provider))

        @scheduler_lock(rebuild.lock, "1m")
        async def adds_a_job() -> None:
            rig.add(export, takes_the_lock, args=(), next_run_time=now())
            await jobs.unlocked_async(rebuild.log, until=rebuild.gate)

        rig.add(rebuild, adds_a_job, args=())
        rig.wait(export, EVENT_JOB_EXECUTED)
        assert [type(result) for result in results] == [Skipped]
        rebuild.open_gate()
        rig.wait(rebuild, EVENT_JOB_EXECUTED)


async def nothing() -> None: ...


def test_coroutine_jobs_with_an_async_provider(tmp_path: Path) -> None:
    shared = InMemoryLockProvider()
    with running(tmp_path, "coroutine", provider=AsyncInMemoryLockProvider(shared)) as rig:
        rig.provider = shared
        check(rig, lambda task: rig.wait(task, *ENDS)[0])


def test_an_ordinary_job_with_only_an_async_provider_is_an_error(tmp_path: Path) -> None:
    with running(tmp_path, "thread", provider=AsyncInMemoryLockProvider()) as rig:
        task = rig.task()
        rig.add(task)
        [event] = rig.wait(task, *ENDS)
        assert "async provider" in str(event.exception)
        assert task.runs == 0
