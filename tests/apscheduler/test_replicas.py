"""Three processes, one schedule: as many runs as fire times."""

import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED

from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED
from tests.apscheduler.app import now, seconds, sqlite_locks
from tests.support.forked import Program
from tests.support.polling import wait_until

REPLICAS = 3


@contextmanager
def replica(url: str, report: Path) -> Iterator[None]:
    command = ["-m", "tests.apscheduler.replica", url]
    with report.open("w") as out, Program(command, stdin=subprocess.PIPE, stdout=out) as process:
        try:
            yield
        finally:
            process.communicate(timeout=30)
    assert process.returncode == 0


def reports(file: Path, job: str) -> list[tuple[int, datetime]]:
    lines = [line.split() for line in file.read_text().splitlines()]
    return [(int(code), datetime.fromisoformat(time)) for name, code, time in lines if name == job]


@pytest.mark.not_quick("starts the replicas")
@pytest.mark.parametrize("count", [2, pytest.param(10, marks=pytest.mark.slow("ten fire times, one each second"))])
def test_i11_one_fire_time_one_run(count: int, tmp_path: Path) -> None:
    def have_passed(end: datetime) -> bool:
        """Whether each replica has reported a run of each job that was due after the last fire time."""
        return all(reports(file, job)[-1][1] >= end for file in files for job in ("cron", "interval"))

    files = [tmp_path / f"replica-{number}" for number in range(REPLICAS)]
    with sqlite_locks(tmp_path) as (url, _), ExitStack() as replicas:
        for file in files:
            replicas.enter_context(replica(url, file))
        wait_until(lambda: all(reports(file, "cron") and reports(file, "interval") for file in files), timeout=30)
        begin = now().replace(microsecond=0) + seconds(1)
        end = begin + seconds(count)
        wait_until(lambda: have_passed(end), timeout=60, what="the fire times")

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
        fire_times = [begin + timedelta(seconds=number) for number in range(count)]
        assert {fire_time: runs[fire_time] for fire_time in fire_times} == dict.fromkeys(fire_times, 1), job
        assert {fire_time: seen[fire_time] for fire_time in fire_times} == dict.fromkeys(fire_times, REPLICAS), job
