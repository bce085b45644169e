"""docs/how-to/celery.md: two beats send the same task twice, two workers run it once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.guides.documents import Page
from tests.programs.applications import application, copied, emptied
from tests.support.polling import wait_until
from tests.support.redis import RedisEndpoint

BROKER, STORE = 11, 12
"""Databases of the Redis server."""

# Move beat's stored last run into the past, so that beat is due at once.
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
    with emptied(redis_server, BROKER, STORE) as server:
        yield server


@pytest.mark.parametrize("active", [True, False], ids=["with the lock", "without"])
def test_one_fire_time_of_two_beats(active: bool, redis: RedisEndpoint, tmp_path: Path) -> None:
    variables = {
        "BROKER": redis.url(BROKER),
        "SHEDLOCK_STORE": redis.url(STORE),
        "SHEDLOCK_ACTIVE": str(int(active)),
    }
    hosts = [copied("celery", tmp_path / name) for name in ("host-1", "host-2")]
    for host in hosts:
        run_late = [sys.executable, "-c", LATE]
        subprocess.run(run_late, cwd=host, env={**os.environ, **variables}, timeout=60, check=True)

    def messages() -> list[dict[str, Any]]:
        """Return the messages that wait for a worker."""
        with redis.client(BROKER) as client:
            return [json.loads(message) for message in client.lrange("celery", 0, -1)]

    def log() -> str:
        return "".join((host / "log").read_text() for host in hosts)

    with ExitStack() as processes:
        for host in hosts:
            processes.enter_context(application("celery --app tasks beat", host, 1, **variables))
        wait_until(lambda: len(messages()) >= 2, timeout=30, what="a message of each beat")
        sent = len(messages())
        for message in messages():
            expires = datetime.fromisoformat(message["headers"]["expires"])
            assert expires - datetime.now(UTC) < timedelta(seconds=20)
        for host in hosts:
            worker = "celery --app tasks worker --loglevel info --concurrency 1"
            processes.enter_context(application(worker, host, 1, **variables))
        wait_until(lambda: log().count("succeeded in") >= sent, timeout=60, what="all messages done")
    runs = log().count("sending the newsletter")
    if active:
        assert runs == 1
        assert log().count(": None\n") >= sent - 1  # a skipped task returns None
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
