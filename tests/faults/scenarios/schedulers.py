"""A scheduler that works on the leader only. Its job store fails when a job is updated, or its thread dies."""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import MetaData, NullPool, Table, create_engine, make_url, text

from shedlock_py import LeaderElector
from shedlock_py.integrations.apscheduler import lead
from tests.faults.checker import Finding, Report
from tests.faults.registry import by_trial, scenario
from tests.support.polling import let_pass, wait_until
from tests.support.stores import Store

DURATIONS: dict[str, Any] = {"lease_duration": "10s", "renew_deadline": "8s", "retry_period": "200ms"}
STEP = 0.25
"""Seconds between two fire times."""
JOBS = ("one", "other")
TIMEOUT = 30.0
FAILED = "could not be updated"


def work() -> None: ...


class JobStore(SQLAlchemyJobStore):  # type: ignore[misc]  # APScheduler has no types
    """Can end the thread of its scheduler."""

    ends_its_thread = False

    def get_due_jobs(self, now: Any) -> Any:
        if self.ends_its_thread:
            raise SystemExit("of a fault scenario")
        return super().get_due_jobs(now)


class Node:
    def __init__(self, holder: str, store: Store, url: str, table: str) -> None:
        # Shorter than SQLAlchemy's and SQLite's own limit of 5 s, to keep the scenario short.
        arguments = {"timeout": 0.2} if url.startswith("sqlite") else {}
        engine = create_engine(url, poolclass=NullPool, connect_args=arguments)
        self.jobs = JobStore(engine=engine, tablename=table)
        self.provider = store.open()
        self.elector = LeaderElector(self.provider, f"scheduler-{table}", holder=holder, **DURATIONS)
        self.scheduler = BackgroundScheduler(
            jobstores={"default": self.jobs},
            job_defaults={"misfire_grace_time": None, "coalesce": False, "max_instances": 100},
            timezone="UTC",
        )
        self.runs: list[Any] = []
        self.scheduler.add_listener(self.runs.append, EVENT_JOB_EXECUTED)
        self.lead = lead(self.scheduler, self.elector)

    def stop(self) -> None:
        self.lead.stop()
        self.provider.close()


@scenario(15, "job store fails under a leader", stores=("sqlite", "postgres"), kinds=("sync",), least=2)
@by_trial
def job_store_fails(store: Store, seed: int, number: int) -> Report:
    """The leader goes on, and runs each fire time once. If its scheduler dies, the next leader goes on."""
    report, choice = Report(trials=1), random.Random(seed)
    table = f"jobs_{uuid4().hex[:8]}"
    url = _url(store)
    with ExitStack() as stack:
        failures = stack.enter_context(_failures())
        stack.callback(_drop, url, table)
        nodes = [Node(holder, store, url, table) for holder in ("first", "second")]
        for node in nodes:
            stack.callback(node.stop)
            node.lead.start()
        wait_until(lambda: any(node.elector.is_leader() for node in nodes), timeout=TIMEOUT, what="a leader")
        leader, follower = sorted(nodes, key=lambda node: not node.elector.is_leader())
        for job in JOBS:
            follower.scheduler.add_job(work, "interval", seconds=STEP, id=job)
        _wait_for_runs(nodes, 4)
        for _ in range(2):
            before = len(failures)
            with _broken(store, url, table):
                wait_until(lambda before=before: len(failures) > before + 2, timeout=TIMEOUT, what="errors")  # type: ignore[misc]  # a default binds it now
                let_pass(choice.uniform(0, 2 * STEP))
            _wait_for_runs(nodes, 8)
        report.counts["update failed"] += len(failures)
        if leader.elector.is_leader():  # otherwise a busy machine has kept it from renewing
            leader.jobs.ends_its_thread = True
            died = time.monotonic()
            wait_until(follower.elector.is_leader, timeout=TIMEOUT, what="another leader after the thread died")
            report.takeovers.append(time.monotonic() - died)
            report.counts["thread died"] += 1
        _wait_for_runs(nodes, 8)
    report.findings += [finding for job in JOBS for finding in _judge(job, nodes)]
    report.counts["run"] += sum(len(node.runs) for node in nodes)
    return report


def _wait_for_runs(nodes: list[Node], more: int) -> None:
    begin = sum(len(node.runs) for node in nodes)
    wait_until(lambda: sum(len(node.runs) for node in nodes) >= begin + more, timeout=TIMEOUT, what="runs")


def _judge(job: str, nodes: list[Node]) -> Iterator[Finding]:
    times = Counter(event.scheduled_run_time for node in nodes for event in node.runs if event.job_id == job)
    first, step = min(times), timedelta(seconds=STEP)
    due = {first + step * number for number in range(round((max(times) - first) / step))}
    for moment in sorted(due | set(times)):
        if times[moment] != 1:
            yield Finding("fire time", job, f"{moment} ran {times[moment]} times", moment.timestamp())


# The faults


@contextmanager
def _broken(store: Store, url: str, table: str) -> Iterator[None]:
    """While the block runs, jobs can be read, but not updated."""
    if store.name == "sqlite":
        with closing(sqlite3.connect(make_url(url).database or "", isolation_level=None, timeout=TIMEOUT)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.rollback()
        return
    waiting = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE :words"
    )
    is_over = threading.Event()
    engine = create_engine(url, poolclass=NullPool)

    def terminate() -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as admin:
            while not is_over.wait(0.01):
                admin.execute(text(waiting), {"words": f"UPDATE {table} %"})

    thread = threading.Thread(target=terminate)
    with engine.begin() as locker:
        locker.execute(text(f"LOCK TABLE {table} IN SHARE MODE"))
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


@contextmanager
def _failures() -> Iterator[list[str]]:
    """Yield the errors of the job store that ``lead`` logs, and keep them off the page of ``make faults``."""
    seen: list[str] = []
    logger = logging.getLogger("shedlock_py")

    def note(record: logging.LogRecord) -> bool:
        if FAILED in record.getMessage():
            seen.append(record.getMessage())
            return False
        return True

    logger.addFilter(note)
    try:
        yield seen
    finally:
        logger.removeFilter(note)


def _url(store: Store) -> str:
    """Return the URL of the jobs: a separate file, or a table beside the locks."""
    url = str(store.sync().where(()))
    return url.replace("locks.db", "jobs.db") if store.name == "sqlite" else url


def _drop(url: str, table: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        Table(table, MetaData()).drop(connection, checkfirst=True)
