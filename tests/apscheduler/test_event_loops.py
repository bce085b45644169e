"""Other schedulers and their executors; and contexts, which an event loop passes from job to job."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.triggers.interval import IntervalTrigger

from shedlock_py import (
    AsyncInMemoryLockProvider,
    InMemoryLockProvider,
    Lease,
    LockRequest,
    ProviderUnreachable,
    Skipped,
    attempt_async,
    current_lease,
    hold,
    scheduler_lock,
)
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor, late_runs
from tests.apscheduler import jobs
from tests.apscheduler.app import ENDS, App, Task, now, running
from tests.support.polling import wait_until

variable: ContextVar[str | None] = ContextVar("variable", default=None)


def check(app: App, finish: Callable[[Task], Any]) -> None:
    """Assert that a job runs, that a held lock skips it, and that a failure releases. ``finish`` waits for the
    event."""
    task = app.task()
    with hold(task.lock, lock_at_most_for="1m", provider=app.provider):
        app.add(task)
        assert finish(task).code == EVENT_JOB_SKIPPED
    for fail, code in (("oh no", EVENT_JOB_ERROR), (None, EVENT_JOB_EXECUTED)):
        app.events.clear()
        app.add(task, kwargs={"fail": fail})
        assert finish(task).code == code
        assert not app.is_held(task)
    assert task.runs == 2
    app.events.clear()
    app.provider.failures = 2  # type: ignore[attr-defined]  # a double
    app.add(task)
    assert finish(task).code == EVENT_JOB_EXECUTED  # late, in the right thread


class Stumbling(InMemoryLockProvider):
    """A store that fails its next acquires."""

    failures = 0

    def acquire(self, request: LockRequest) -> Lease | None:
        self.failures -= 1
        if self.failures >= 0:
            raise ProviderUnreachable("down", operation="acquire", lock_name=request.name)
        return super().acquire(request)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_runs, "FIRST_PAUSE", 0.01)


def options(executor: str | None) -> tuple[Any, dict[str, Any]]:
    provider = Stumbling()
    return provider, {"executors": {"default": ShedLockExecutor(executor, provider)}, "timezone": "UTC"}


@pytest.mark.parametrize("executor", [None, "gevent"])
def test_a_gevent_scheduler_runs_skips_and_releases(executor: str | None, tmp_path: Path) -> None:
    gevent = pytest.importorskip("gevent")
    from apscheduler.schedulers.gevent import GeventScheduler

    provider, settings = options(executor)
    app = App(GeventScheduler(**settings), provider, tmp_path, "gevent")

    def finish(task: Task) -> Any:
        with gevent.Timeout(10):
            while not app.codes(task, *ENDS):
                gevent.sleep(0.005)
        [event] = app.codes(task, *ENDS)
        return event

    app.scheduler.start()
    try:
        check(app, finish)
        task = app.task()
        app.add(task, jobs.locked_async)
        assert "cannot await" in str(finish(task).exception)
    finally:
        app.scheduler.shutdown()


@contextmanager
def tornado_loop() -> Iterator[Any]:
    """A tornado loop in a thread."""
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
def test_a_tornado_scheduler_runs_skips_and_releases(executor: str | None, kind: str, tmp_path: Path) -> None:
    with tornado_loop() as loop:
        from apscheduler.schedulers.tornado import TornadoScheduler

        provider, settings = options(executor)
        app = App(TornadoScheduler(io_loop=loop, **settings), provider, tmp_path, kind)
        app.scheduler.start()
        check(app, lambda task: app.wait(task, *ENDS)[0])
        app.scheduler.shutdown()
        wait_until(lambda: not app.scheduler.running, what="the scheduler shut down")
        settings["executors"]["default"].inner.executor.shutdown()  # its threads, which the executor does not touch


@pytest.mark.slow("imports Twisted")
@pytest.mark.parametrize("executor", [None, "twisted"])
def test_a_twisted_scheduler_runs_skips_and_releases(executor: str | None, tmp_path: Path) -> None:
    selectreactor = pytest.importorskip("twisted.internet.selectreactor")
    from apscheduler.schedulers.twisted import TwistedScheduler

    provider, settings = options(executor)
    reactor = selectreactor.SelectReactor()
    thread = threading.Thread(target=lambda: reactor.run(installSignalHandlers=False))
    thread.start()
    try:
        app = App(TwistedScheduler(reactor=reactor, **settings), provider, tmp_path, "twisted")
        app.scheduler.start()
        check(app, lambda task: app.wait(task, *ENDS)[0])
        task = app.task()
        app.add(task, jobs.locked_async)
        assert "cannot await" in str(app.wait(task, *ENDS)[0].exception)
        app.scheduler.shutdown()
        wait_until(lambda: not app.scheduler.running, what="the scheduler shut down")
    finally:
        reactor.callFromThread(reactor.stop)
        thread.join()


@pytest.mark.parametrize("kind", ["coroutine", "asyncio"])
def test_i1_a_job_that_a_locked_job_wakes_is_not_inside_its_lock(kind: str, tmp_path: Path) -> None:
    """An event loop's timer inherits the context, and so the lease, of the job that set it."""
    with running(tmp_path, kind, once_per_fire_time=False) as app:  # so the job does not wait for the lock
        first, second = app.task(), app.task()

        @scheduler_lock(first.lock, "1m")
        async def adds_a_job() -> str:
            app.add(second, args=(first.lock, second.log), next_run_time=now())
            await jobs.unlocked_async(first.log, until=first.gate)
            return "done"

        app.add(first, adds_a_job, args=())
        [event] = app.wait(second, *ENDS)
        assert (event.code, second.runs) == (EVENT_JOB_SKIPPED, 0)
        first.open_gate()
        app.wait(first, EVENT_JOB_EXECUTED)


