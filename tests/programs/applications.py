"""Applications of several processes, each with a scheduler, and their logs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tests.guides.documents import EXAMPLES
from tests.support.polling import wait_until
from tests.support.ports import LOOPBACK
from tests.support.processes import kill_tree
from tests.support.redis import RedisEndpoint
from tests.support.scripts import PROJECT

WORKERS = 3
FIRE_TIMES = 3
SECOND = timedelta(seconds=1)

RUN = re.compile(r"^(\d+) (ran|skipped \(\w+\)) tick of (\S+)$", re.MULTILINE)


# Make each acquire late, like clocks that differ by up to 80 ms. For programs with a provider.
LATE = """
import random as _random
import time as _time

_acquire = provider.acquire


def _acquire_late(request):
    _time.sleep(_random.uniform(0, 0.08))
    return _acquire(request)


provider.acquire = _acquire_late
"""
LATE_ASYNC = (
    LATE.replace("def _", "async def _")
    .replace("import time as _time", "import asyncio as _asyncio")
    .replace("_time.sleep", "await _asyncio.sleep")
    .replace("return _acquire", "return await _acquire")
)


HUNG_JOB = """
import time as _time


@scheduler.scheduled_job("date", id="hung")
@scheduler_lock("hung", lock_at_most_for="1m")
def hung():
    logger.info("hung has begun")
    _time.sleep(3600)
"""


def set_drain(program: Path, seconds: str = "1s") -> None:
    """Make the guide's program wait less long for its jobs."""
    text = program.read_text()
    assert '"20s"' in text
    program.write_text(text.replace('"20s"', f'"{seconds}"'))


def copied(example: str, directory: Path, *, more: str = "", program: str = "app.py") -> Path:
    """Return a copy of the example in its own writable directory. `more` goes before the program's first job."""
    target = directory / "app"
    shutil.copytree(EXAMPLES / example, target, ignore=shutil.ignore_patterns("__pycache__", "__init__.py"))
    if more:
        head, job, tail = (target / program).read_text().partition("@scheduler.scheduled_job")
        (target / program).write_text(f"{head}{more}\n\n{job}{tail}")
    return target


@dataclass(frozen=True)
class Run:
    """The result of one fire time in one worker."""

    worker: int
    outcome: str
    fire_time: datetime


@dataclass
class Application:
    processes: list[subprocess.Popen[bytes]]
    log: Path

    def runs(self) -> list[Run]:
        found = RUN.findall(self.log.read_text())
        return [Run(int(worker), outcome, datetime.fromisoformat(at)) for worker, outcome, at in found]

    def ran(self, begin: datetime, end: datetime) -> Counter[datetime]:
        """Count the job's runs for each fire time from `begin` to before `end`."""
        return Counter(run.fire_time for run in self.runs() if run.outcome == "ran" and begin <= run.fire_time < end)

    def watch(self, workers: int = WORKERS) -> tuple[datetime, datetime]:
        """Wait for all workers, then until `FIRE_TIMES` fire times are over in all of them."""
        wait_until(lambda: len(self._last()) == workers, timeout=60, what=f"{workers} workers with a scheduler")
        begin = max(self._last().values()) + 2 * SECOND
        end = begin + FIRE_TIMES * SECOND
        # A worker handles its fire times in order: a later fire time shows that this one is over.
        wait_until(lambda: min(self._last().values()) >= end, timeout=60, what=f"all workers past {end}")
        return begin, end

    def _last(self) -> dict[int, datetime]:
        last: dict[int, datetime] = {}
        for run in self.runs():
            last[run.worker] = max(run.fire_time, last.get(run.worker, run.fire_time))
        return last

    def lost(self, lock_name: str) -> list[str]:
        """Return the fire times that a WARNING names as lost by the shutdown."""
        pattern = rf"lock '{lock_name}': the run of (\S+) is lost: it was cancelled, or its process shut down"
        return re.findall(pattern, self.log.read_text())

    def check_rows(self, file: Path) -> None:
        """After the end: assert that each logged run had its effect once, and that no other effect exists."""
        with closing(sqlite3.connect(file)) as connection:
            (rows,) = connection.execute("SELECT count(*) FROM tick").fetchone()
        logged = len([run for run in self.runs() if run.outcome == "ran"])
        assert logged <= rows <= logged + 1, "at most one was cut off between its effect and its line in the log"

    def terminate(self) -> list[int]:
        """Stop the workers, and return their exit codes."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        return [process.wait(20) for process in self.processes]


@contextmanager
def application(command: str, directory: Path, copies: int = 1, **variables: str) -> Iterator[Application]:
    """Run `command` in `directory`, as a user types it, with this environment's programs."""
    program, *arguments = shlex.split(command)
    log = directory / "log"
    app = Application([], log)
    try:
        with log.open("ab") as out:
            for _ in range(copies):
                process = subprocess.Popen(
                    [Path(sys.executable).with_name(program), *arguments],
                    cwd=directory,
                    env={**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1", **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
                app.processes.append(process)
        yield app
    finally:
        for process in app.processes:
            if process.poll() is None:
                kill_tree(process.pid)
                process.wait()
        print(log.read_text())  # pytest shows it if the test fails


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def once_each(begin: datetime, end: datetime, times: int = 1) -> Counter[datetime]:
    """Return `times` runs of each fire time; a fire time is every second."""
    return Counter({begin + number * SECOND: times for number in range(round((end - begin) / SECOND))})


@contextmanager
def emptied(server: RedisEndpoint, *databases: int) -> Iterator[RedisEndpoint]:
    """Empty the server's ``databases`` at the start and at the end."""

    def flush() -> None:
        for number in databases:
            with server.client(number) as client:
                client.flushdb()

    flush()
    yield server
    flush()
