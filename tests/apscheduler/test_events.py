"""Events for listeners, and the log."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import (
    Event,
    InMemoryLockProvider,
    ProviderUnreachable,
    TaskFinished,
    configure,
    hold,
)
from shedlock_py.integrations.apscheduler import JobSkippedEvent, ShedLockExecutor
from tests.apscheduler import jobs
from tests.apscheduler.app import ENDS, SLOW_PROCESS, App, ProcessPool, Task, now, running, seconds, sqlite_locks
from tests.apscheduler.test_matrix import late_by_four
from tests.support.polling import wait_until

LOGGER = "apscheduler.executors.default"

both_kinds = pytest.mark.parametrize("kind", ["thread", "coroutine"])


@contextlib.contextmanager
def skipping(directory: Path, kind: str, **options: Any) -> Iterator[tuple[App, Any]]:
    """Yield an app, and the event of a job with a held lock."""
    with running(directory, kind, **options) as app:
        task = app.task()
        with hold(task.lock, lock_at_most_for="1m", provider=app.provider):
            event = app.run_once(task)
            app.settle()
            assert app.codes(task, *ENDS) == [event]
        assert task.runs == 0
        yield app, event


@both_kinds
def test_a_skip_is_logged_once_at_debug(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    with skipping(tmp_path, kind) as (_, event):
        [line] = [
            record for record in caplog.records if record.name == LOGGER and event.lock_name in record.getMessage()
        ]
        assert line.levelno == logging.DEBUG
        assert "skipped" in line.getMessage()
        assert "held" in line.getMessage()


@both_kinds
def test_a_provider_error_can_be_a_skip(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path, kind, on_provider_error="skip") as app:
        task = app.task()
        event = app.run_once(task, app.function("locked_by_nobody"))
        assert isinstance(event, JobSkippedEvent)
        assert (event.lock_name, event.reason) == (task.lock, "provider_error")
        assert task.runs == 0
    [line] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (line.name, "is skipped, as its store failed: " in line.getMessage()) == ("shedlock_py", True)


@both_kinds
def test_a_provider_error_of_the_job_itself_is_an_error(kind: str, tmp_path: Path) -> None:
    """Only a failure to lock the job is a skip. The job itself may use locks, and fail."""

    def function() -> None:
        raise ProviderUnreachable("mine", operation="acquire", lock_name="inner")

    async def function_async() -> None:
        function()

    with running(
        tmp_path, kind, on_provider_error="skip", locks={"fails": "outer"}, default_lock_at_most_for="1m"
    ) as app:
        task = app.task()
        task.id = "fails"
        event = app.run_once(task, function_async if kind == "coroutine" else function, args=())
        assert event.code == EVENT_JOB_ERROR
        assert str(event.exception) == "mine"


@both_kinds
def test_a_provider_error_is_logged_once(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path, kind) as app:
        task = app.task()
        app.add(task, app.function("locked_by_nobody"))
        app.wait(task, EVENT_JOB_ERROR)
    [line] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert line.name == LOGGER
    assert "was not run" in line.getMessage()
    assert line.exc_info is not None


def test_an_error_without_a_text_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    provider = InMemoryLockProvider()
    provider.acquire = Mock(side_effect=asyncio.CancelledError())  # type: ignore[method-assign]  # a double
    with running(tmp_path, provider=provider) as app:
        task = app.task()
        app.run_once(task)
    [line] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert line.getMessage().endswith("was not run: CancelledError")


@pytest.mark.parametrize("kind", ["thread", "asyncio", "coroutine", "debug"])
def test_apschedulers_log_lines_appear_once(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    with running(tmp_path, kind) as app:
        for function, args in (("locked", ("lock",)), ("unlocked", ())):
            task = app.task()
            app.add(task, app.function(function), args=(*args, task.log), name="logged-once")
            app.wait(task, EVENT_JOB_EXECUTED)
            app.add(task, app.function(function), args=(*args, task.log), name="logged-once", kwargs={"fail": "oh no"})
            app.wait(task, EVENT_JOB_ERROR)
            app.settle()
            lines = [record.getMessage() for record in caplog.records if "logged-once" in record.getMessage()]
            lines = [line for line in lines if "Job" in line or "Running" in line]
            starts = ["Running job", "Job", "Running job", "Job"]
            ends = ["", "executed successfully", "", "raised an exception"]
            assert len(lines) == 4, lines
            for line, start, end in zip(lines, starts, ends, strict=True):
                assert line.startswith(start)
                assert end in line
            caplog.clear()


def log_to(path: str) -> None:
    """Initializes a worker process."""
    logging.basicConfig(filename=path, level=logging.INFO, format="%(name)s %(message)s", force=True)


@pytest.mark.slow("starts a worker process with a new interpreter")
def test_apschedulers_log_lines_appear_once_in_worker_processes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    inner = ProcessPool(initializer=log_to, initargs=(str(log),))
    with sqlite_locks(tmp_path) as (url, provider):
        scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor(inner, url)}, timezone="UTC")
        app = App(scheduler, provider, tmp_path, "process")
        scheduler.start()
        try:
            task = app.task()
            app.add(task)
            app.wait(task, EVENT_JOB_EXECUTED)
        finally:
            scheduler.shutdown()
    assert [line.split()[:3] for line in log.read_text().splitlines() if line.startswith(LOGGER)] == [
        [LOGGER, "Running", "job"],
        [LOGGER, "Job", '"locked'],
    ]


@both_kinds
@pytest.mark.parametrize("fail", [None, "oh no"])
def test_the_librarys_own_events_show_how_the_job_ended(kind: str, fail: str | None, tmp_path: Path) -> None:
    recorded: list[Event] = []
    with running(tmp_path, kind) as app, configure(listeners=[recorded.append]):
        task = app.task()
        event = app.run_once(task, kwargs={"fail": fail})
        [finished] = [event for event in recorded if isinstance(event, TaskFinished)]
        assert finished.outcome == ("failed" if fail else "succeeded")
        assert finished.error is event.exception


def test_a_cancelled_coroutine_releases(tmp_path: Path) -> None:
    recorded: list[Event] = []
    with running(tmp_path, "coroutine") as app, configure(listeners=[recorded.append]):
        task = app.task()
        app.add(task, kwargs={"until": task.gate})
        wait_until(lambda: task.runs, what="the job began")
        app.scheduler.shutdown()
        [event] = app.wait(task, *ENDS)
        assert isinstance(event.exception, asyncio.CancelledError)
        assert not app.is_held(task)
        assert [event.outcome for event in recorded if isinstance(event, TaskFinished)] == ["cancelled"]


@pytest.mark.parametrize("kind", ["thread", SLOW_PROCESS, "debug", "asyncio"])
def test_a_coroutine_that_nobody_awaits_is_no_success(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, kind) as app:
        task = app.task()
        # The asyncio executor awaits coroutine functions, but not functions that return a coroutine.
        hidden = lambda lock, log: jobs.unlocked_async(log)  # noqa: E731 (no coroutine function)
        event = app.run_once(task, hidden if kind == "asyncio" else jobs.locked_async)
        assert event.code == EVENT_JOB_ERROR
        assert isinstance(event.exception, TypeError)
        assert "cannot await" in str(event.exception)
        assert task.runs == 0
    if kind != "process":  # its worker has a separate log
        assert len([record for record in caplog.records if "cannot await" in record.getMessage()]) == 1


@pytest.mark.not_quick("waits for real seconds")
def test_a_slow_store_does_not_turn_a_granted_run_into_a_misfire(tmp_path: Path) -> None:
    class SlowProvider(InMemoryLockProvider):
        def acquire(self, request: Any) -> Any:
            deadline = due + seconds(1.5)
            wait_until(lambda: now() > deadline, what="the grace time is over")
            return super().acquire(request)

    due = now()
    with running(tmp_path, provider=SlowProvider()) as app:
        task = app.task()
        event = app.run_once(task, None, "date", run_date=due, misfire_grace_time=1)
        assert event.code == EVENT_JOB_EXECUTED


@both_kinds
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, asyncio.CancelledError])
def test_each_run_time_has_its_event_whatever_the_job_raises(
    kind: str, error: type[BaseException], tmp_path: Path
) -> None:
    def fail() -> None:
        raise error("of the job")

    async def fail_async() -> None:
        fail()

    with running(tmp_path, kind, lock_all=True, default_lock_at_most_for="1m") as app:
        task = app.task()
        app.add(task, fail_async if kind == "coroutine" else fail, args=(), **late_by_four())
        events = app.wait(task, *ENDS, count=4)
        assert [(event.code, type(event.exception)) for event in events] == [(EVENT_JOB_ERROR, error)] * 4
        assert len({event.scheduled_run_time for event in events}) == 4
        assert not app.is_held(task)
        app.settle()


def test_submitting_sends_no_request(tmp_path: Path) -> None:
    """The scheduler then holds its own locks: a hanging store must not stop it."""
    task = Task(tmp_path)

    class HangingProvider(InMemoryLockProvider):
        def acquire(self, request: Any) -> Any:
            wait_until(Path(task.gate).exists, what="the gate")
            return super().acquire(request)

    with running(tmp_path, provider=HangingProvider()) as app:
        app.add(task)
        app.settle()  # other jobs run
        assert app.codes(task, *ENDS) == []
        task.open_gate()
        app.wait(task, EVENT_JOB_EXECUTED)