@pytest.mark.parametrize("kind", ["coroutine", "debug"])
@pytest.mark.parametrize("is_locked", [True, False])
def test_a_job_keeps_the_context_variables_of_the_application(kind: str, is_locked: bool, tmp_path: Path) -> None:
    """The variables of the code that wakes an event loop. Each run has a copy of the context."""
    with running(tmp_path, kind) as app:
        first, second = app.task(), app.task()
        seen: list[str | None] = []
        leases: list[object] = []

        def record() -> None:
            seen.append(variable.get())
            leases.append(current_lease())
            variable.set("of the second job")

        async def record_async() -> None:
            record()

        def change() -> None:
            variable.set("of the application")
            function: Any = record_async if kind == "coroutine" else record
            if is_locked:
                function = scheduler_lock(second.lock, "1m")(function)
            late = now() - timedelta(hours=2)
            options = {"next_run_time": late, "coalesce": False, "args": ()}
            app.add(second, function, IntervalTrigger(hours=1, start_date=late, end_date=now()), **options)

        async def change_async() -> None:
            change()

        app.add(first, scheduler_lock(first.lock, "1m")(change_async if kind == "coroutine" else change), args=())
        app.wait(second, EVENT_JOB_EXECUTED, count=3)
        assert (
            seen == [None if kind == "debug" else "of the application"] * 3
        )  # without them, the scheduler's thread has no values
        assert leases.count(None) == (0 if is_locked else 3)


def test_i1_an_unlocked_job_that_a_locked_job_wakes_is_not_inside_its_lock(tmp_path: Path) -> None:
    """The executor has no lock for it. The job takes a lock itself: the lock of the job that set the timer."""
    with running(tmp_path, "coroutine") as app:
        rebuild, export = app.task(), app.task()
        results: list[object] = []

        async def takes_the_lock() -> None:
            results.append(await attempt_async(rebuild.lock, nothing, lock_at_most_for="1m", provider=app.provider))

        @scheduler_lock(rebuild.lock, "1m")
        async def adds_a_job() -> None:
            app.add(export, takes_the_lock, args=(), next_run_time=now())
            await jobs.unlocked_async(rebuild.log, until=rebuild.gate)

        app.add(rebuild, adds_a_job, args=())
        app.wait(export, EVENT_JOB_EXECUTED)
        assert [type(result) for result in results] == [Skipped]
        rebuild.open_gate()
        app.wait(rebuild, EVENT_JOB_EXECUTED)


async def nothing() -> None: ...


def test_coroutine_jobs_with_an_async_provider(tmp_path: Path) -> None:
    shared = InMemoryLockProvider()
    with running(tmp_path, "coroutine", provider=AsyncInMemoryLockProvider(shared)) as app:
        app.provider = shared
        check(app, lambda task: app.wait(task, *ENDS)[0])


def test_an_ordinary_job_with_only_an_async_provider_is_an_error(tmp_path: Path) -> None:
    with running(tmp_path, "thread", provider=AsyncInMemoryLockProvider()) as app:
        task = app.task()
        event = app.run_once(task)
        assert "async provider" in str(event.exception)
        assert task.runs == 0
