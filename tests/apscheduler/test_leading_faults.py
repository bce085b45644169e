"""A leader with a failing job store, or with a scheduler that has ended or stands still."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from apscheduler.events import EVENT_JOB_SUBMITTED
from apscheduler.executors.debug import DebugExecutor
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.blocking import BlockingScheduler
from sqlalchemy import NullPool, text

from shedlock_py import ConfigurationError, LeaderElector
from shedlock_py.integrations.apscheduler import lead
from tests.apscheduler.nodes import DURATIONS, LONG, Node, sql_job_store
from tests.support import tiers
from tests.support.database import DatabaseServer
from tests.support.doubles import FaultyProvider
from tests.support.logs import records_of, warnings_of
from tests.support.polling import wait_until


def work() -> None: ...


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def begun(stack: ExitStack, *nodes: Node) -> None:
    for node in nodes:
        node.lead.start()
        stack.callback(node.lead.stop)


def assert_each_second_once(times: list[Any], step: float) -> None:
    assert max(Counter(times).values()) == 1, "a fire time ran twice"
    found = sorted(times)
    assert found == [found[0] + timedelta(seconds=step) * number for number in range(len(found))], "one was lost"


def survives(node: Node, break_the_store: Callable[[], Callable[[], None]], caplog: Any) -> None:
    """The store fails to update a job's next run time, but each fire time still runs once."""
    scheduler = node.scheduler
    scheduler.add_job(work, "interval", seconds=0.2, id="job")
    scheduler.add_job(work, "interval", seconds=0.2, id="other")
    wait_until(lambda: len(node.times()) > 2, what="runs")
    mend = break_the_store()
    wait_until(lambda: "could not be updated" in caplog.text, timeout=20, what="the error was logged")
    seen = caplog.text.count("could not be updated")
    wait_until(lambda: caplog.text.count("could not be updated") > seen, timeout=20, what="the next pass")
    assert node.elector.is_leader()
    mend()
    runs = len(node.times())
    wait_until(lambda: len(node.times()) > runs + 10, timeout=20, what="runs after it")
    node.lead.stop()
    for job in ("job", "other"):
        assert_each_second_once(node.times(job), 0.2)


@pytest.mark.not_quick("waits for timeouts of SQLite")
def test_a_sqlite_file_that_another_connection_has_locked(
    store: FaultyProvider, stack: ExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node("me", store, sql_job_store(f"sqlite:///{tmp_path}/jobs.db", timeout=0.1))
    begun(stack, node)
    other = stack.enter_context(closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)))

    def lock() -> Callable[[], None]:
        def try_to_lock() -> bool:
            try:
                other.execute("BEGIN IMMEDIATE")  # others may read, but not write
            except sqlite3.OperationalError:
                return False
            return True

        wait_until(try_to_lock, what="the lock of the file")
        return lambda: other.rollback()

    survives(node, lock, caplog)


