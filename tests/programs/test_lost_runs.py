"""Real processes in situations where schedulers lose runs: each fire time runs, or a WARNING gives the reason.

test_deploys.py has another such situation, a rolling deploy.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py.testing.proxy import TcpProxy
from tests.support.forked import Program
from tests.support.locks import opened
from tests.support.polling import let_pass, wait_until

STORES = ("sqlite", "postgres", "redis")


class App:
    """Replicas with one job, their store, and a switch that makes the store unreachable."""

    def __init__(self, url: str, outage: Callable[[], AbstractContextManager[object]], folder: Path) -> None:
        self.url, self.outage = url, outage
        self.lock_name = f"job-{uuid4().hex[:8]}"
        self.report = folder / "report"
        self.report.touch()
        self._folder = folder
        self._logs: list[Path] = []
        self._logs_of: dict[int, Path] = {}
        self._stack = ExitStack()
        self.provider: Any = self._stack.enter_context(opened(url))
        self.provider.create_schema()

    def start(self, count: int = 1, *, work: float = 0.0, **options: Any) -> list[Program]:
        """Start replicas, and wait until they have imported everything; :meth:`schedule` gives them their job.

        :param options: ``lock`` and ``executor``: options of the decorator and of the executor.
        """
        started = []
        for _ in range(count):
            log = self._folder / f"log-{len(self._logs)}"
            self._logs.append(log)
            config: dict[str, Any] = {
                "url": self.url,
                "name": self.lock_name,
                "report": str(self.report),
                "ready": str(_ready(log)),
            }
            config |= {"work": work, "lock": {}, "executor": {}, **options}
            command = ["-m", "tests.programs.replica_with_a_job", json.dumps(config)]
            with log.open("w") as errors:
                started.append(Program(command, stdin=subprocess.PIPE, stderr=errors))
            self._logs_of[started[-1].pid] = log
            self._stack.callback(self.kill, started[-1])
        logs = self._logs[-count:]
        wait_until(lambda: all(_ready(log).exists() for log in logs), timeout=60, what="replicas that wait for a job")
        return started

    def schedule(self, replicas: list[Program], **job: Any) -> None:
        """Make the replicas start their schedulers, with this job."""
        for replica in replicas:
            assert replica.stdin is not None
            replica.stdin.write(f"{json.dumps(job)}\n")
            replica.stdin.flush()
        logs = [self._logs_of[replica.pid] for replica in replicas]
        wait_until(lambda: not any(_ready(log).exists() for log in logs), timeout=60, what="their schedulers")

    def stop(self, program: Program) -> None:
        if program.poll() is None:
            program.communicate(timeout=60)

    def kill(self, program: Program) -> None:
        if program.poll() is None:
            program.kill()
        program.communicate(timeout=60)

    def times(self, what: str) -> Counter[datetime]:
        """Return how often each fire time was begun, or ended."""
        lines = [line.split() for line in self.report.read_text().splitlines()]
        return Counter(datetime.fromisoformat(fire_time) for word, fire_time in lines if word == what)

    def warnings(self) -> list[str]:
        lines = [line for log in self._logs for line in log.read_text().splitlines()]
        return [line for line in lines if line.startswith("WARNING")]

    def close(self) -> None:
        self._stack.close()


def _ready(log: Path) -> Path:
    return log.with_name(f"{log.name}.ready")


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    with ExitStack() as stack:
        if request.param == "sqlite":
            file = tmp_path / "locks.db"

            @contextmanager
            def locked() -> Iterator[None]:
                with closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as other:
                    other.execute("BEGIN EXCLUSIVE")
                    yield

            app = App(f"sqlite:///{file}?timeout=1s", locked, tmp_path)
        else:
            server = request.getfixturevalue(f"{request.param}_server")
            proxy = stack.enter_context(TcpProxy(server.address))
            url = str(
                server.url(via=proxy.address)
                if request.param == "redis"
                else server.url("postgresql", via=proxy.address)
            )

            @contextmanager
            def refused() -> Iterator[None]:
                proxy.refuse()
                yield
                proxy.accept()

            app = App(f"{url}{'&' if '?' in url else '?'}timeout=1s", refused, tmp_path)
        stack.callback(app.close)
        yield app


def now() -> datetime:
    return datetime.now(UTC)


def until(moment: datetime) -> None:
    let_pass(max(0.0, (moment - now()).total_seconds()))


def soon(seconds: float = 4.0) -> datetime:
    """Return a full second in the first 50 s of a minute. Running replicas can still get a job for it."""
    moment = (now() + timedelta(seconds=seconds)).replace(microsecond=0)
    return moment if moment.second < 50 else moment.replace(second=0) + timedelta(minutes=1)


def daily(moment: datetime, *more: datetime) -> dict[str, Any]:
    """:param more: further moments of the same minute."""
    seconds = ",".join(str(each.second) for each in (moment, *more))
    return {"trigger": "cron", "hour": moment.hour, "minute": moment.minute, "second": seconds}


def test_i14_the_store_is_away_over_the_fire_time(app: App) -> None:
    replicas = app.start(3)
    due = soon()
    app.schedule(replicas, **daily(due), misfire_grace_time=30)
    until(due - timedelta(seconds=1))
    with app.outage():
        until(due + timedelta(seconds=3))
    wait_until(lambda: app.times("end"), timeout=60, what="the late run")
    until(due + timedelta(seconds=8))  # leave time for surplus runs
    assert app.times("end") == {due: 1}
    assert any("is tried again until" in each for each in app.warnings())
    assert any("it runs now" in each for each in app.warnings())


def test_i14_the_holder_dies_in_mid_run(app: App) -> None:
    lock = {"lock_at_most_for": "3s", "keep_alive": True, "recover": True}
    replicas = {each.pid: each for each in app.start(3, work=4, lock=lock)}
    due = soon()
    app.schedule([*replicas.values()], **daily(due))
    wait_until(lambda: app.times("begin"), timeout=30, what="the run begins")
    record = app.provider.record(app.lock_name)
    app.kill(replicas[int(record.holder.rpartition(":")[2])])
    wait_until(lambda: app.times("end"), timeout=60, what="another replica runs it")
    assert app.times("begin") == {due: 2}
    assert app.times("end") == {due: 1}
    text = f"{due.isoformat()} by {record.holder} never ended, so it runs here again"
    assert len([each for each in app.warnings() if text in each]) == 1


def test_i14_a_job_that_hangs_does_not_stop_the_next_run(app: App) -> None:
    replicas = app.start(2, work=60, lock={"lock_at_most_for": "1s", "keep_alive": "2s"})
    first = soon()
    second = first + timedelta(seconds=8)
    app.schedule(replicas, **daily(first, second), max_instances=2)
    wait_until(lambda: len(app.times("begin")) == 2, timeout=60, what="the next run begins")
    assert app.times("begin") == {first: 1, second: 1}
    assert any("was lost" in each for each in app.warnings())


def test_i14_an_interval_is_longer_than_the_time_between_restarts(app: App) -> None:
    ends = now() + timedelta(seconds=60)
    while len(app.times("end")) < 3 and now() < ends:
        replicas = app.start(2, executor={"catch_up": "1m"})
        app.schedule(replicas, trigger="interval", seconds=4)
        let_pass(3)
        for replica in replicas:
            app.stop(replica)
    ran = app.times("end")
    assert set(ran.values()) == {1}
    assert len(ran) >= 3


def test_a_paused_fire_time_is_not_caught_up(app: App) -> None:
    before = app.start(2)
    app.schedule(before, trigger="cron", second="*")
    wait_until(lambda: app.times("end"), timeout=30, what="a run before the pause")
    for replica in before:
        app.stop(replica)
    app.provider.pause(app.lock_name, "1h", wait="10s")
    replicas, later = app.start(2, executor={"catch_up": "1m"}), app.start(2, executor={"catch_up": "1m"})
    due = soon()
    app.schedule(replicas, trigger="cron", second=f"{due.second}")
    until(due + timedelta(seconds=1))
    app.provider.resume(app.lock_name)
    for replica in replicas:
        app.stop(replica)
    app.schedule(later, trigger="cron", second=f"{due.second}")
    let_pass(3)
    assert due not in app.times("begin")


def test_i11_a_long_late_run_leaves_the_next_fire_time_alone(app: App) -> None:
    """The late run begins 2 s before the next fire time, and takes 4 s."""
    replicas = app.start(2, work=4)
    first = soon()
    second = first + timedelta(seconds=8)
    app.schedule(replicas, **daily(first, second), misfire_grace_time=30)
    until(first - timedelta(seconds=1))
    with app.outage():
        until(first + timedelta(seconds=5))
    wait_until(lambda: app.times("end")[second], timeout=60, what="the run on time")
    assert app.times("end") in ({first: 1, second: 1}, {second: 1})
    if not app.times("end")[first]:
        assert any(f"the run of {first.isoformat()} is lost" in each for each in app.warnings())
