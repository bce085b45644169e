"""docs/how-to/apscheduler.md: replicas with a scheduler each, and nodes that share a job store."""

from __future__ import annotations

import signal
from datetime import datetime
from pathlib import Path

import pytest
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore

from tests.how_to.fleet import LATE, LATE_ASYNC, SECOND, Application, application, copied, once_each
from tests.services.polling import wait_until

COPIES = 2


@pytest.mark.parametrize(("script", "late", "code"), [("replica.py", LATE, 143), ("asyncio_replica.py", LATE_ASYNC, 0)])
def test_as_many_runs_as_fire_times(script: str, late: str, code: int, tmp_path: Path) -> None:
    directory = copied("apscheduler", tmp_path, more=late, program=script)
    with application(f"python {script}", directory, COPIES) as app:
        begin, end = app.watch(COPIES)
        assert app.ran(begin, end) == once_each(begin, end)
        assert app.terminate() == [code] * COPIES


def test_a_plain_lock_is_free_again_before_the_other_replica_asks(tmp_path: Path) -> None:
    much = LATE.replace("0.08", "0.8")  # so that it is free again on a slow machine, too
    directory = copied("apscheduler", tmp_path, more=much, program="replica.py")
    script = directory / "replica.py"
    assert ", once_per_fire_time=True" in script.read_text()
    script.write_text(script.read_text().replace(", once_per_fire_time=True", ""))
    with application("python replica.py", directory, COPIES) as app:
        begin, end = app.watch(COPIES)
        assert app.ran(begin, end).total() > once_each(begin, end).total()


def test_without_locks_each_replica_runs_it(tmp_path: Path) -> None:
    directory = copied("apscheduler", tmp_path)
    with application("python replica.py", directory, COPIES, SHEDLOCK_ACTIVE="0") as app:
        begin, end = app.watch(COPIES)
        assert app.ran(begin, end) == once_each(begin, end, times=COPIES)


def last_run(app: Application) -> datetime:
    return max(run.fire_time for run in app.runs())


def test_a_job_store_that_two_nodes_share(tmp_path: Path) -> None:
    directory = copied("apscheduler", tmp_path)
    # Two nodes that make APScheduler's table at the same moment get in each other's way.
    SQLAlchemyJobStore(f"sqlite:///{directory / 'app.db'}").start(None, "default")
    with application("python leader.py", directory, COPIES) as app:
        wait_until(lambda: app.log.read_text().count("started") == COPIES and app.runs(), timeout=30, what="a leader")
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
