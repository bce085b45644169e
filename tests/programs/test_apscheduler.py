"""docs/how-to/apscheduler.md: replicas with a scheduler each, and nodes with a shared job store."""

from __future__ import annotations

import signal
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import pytest

from shedlock_py import provider_from_url
from tests.programs.applications import (
    HUNG_JOB,
    LATE,
    OBSERVED,
    SECOND,
    Application,
    application,
    copied,
    once_each,
    set_drain,
)
from tests.support.database import DatabaseServer
from tests.support.polling import wait_until

COPIES = 2


@pytest.mark.parametrize(("script", "code"), [("replica.py", 143), ("asyncio_replica.py", 0)])
def test_as_many_runs_as_fire_times(script: str, code: int, tmp_path: Path) -> None:
    directory = copied("apscheduler", tmp_path, more=OBSERVED + LATE, program=script)
    with application(f"python {script}", directory, COPIES) as app:
        begin, end = app.watch(COPIES)
        assert app.ran(begin, end) == once_each(begin, end)
        assert app.terminate() == [code] * COPIES
        app.check_effects()


def test_a_plain_lock_is_free_again_before_the_other_replica_asks(tmp_path: Path) -> None:
    much = LATE.replace("0.08", "0.8")  # so that it is free again on a slow machine, too
    directory = copied("apscheduler", tmp_path, more=OBSERVED + much, program="replica.py")
    script = directory / "replica.py"
    executor = 'ShedLockExecutor("threadpool")'
    assert executor in script.read_text()
    script.write_text(script.read_text().replace(executor, 'ShedLockExecutor("threadpool", once_per_fire_time=False)'))
    with application("python replica.py", directory, COPIES) as app:
        begin, end = app.watch(COPIES)
        assert app.ran(begin, end).total() > once_each(begin, end).total()


def test_i14_a_job_longer_than_the_wait_does_not_keep_the_process(tmp_path: Path) -> None:
    directory = copied("apscheduler", tmp_path, more=HUNG_JOB, program="replica.py")
    set_drain(directory / "replica.py")
    with application("python replica.py", directory) as app:
        wait_until(lambda: "hung has begun" in app.log.read_text(), timeout=60, what="the job")
        assert app.terminate() == [143]
        assert "their leases are left to expire: hung (of " in app.log.read_text()
        assert len(app.lost("hung")) == 1


HUNG_COROUTINE = HUNG_JOB.replace("def hung", "async def hung").replace("_time.sleep", "await asyncio.sleep")


def test_i14_a_coroutine_job_longer_than_the_drain_is_cancelled(tmp_path: Path) -> None:
    directory = copied("apscheduler", tmp_path, more=HUNG_COROUTINE, program="asyncio_replica.py")
    set_drain(directory / "asyncio_replica.py")
    with application("python asyncio_replica.py", directory) as app:
        wait_until(lambda: "hung has begun" in app.log.read_text(), timeout=60, what="the job")
        assert app.terminate() == [0]
        assert len(app.lost("hung")) == 1
    record = provider_from_url(f"sqlite:///{directory}/locks.db").record("hung")
    assert record is not None
    assert not record.is_held


def test_without_locks_each_replica_runs_it(tmp_path: Path) -> None:
    directory = copied("apscheduler", tmp_path, more=OBSERVED, program="replica.py")
    with application("python replica.py", directory, COPIES, SHEDLOCK_ACTIVE="0") as app:
        begin, end = app.watch(COPIES)
        assert app.ran(begin, end) == once_each(begin, end, times=COPIES)


def last_run(app: Application) -> datetime:
    return max(run.fire_time for run in app.runs())


def test_a_job_store_that_two_nodes_share(tmp_path: Path) -> None:
    directory = copied("apscheduler", tmp_path, more=OBSERVED, program="leader.py")
    with application("python leader.py", directory, COPIES) as app:
        wait_until(lambda: app.log.read_text().count("started\n") == COPIES and app.runs(), timeout=30, what="a leader")
        begin = last_run(app) + 2 * SECOND
        wait_until(lambda: last_run(app) >= begin + SECOND, timeout=20, what="runs of the leader")
        (leader,) = {run.worker for run in app.runs()}
        first, second = sorted(app.processes, key=lambda process: process.pid != leader)
        first.send_signal(signal.SIGTERM)
        assert first.wait(20) == 143
        stopped = last_run(app)
        wait_until(lambda: last_run(app) >= stopped + 2 * SECOND, timeout=20, what="runs of the next leader")
        end = last_run(app)
        assert app.ran(begin, end) == once_each(begin, end)
        assert {run.worker for run in app.runs() if run.fire_time > stopped} == {second.pid}


def test_first_start_of_several_nodes_on_a_new_database(postgres_server: DatabaseServer, tmp_path: Path) -> None:
    directory, nodes = copied("apscheduler", tmp_path, more=OBSERVED, program="leader.py"), 4
    database = f"guide_{uuid4().hex[:8]}"
    postgres_server.create_database(database)
    url = postgres_server.url("postgresql+psycopg", database)
    try:
        with application("python leader.py", directory, nodes, DATABASE_URL=url) as app:
            wait_until(lambda: app.log.read_text().count("started\n") == nodes, timeout=60, what="all nodes")
            wait_until(app.runs, timeout=30, what="runs of the leader")
            assert [process.poll() for process in app.processes] == [None] * nodes
            assert app.terminate() == [143] * nodes
    finally:
        postgres_server.drop_database(database)


def test_the_asyncio_program_as_it_is_written_closes_its_provider(tmp_path: Path) -> None:
    """A connection that is left open may keep the process from ending, or warns of it."""
    directory = copied("apscheduler", tmp_path, more=OBSERVED, program="asyncio_replica.py")
    with application("python asyncio_replica.py", directory, COPIES, PYTHONDEVMODE="1") as app:
        begin, end = app.watch(COPIES)
        assert set(app.ran(begin, end)) == set(once_each(begin, end))
        assert app.terminate() == [0] * COPIES
        assert "deleted before being closed" not in app.log.read_text()
