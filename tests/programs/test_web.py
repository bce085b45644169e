"""docs/how-to/fastapi.md and flask.md: three uvicorn or gunicorn workers, one run for each fire time."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import provider_from_url
from tests.cli.harness import shedlock_command
from tests.guides.documents import Page
from tests.programs.applications import (
    HUNG_JOB,
    LATE,
    OBSERVED,
    WORKERS,
    application,
    copied,
    once_each,
    set_drain,
)
from tests.support.polling import wait_until
from tests.support.ports import free_port

LONG_JOB = """
import asyncio


@scheduler.scheduled_job("date", id="long")
@scheduler_lock("long", lock_at_most_for="1h")
async def long() -> None:
    print("long has begun", flush=True)
    await asyncio.sleep(3600)
"""


def command(page: str, port: int, options: str = "") -> str:
    """Return the page's command."""
    if page == "flask":
        (gunicorn,) = Page("flask").commands("gunicorn ")
        return f"{gunicorn} {options} --bind 127.0.0.1:{port}"
    uvicorn, _ = Page("fastapi").commands("uvicorn ")
    return f"{uvicorn} --port {port}"


@pytest.mark.parametrize(
    ("page", "options"),
    [("fastapi", ""), ("flask", ""), ("flask", "--preload")],
    ids=["fastapi", "flask: each worker loads the app", "flask: loaded before the fork"],
)
def test_as_many_runs_as_fire_times(page: str, options: str, tmp_path: Path) -> None:
    directory, port = copied(page, tmp_path, more=OBSERVED + LATE), free_port()
    with application(command(page, port, options), directory) as app:
        begin, end = app.watch()
        assert app.ran(begin, end) == once_each(begin, end)
        assert app.terminate() == [0]
        app.check_effects()
        if page == "fastapi":
            (line,) = Page("fastapi").commands("SHEDLOCK_STORE=")
            store, _, words = line.removeprefix("SHEDLOCK_STORE=").partition(" shedlock ")
            listed = shedlock_command(*words.split(), store=store, cwd=directory)
            assert (listed.returncode, "tick" in listed.stdout, listed.stderr) == (0, True, "")


def test_a_job_that_repeats_runs_in_one_worker_of_four(tmp_path: Path) -> None:
    _, uvicorn = Page("fastapi").commands("uvicorn ")
    directory = copied("fastapi", tmp_path)
    with application(f"{uvicorn} --port {free_port()}", directory, SHEDLOCK_HISTORY="50") as app:
        wait_until(lambda: app.log.read_text().count("startup complete") == 4, timeout=60, what="four workers")
        wait_until(lambda: app.log.read_text().count("cleaned up") >= 3, timeout=60, what="three runs")
        assert app.terminate() == [0]
    provider: Any = provider_from_url(f"sqlite:///{directory}/app.db?history=50")
    slots = [run.fire_time for run in reversed(provider.runs("clean-up"))]
    assert len(slots) == app.log.read_text().count("cleaned up")
    assert slots == [slots[0] + timedelta(seconds=2) * number for number in range(len(slots))]


@pytest.mark.parametrize("page", ["fastapi", "flask"])
def test_without_locks_each_worker_runs_it(page: str, tmp_path: Path) -> None:
    directory = copied(page, tmp_path, more=OBSERVED)
    with application(command(page, free_port()), directory, SHEDLOCK_ACTIVE="0") as app:
        begin, end = app.watch()
        assert app.ran(begin, end) == once_each(begin, end, times=WORKERS)


def test_i14_a_job_longer_than_the_drain_is_cancelled_and_releases_its_lock(tmp_path: Path) -> None:
    directory = copied("fastapi", tmp_path, more=LONG_JOB)
    set_drain(directory / "app.py")
    provider = provider_from_url(f"sqlite:///{directory}/app.db")
    with application(command("fastapi", free_port()), directory) as app:
        wait_until(lambda: "long has begun" in app.log.read_text(), timeout=60, what="the long job")
        (record,) = provider.records("long")
        assert record.is_held
        assert app.terminate() == [0]
        (record,) = provider.records("long")
        assert not record.is_held
        assert len(app.lost("long")) == 1


def test_i14_a_job_longer_than_the_drain_is_named_and_the_worker_is_killed(tmp_path: Path) -> None:
    """gunicorn kills a worker after its graceful_timeout. Python would join the job's thread."""
    directory = copied("flask", tmp_path, more=HUNG_JOB)
    set_drain(directory / "app.py")
    with (directory / "gunicorn.conf.py").open("a") as conf:
        conf.write("graceful_timeout = 5\n")
    with application(command("flask", free_port()), directory) as app:
        wait_until(lambda: "hung has begun" in app.log.read_text(), timeout=60, what="the job")
        assert app.terminate() == [0]
        assert "still running after the drain time" in app.log.read_text()
