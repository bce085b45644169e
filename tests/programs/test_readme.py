"""The Python of the README runs: its opening ends, and its scheduler goes on until SIGTERM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shedlock_py import provider_from_url
from tests.guides.documents import SECTIONS, blocks
from tests.support.database import DatabaseServer
from tests.support.polling import wait_until
from tests.support.scripts import PROJECT, run_python

SCRIPTS = {
    title: "\n".join(block.text for block in found) for title, text in SECTIONS.items() if (found := blocks(text))
}
URL, DATABASE = "postgresql://user:secret@db.example/app", "readme"


@pytest.fixture
def url(postgres_server: DatabaseServer) -> Iterator[str]:
    with postgres_server.new_database(DATABASE):
        yield postgres_server.url("postgresql", DATABASE)


def write(title: str, url: str, path: Path, *replaced: tuple[str, str]) -> None:
    script = SCRIPTS[title]
    for old, new in ((URL, url), *replaced):
        assert script.count(old) == 1
        script = script.replace(old, new)
    path.write_text(script)


def test_these_sections_have_python() -> None:
    assert list(SCRIPTS) == ["(top)", "APScheduler"]


def test_the_opening_prints_what_it_says_also_when_it_is_run_again(url: str, tmp_path: Path) -> None:
    write("(top)", url, tmp_path / "opening.py")
    for printed in ("42 pages\nNone\n", "None\nNone\n"):
        done = run_python("opening.py", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_the_opening_refuses_decorators_in_the_wrong_order(url: str, tmp_path: Path) -> None:
    write(
        "(top)", url, tmp_path / "opening.py", ("print(nightly_report())  # 42", "nightly_report.__wrapped__()  # 42")
    )
    done = run_python("opening.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "shedlock_py.errors.NotLocked" in done.stderr


def test_the_scheduler_runs_its_job_until_sigterm(url: str, tmp_path: Path) -> None:
    write("APScheduler", url, tmp_path / "app.py", ('minute="*/15"', 'second="*"'))
    command, variables = [sys.executable, "-W", "error", "app.py"], {**os.environ, "PYTHONPATH": str(PROJECT)}
    with (
        subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) as process,
        closing(provider_from_url(url)) as provider,  # type: ignore[type-var]  # it has close()
    ):
        try:
            provider.create_schema()
            wait_until(lambda: provider.record("import-feeds") is not None, timeout=60, what="the first run")
            assert process.poll() is None
            process.terminate()
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, errors) == (143, "")