@pytest.mark.slow("a server that ends many sessions; a locked SQLite file shows the same pass")
def test_a_session_that_postgres_has_terminated(
    store: FaultyProvider, stack: ExitStack, postgres_server: DatabaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    table = f"jobs_{uuid4().hex[:8]}"
    node = Node("me", store, SQLAlchemyJobStore(postgres_server.url("postgresql+psycopg"), tablename=table))
    begun(stack, node)
    admin = stack.enter_context(postgres_server.connect())

    def terminate() -> Callable[[], None]:
        waiting = f"SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{table}%'"
        is_over = threading.Event()
        locker = stack.enter_context(postgres_server.connect()).execution_options(isolation_level="READ COMMITTED")
        locker.execute(text(f"LOCK TABLE {table} IN SHARE MODE"))  # others may read, but wait to write

        def go_on() -> None:
            while not is_over.is_set():
                admin.execute(text(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS waiting"))
                is_over.wait(0.01)

        thread = threading.Thread(target=go_on)
        thread.start()

        def mend() -> None:
            is_over.set()
            thread.join()
            locker.rollback()

        return mend

    survives(node, terminate, caplog)
    admin.execute(text(f"DROP TABLE {table}"))


@pytest.mark.not_quick("waits for real seconds")
def test_what_is_due_when_the_leadership_ends_in_a_pass_is_left_to_the_next_leader(
    store: FaultyProvider, stack: ExitStack, tmp_path: Path
) -> None:
    """The scheduler has read the due jobs, but has not submitted them. The job store keeps them."""
    passes: list[list[Any]] = []
    """The due jobs from each pass."""
    submitted_in: list[int] = []
    resigned_in: list[int] = []

    class Watched(ThreadPoolExecutor):
        def submit_job(self, job: Any, run_times: Any) -> None:
            submitted_in.append(len(passes))
            super().submit_job(job, run_times)

    class Resigning(SQLAlchemyJobStore):
        def get_due_jobs(self, now: Any) -> Any:
            due = super().get_due_jobs(now)
            passes.append([(job.id, job.next_run_time) for job in due])
            if len(due) == 2 and not resigned_in:
                resigned_in.append(len(passes))
                node.elector.resign()
            return due

    engine_options = {"poolclass": NullPool}
    node = Node("me", store, Resigning(f"sqlite:///{tmp_path}/jobs.db", engine_options=engine_options))
    node.scheduler.add_executor(Watched())
    first = datetime.now(UTC) + timedelta(seconds=0.5)
    for job in ("job", "other"):
        node.scheduler.add_job(work, "interval", seconds=0.2, id=job, next_run_time=first)
    begun(stack, node)
    wait_until(lambda: len(node.times("job")) > 3 and len(node.times("other")) > 3, what="runs when it leads again")
    node.lead.stop()
    assert resigned_in, "a pass read both jobs"
    assert resigned_in[0] not in submitted_in
    for job, due in passes[resigned_in[0] - 1]:
        assert due in node.times(job)
        assert_each_second_once(node.times(job), 0.2)


def test_a_store_that_cannot_name_its_next_run_time_stops_no_other(
    store: FaultyProvider, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Listeners still get the events of jobs that were submitted before the failure."""

    class Failing(MemoryJobStore):
        def get_next_run_time(self) -> Any:
            raise OSError("the connection was lost")

    node = Node("me", store, Failing())
    node.scheduler.add_jobstore(MemoryJobStore(), "other")
    node.scheduler.add_job(work, "interval", seconds=0.2, id="job")
    node.scheduler.add_job(work, "interval", seconds=0.2, id="other", jobstore="other")
    begun(stack, node)
    wait_until(lambda: len(node.times()) > 2 and len(node.times("other")) > 2, what="runs of both stores")
    assert "the connection was lost" in caplog.text
    assert node.elector.is_leader()
    node.lead.stop()
    submitted = Counter(
        (event.job_id, time)
        for event in node.events
        if event.code == EVENT_JOB_SUBMITTED
        for time in event.scheduled_run_times
    )
    for job in ("job", "other"):
        assert_each_second_once(node.times(job), 0.2)
        assert {(job, time): 1 for time in node.times(job)}.items() <= submitted.items()


def test_a_store_that_cannot_name_its_next_run_time_is_read_again_soon(store: FaultyProvider, stack: ExitStack) -> None:
    """It must not wait until another store's next job is due."""

    class Failing(MemoryJobStore):
        failures = 0

        def get_next_run_time(self) -> Any:
            if self.failures < 2:
                self.failures += 1
                raise OSError("the connection was lost")
            return super().get_next_run_time()

    rare_renewals = {"lease_duration": "1h", "renew_deadline": "50m", "retry_period": "20m"}  # each wakes the scheduler
    node = Node("me", store, Failing(), durations=rare_renewals)
    node.scheduler.jobstore_retry_interval = 0.05
    node.scheduler.add_jobstore(MemoryJobStore(), "other")
    node.scheduler.add_job(work, "date", run_date=datetime.now(UTC) + timedelta(seconds=0.5), id="job")
    node.scheduler.add_job(work, "interval", hours=1, id="other", jobstore="other")
    begun(stack, node)
    wait_until(lambda: node.times(), what="the run of the store that failed")


@pytest.mark.parametrize("trigger", [{"trigger": "date"}, {"trigger": "interval", "seconds": 0.2}])
def test_a_job_that_another_node_has_just_removed_is_no_error(
    store: FaultyProvider, stack: ExitStack, trigger: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Shared(MemoryJobStore):
        """Another node removes each job as soon as it is submitted."""

        def update_job(self, job: Any) -> None:
            super().remove_job(job.id)
            raise JobLookupError(job.id)

        def remove_job(self, job_id: str) -> None:
            super().remove_job(job_id)
            raise JobLookupError(job_id)

    node = Node("me", store, Shared())
    node.scheduler.add_job(work, id="job", **trigger)
    begun(stack, node)
    wait_until(lambda: node.times() and not node.scheduler.get_jobs(), what="the run, and the end of the job")
    node.lead.stop()
    assert len(node.times()) == 1
    assert warnings_of(caplog) + warnings_of(caplog, logger="apscheduler") == []


def test_an_error_of_a_job_that_uses_the_scheduler_is_its_own(store: FaultyProvider, stack: ExitStack) -> None:
    """A DebugExecutor runs the job inside a pass, which would log the job's errors as its own."""
    node = Node("me", store, MemoryJobStore())
    node.scheduler.add_executor(DebugExecutor())
    errors: list[Exception] = []

    def remove_another() -> None:
        try:
            node.scheduler.remove_job("nothing", jobstore="default")
        except JobLookupError as error:
            errors.append(error)

    node.scheduler.add_job(remove_another, "date", id="job")
    begun(stack, node)
    wait_until(lambda: errors, what="its error")
    wait_until(lambda: not node.scheduler.get_jobs(), what="the job is over, and gone")
    assert node.elector.is_leader()


class Dying(MemoryJobStore):
    """End the scheduler's thread with ``error``."""

    error: BaseException | None = None

    def get_due_jobs(self, now: Any) -> Any:
        if self.error is not None:
            raise self.error
        return super().get_due_jobs(now)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("scheduler", [BackgroundScheduler, BlockingScheduler])
def test_a_leader_whose_scheduler_thread_dies_leads_no_more(
    store: FaultyProvider, stack: ExitStack, caplog: pytest.LogCaptureFixture, scheduler: type[Any]
) -> None:
    jobs = Dying()
    first, second = Node("first", store, jobs, scheduler), Node("second", store, MemoryJobStore())
    thread = threading.Thread(target=first.lead.start, daemon=True)
    thread.start()
    stack.callback(first.lead.stop)
    wait_until(first.elector.is_leader, what="the first leads")
    begun(stack, second)
    first.scheduler.add_job(work, "interval", seconds=0.05, id="job")
    second.scheduler.add_job(work, "interval", seconds=0.05, id="job")
    wait_until(lambda: first.times(), what="it works")
    jobs.error = SystemExit("in the thread of the scheduler")
    wait_until(second.elector.is_leader, what="the second leads")
    wait_until(lambda: second.times(), what="the second works")
    assert not first.elector.is_leader()
    assert first.elector.wait_until_leader() is False, "it takes no part any more"
    assert "scheduler" in caplog.text
    assert [record.levelno for record in records_of(caplog, "SystemExit")] == [logging.ERROR]
    thread.join(10)


def test_a_leader_whose_scheduler_was_shut_down_leads_no_more(store: FaultyProvider, stack: ExitStack) -> None:
    first, second = (Node(holder, store, MemoryJobStore()) for holder in ("first", "second"))
    begun(stack, first)
    wait_until(lambda: first.scheduler.state == 1, what="the first works")
    begun(stack, second)
    first.scheduler.shutdown()
    wait_until(second.elector.is_leader, what="the second leads")
    assert first.elector.wait_until_leader() is False, "it takes no part any more"


@pytest.mark.slow("waits for a leader that stands still")
def test_a_leader_whose_scheduler_stands_still_resigns_and_may_lead_again(
    store: FaultyProvider, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler's event loop has ended or is blocked, but the elector has a thread."""
    loop = asyncio.new_event_loop()
    first = Node("first", store, MemoryJobStore(), AsyncIOScheduler)

    async def start() -> None:
        first.lead.start()

    loop.run_until_complete(start())
    loop.run_until_complete(asyncio.sleep(0))
    assert first.elector.wait_until_leader("10s")
    second = Node("second", store, MemoryJobStore())
    begun(stack, second)
    wait_until(second.elector.is_leader, what="the second leads")
    assert "has not reacted" in caplog.text
    second.lead.stop()

    async def lead_again() -> None:
        first.scheduler.add_job(work, "interval", seconds=0.05, id="job")
        async with asyncio.timeout(20):
            while not first.times():  # noqa: ASYNC110 (a test)
                await asyncio.sleep(0.01)
        await asyncio.to_thread(first.lead.stop)  # it waits for jobs, which end on this loop
        await asyncio.sleep(0)

    loop.run_until_complete(lead_again())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_sys_exit_under_a_blocking_scheduler_is_no_error_and_leaves_no_leader(
    store: FaultyProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """A SIGTERM handler raises it in the main thread."""
    jobs = Dying()
    node = Node("me", store, jobs, BlockingScheduler, durations=LONG)
    jobs.error = SystemExit(143)
    with pytest.raises(SystemExit):
        node.lead.start()
    assert node.provider.calls["release"] == 1, "start() waits for the release"
    assert node.elector.wait_until_leader() is False
    assert warnings_of(caplog) + warnings_of(caplog, logger="apscheduler") == []
    node.lead.stop()


class Unready(MemoryJobStore):
    """Fail to start, as if another node were creating its table at the same moment."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.starts = 0

    def start(self, scheduler: Any, alias: Any) -> None:
        super().start(scheduler, alias)
        self.starts += 1
        if self.starts <= self.failures:
            raise OSError("the table was not there, and is")


def test_a_job_store_that_cannot_start_leaves_no_leader(store: FaultyProvider) -> None:
    node = Node("me", store, Unready(100))
    with pytest.raises(OSError, match="the table"):
        node.lead.start()
    assert node.elector.wait_until_leader("10s") is False, "it takes no part"


def test_a_job_store_is_started_again_if_its_first_start_fails(store: FaultyProvider, stack: ExitStack) -> None:
    jobs = Unready(1)
    begun(stack, Node("me", store, jobs))
    assert jobs.starts == 2


def test_first_start_of_many_nodes_on_a_new_database(
    postgres_server: DatabaseServer, store: FaultyProvider, stack: ExitStack
) -> None:
    """CREATE TABLE IF NOT EXISTS and the check before it fail if several nodes create the table at once."""
    for _ in range(3 if tiers.runs("all") else 1):
        table = f"jobs_{uuid4().hex[:8]}"
        url = postgres_server.url("postgresql+psycopg")
        nodes = [Node(f"node-{n}", store, SQLAlchemyJobStore(url, tablename=table)) for n in range(8)]
        together = threading.Barrier(len(nodes))
        failures: list[BaseException] = []

        def start(node: Node, together: threading.Barrier = together, failures: Any = failures) -> None:
            node.scheduler.add_job(work, "cron", hour=2, id="job", replace_existing=True)
            together.wait(10)
            try:
                node.lead.start()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=start, args=(node,)) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for node in nodes:
            node.lead.stop()
        with postgres_server.connect() as admin:
            admin.execute(text(f"DROP TABLE {table}"))
        assert failures == []


def test_a_wrapper_of_a_scheduler_is_refused(store: FaultyProvider) -> None:
    """For example flask_apscheduler.APScheduler."""
    elector = LeaderElector(store, "scheduler", **DURATIONS)
    wrapper = SimpleNamespace(scheduler=BackgroundScheduler(timezone="UTC"), running=False, state=0)
    with pytest.raises(ConfigurationError, match=r"SimpleNamespace is not a scheduler, but has one: .*\.scheduler"):
        lead(wrapper, elector)
    with pytest.raises(ConfigurationError, match="object is not a scheduler of APScheduler 3"):
        lead(object(), elector)
