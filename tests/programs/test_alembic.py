"""docs/how-to/alembic.md: autogenerate makes the lock table, and then nothing more."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shedlock_py import LockRequest
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.guides.documents import Page
from tests.support.scripts import PROJECT

PAGE = Page("alembic")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PAGE.examples, tmp_path / "project"))


def alembic(project: Path, url: str, command: str) -> subprocess.CompletedProcess[str]:
    """Run alembic in the project, as a user types it."""
    program, arguments = command.split(" ", 1)
    path = str(Path(sys.executable).parent)
    return subprocess.run(
        f"{path}/{program} {arguments}",
        shell=True,
        cwd=project,
        env={**os.environ, "DATABASE_URL": url, "PYTHONPATH": str(PROJECT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_from_no_table_to_a_lock_on_sqlite(project: Path) -> None:
    check_guide(project, f"sqlite:///{project}/app.db")


def test_from_no_table_to_a_lock_on_a_server(project: Path, server_url: str) -> None:
    check_guide(project, server_url)


def check_guide(project: Path, url: str) -> None:
    make, upgrade, check = PAGE.commands("alembic ")
    done = alembic(project, url, make)
    assert done.returncode == 0, done.stderr
    (migration,) = (project / "migrations" / "versions").glob("*.py")
    columns = " ".join(re.findall(r"sa\.Column\('(\w+)'", migration.read_text()))
    assert columns == "name lock_until locked_at locked_by fencing_token last_fire_time"
    done = alembic(project, url, upgrade)
    assert done.returncode == 0, done.stderr

    provider = SqlAlchemyLockProvider(url)
    lease = provider.acquire(LockRequest("nightly-report", "1m"))
    assert lease is not None
    assert lease.fencing_token is not None
    assert provider.acquire(LockRequest("nightly-report", "1m")) is None
    assert provider.release(lease)
    provider.close()

    done = alembic(project, url, check)
    assert (done.returncode, done.stdout) == (0, "No new upgrade operations detected.\n"), done.stderr


def test_without_the_import_it_fails_as_the_page_says(project: Path) -> None:
    template = project / "migrations" / "script.py.mako"
    template.write_text(template.read_text().replace("import shedlock_py.providers.sqlalchemy.schema\n", ""))
    make, upgrade, _ = PAGE.commands("alembic ")
    assert alembic(project, "sqlite:///app.db", make).returncode == 0
    done = alembic(project, "sqlite:///app.db", upgrade)
    assert done.returncode == 1
    (message,) = re.findall(r"`(NameError: .*?)` \|", PAGE.text)
    assert message in done.stderr
