"""Four processes, one schedule: as many runs as fire times."""

import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED

from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.apscheduler.app import now, seconds
from tests.support.database import DatabaseServer
from tests.support.polling import wait_until

REPLICAS = 4
FIRE_TIMES = 10


@contextmanager
def replica(url: str, report: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.apscheduler.replica", url]
    with report.open("w") as out, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out) as process:
        try:
            yield
        finally:
            process.communicate(timeout=30)
    assert process.returncode == 0


def reports(file: Path, job: str) -> list[tuple[int, datetime]]:
    lines = [line.split() for line in file.read_text().splitlines()]
    return [(int(code), datetime.fromisoformat(time)) for name, code, time in lines if name == job]


def check(url: str, directory: Path) -> None:
    with closing(SqlAlchemyLockProvider(url)) as provider:
        provider.create_schema()
    files = [directory / f"replica-{number}" for number in range(REPLICAS)]
    with ExitStack() as replicas:
        for file in files:
            replicas.enter_context(replica(url, file))
        wait_until(lambda: all(reports(file, "cron") and reports(file, "interval") for file in files), timeout=30)
        begin = now().replace(microsecond=0) + seconds(1)
        end = begin + seconds(FIRE_TIMES)
        time.sleep((end + seconds(0.5) - now()).total_seconds())

    for job in ("cron", "interval"):
        runs: Counter[datetime] = Counter()
        seen: defaultdict[datetime, int] = defaultdict(int)
        for file in files:
            for code, run_time in reports(file, job):
                slot = run_time.replace(microsecond=0)  # the fire time of a cron job; the slot of an interval
                if begin <= slot < end:
                    assert code in (EVENT_JOB_EXECUTED, EVENT_JOB_SKIPPED)
                    seen[slot] += 1
                    runs[slot] += code == EVENT_JOB_EXECUTED
        fire_times = [begin + timedelta(seconds=number) for number in range(FIRE_TIMES)]
        assert {fire_time: runs[fire_time] for fire_time in fire_times} == dict.fromkeys(fire_times, 1), job
        assert {fire_time: seen[fire_time] for fire_time in fire_times} == dict.fromkeys(fire_times, REPLICAS), job


def test_i11_one_fire_time_one_run_on_sqlite(tmp_path: Path) -> None:
    check(f"sqlite:///{tmp_path}/locks.db", tmp_path)


def test_i11_one_fire_time_one_run_on_postgresql(
    postgres_server: DatabaseServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = "apscheduler_replicas"
    postgres_server.create_database(database)
    request.addfinalizer(lambda: postgres_server.drop_database(database))
    check(postgres_server.url("postgresql+psycopg", database), tmp_path)
