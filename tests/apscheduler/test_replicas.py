"""Four processes with different clocks, one schedule, default options: as many runs as fire times."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED

from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED
from tests.apscheduler.app import now, seconds, sqlite_locks
from tests.apscheduler.replica import TENANTS
from tests.support.forked import Program
from tests.support.locks import opened
from tests.support.polling import wait_until

SKEWS = (0.0, 0.08, 0.16, 0.24)
"""Seconds by which each replica's clock is late."""


@contextmanager
def replica(url: str, skew: float, report: Path) -> Iterator[None]:
    command = ["-m", "tests.apscheduler.replica", url, str(skew)]
    with report.open("w") as out, Program(command, stdin=subprocess.PIPE, stdout=out) as process:
        try:
            yield
        finally:
            process.communicate(timeout=30)
    assert process.returncode == 0


class Report(NamedTuple):
    """One event of a job on one replica."""

    job: str
    code: int
    run_time: datetime
    reason: str


def reports(file: Path, *names: str) -> list[Report]:
    lines = [line.split() for line in file.read_text().splitlines() if line.count(" ") == 3]
    found = [Report(job, int(code), datetime.fromisoformat(run_time), reason) for job, code, run_time, reason in lines]
    return [each for each in found if each.job in names]


TEN = pytest.mark.slow("ten fire times, one each second")


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        with sqlite_locks(tmp_path) as (url, _):
            yield url
        return
    server = request.getfixturevalue(f"{request.param}_server")
    url = str(server.url() if request.param == "redis" else server.url("postgresql"))
    with opened(url) as provider:
        provider.create_schema()
    yield url


@pytest.mark.not_quick("starts the replicas")
@pytest.mark.parametrize(
    ("count", "url"),
    [(2, "sqlite"), *(pytest.param(10, store, marks=TEN) for store in ("sqlite", "postgres", "redis"))],
    indirect=["url"],
)
def test_i11_one_fire_time_one_run_and_no_tenant_is_left_out(count: int, url: str, tmp_path: Path) -> None:
    names = ("cron", "interval", *TENANTS)

    def have_passed(end: datetime) -> bool:
        """Whether each replica has reported a run of each job after the last fire time."""
        return all(reports(file, name)[-1].run_time >= end for file in files for name in names)

    files = [tmp_path / f"replica-{number}" for number in range(len(SKEWS))]
    with ExitStack() as replicas:
        for file, skew in zip(files, SKEWS, strict=True):
            replicas.enter_context(replica(url, skew, file))
        wait_until(lambda: all(reports(file, name) for file in files for name in names), timeout=30)
        begin = now().replace(microsecond=0) + seconds(1)
        end = begin + seconds(count)
        wait_until(lambda: have_passed(end), timeout=60, what="the fire times")

    fire_times = [begin + timedelta(seconds=number) for number in range(count)]
    for name in ("cron", "interval"):
        runs: Counter[datetime] = Counter()
        seen: Counter[datetime] = Counter()
        for each in (each for file in files for each in reports(file, name)):
            slot = each.run_time.replace(microsecond=0)  # a cron job's fire time, or an interval's slot
            if begin <= slot < end:
                assert each.code in (EVENT_JOB_EXECUTED, EVENT_JOB_SKIPPED)
                seen[slot] += 1
                runs[slot] += each.code == EVENT_JOB_EXECUTED
        assert runs == dict.fromkeys(fire_times, 1), name
        assert seen == dict.fromkeys(fire_times, len(SKEWS)), name

    tenants = [each for file in files for each in reports(file, *TENANTS)]
    assert {each.job for each in tenants if each.code == EVENT_JOB_EXECUTED} == set(TENANTS)
    assert {each.reason for each in tenants} <= {"-", "held"}  # another tenant's run never causes "already_ran"
