"""docs/how-to/celery.md: two beats send the same task twice, two workers run it once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.guides.documents import EXAMPLES, Page
from tests.support.polling import wait_until
from tests.support.processes import kill_tree
from tests.support.redis import RedisEndpoint

BROKER, STORE = 11, 12
"""Databases of the Redis server."""

# What beat keeps between its runs: the last full minute that it saw is some time ago, so it is due at once.
LATE = """
from datetime import timedelta
from celery.beat import PersistentScheduler
from tasks import app
scheduler = PersistentScheduler(app, schedule_filename="celerybeat-schedule")
scheduler.schedule["newsletter"].last_run_at -= timedelta(minutes=2)
scheduler.close()
"""


@pytest.fixture
def redis(redis_server: RedisEndpoint) -> Iterator[RedisEndpoint]:
    def flush() -> None:
        for number in (BROKER, STORE):
            with redis_server.client(number) as client:
                client.flushdb()

    flush()
    yield redis_server
    flush()


class Hosts:
    """Two hosts: a directory, a beat and a worker each, and what these write."""

    def __init__(self, redis: RedisEndpoint, directory: Path, active: bool) -> None:
        self._redis = redis
        self._environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "BROKER": redis.url(BROKER),
            "SHEDLOCK_STORE": redis.url(STORE),
            "SHEDLOCK_ACTIVE": str(int(active)),
        }
        self._processes = ExitStack()
        self.directories = [directory / "host-1", directory / "host-2"]
        for host in self.directories:
            shutil.copytree(EXAMPLES / "celery", host, ignore=shutil.ignore_patterns("__pycache__", "__init__.py"))

    def run(self, script: str) -> None:
        for host in self.directories:
            command = [sys.executable, "-c", script]
            subprocess.run(command, cwd=host, env=self._environment, stdin=subprocess.DEVNULL, timeout=60, check=True)

    def start(self, *command: str) -> None:
        for host in self.directories:
            self._processes.enter_context(self._process(host, *command))

    def log(self, what: str) -> str:
        return "".join((host / f"{what}.log").read_text() for host in self.directories)

    def messages(self) -> list[dict[str, Any]]:
        """Those that wait for a worker."""
        with self._redis.client(BROKER) as client:
            return [json.loads(message) for message in client.lrange("celery", 0, -1)]

    def close(self) -> None:
        self._processes.close()

    @contextmanager
    def _process(self, host: Path, *command: str) -> Iterator[None]:
        program = str(Path(sys.executable).with_name("celery"))
        with (host / f"{command[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                [program, "--app", "tasks", *command],
                cwd=host,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield
        finally:
            kill_tree(process.pid)
            process.wait()


@pytest.mark.parametrize("active", [True, False], ids=["with the lock", "without"])
def test_one_fire_time_of_two_beats(active: bool, redis: RedisEndpoint, tmp_path: Path) -> None:
    hosts = Hosts(redis, tmp_path, active)
    try:
        hosts.run(LATE)
        hosts.start("beat")
        wait_until(lambda: len(hosts.messages()) >= 2, timeout=30, what="a message of each beat")
        sent = len(hosts.messages())
        for message in hosts.messages():
            expires = datetime.fromisoformat(message["headers"]["expires"])
            assert expires - datetime.now(UTC) < timedelta(seconds=20)
        hosts.start("worker", "--loglevel", "info", "--concurrency", "1")
        wait_until(lambda: hosts.log("worker").count("succeeded in") >= sent, timeout=60, what="all messages done")
        log = hosts.log("worker")
    except BaseException:
        print(hosts.log("beat"))
        raise
    finally:
        hosts.close()
    runs = log.count("sending the newsletter")
    if active:
        assert runs == 1
        assert log.count(": None\n") >= sent - 1  # what a skipped task returns
    else:
        assert runs >= sent


def test_the_numbers_keep_to_the_rules() -> None:
    page = Page("celery")
    (rules,) = [block.text.splitlines() for block in page.of("text") if " < " in block.text]
    first, second = [[int(number) for number in re.findall(r"(\d+) s", rule)] for rule in rules]
    assert first[0] + first[1] < first[2]
    assert second[0] + second[1] < second[2] == 60
    tasks = (page.examples / "tasks.py").read_text()
    assert f'"expires": {first[1]}}}' in tasks
    assert f'lock_at_least_for="{first[2]}s"' in tasks
    assert (second[0], second[1]) == (first[2], first[1])
