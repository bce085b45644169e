"""Applications of several processes, each with a scheduler, and their logs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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


# Each acquire is late, as if clocks differed by up to 80 ms.
LATE = """
import random as _random
import time as _time
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider as _Provider

_acquire = _Provider.acquire


def _acquire_late(provider, request):
    _time.sleep(_random.uniform(0, 0.08))
    return _acquire(provider, request)


_Provider.acquire = _acquire_late
"""

# A line for each run and each skip of a job. Other output may stand before it on its line.
OBSERVED = """
import os as _os
import sys as _sys
from apscheduler.events import EVENT_JOB_EXECUTED as _EXECUTED
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED as _SKIPPED, JobSkippedEvent as _SkippedEvent


def _write_outcome(event):
    outcome = f"skipped ({event.reason})" if isinstance(event, _SkippedEvent) else "ran"
    _sys.stdout.write(f"\\n{_os.getpid()} {outcome} {event.job_id} of {event.scheduled_run_time.isoformat()}\\n")
    _sys.stdout.flush()


scheduler.add_listener(_write_outcome, _EXECUTED | _SKIPPED)
"""

HUNG_JOB = """
import time as _time


@scheduler.scheduled_job("date", id="hung")
@scheduler_lock("hung", lock_at_most_for="1m")
def hung():
    print("hung has begun", flush=True)
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
        text = (target / program).read_text()
        head, job, tail = re.split(r"^(@scheduler\.scheduled_job|def tick)", text, maxsplit=1, flags=re.MULTILINE)
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

    def check_effects(self) -> None:
        """After the end: each run in the log has had its effect, once, and there are no other effects."""
        effects = self.log.read_text().count("tick in process ")
        logged = len([run for run in self.runs() if run.outcome == "ran"])
        assert logged <= effects <= logged + 1, "at most one was cut off between its effect and its line in the log"

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
