"""docs/how-to/migrations.md: of four replicas one migrates; it is killed, and another migrates for all."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from shedlock_py import provider_from_url
from tests.cli.harness import shedlock_command
from tests.guides.documents import Page
from tests.programs.applications import Application, application, copied
from tests.support.polling import wait_until
from tests.support.processes import descendants, kill_tree

PAGE = Page("migrations")
MIGRATION = """
import os, pathlib, time
import sqlalchemy as sa
from alembic import op

revision, down_revision = "42", None


def upgrade():
    print("begun in", os.getpid(), flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
    op.create_table("orders", sa.Column("id", sa.Integer, primary_key=True))
    print("done in", os.getpid(), flush=True)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The page's application, with an Alembic project that has one migration."""
    directory = copied("migrations", tmp_path)
    shutil.copytree(Page("alembic").examples, directory, dirs_exist_ok=True)
    (directory / "migrations" / "versions" / "42_orders.py").write_text(MIGRATION)
    with closing(provider_from_url(f"sqlite:///{directory}/locks.db")) as provider:  # type: ignore[type-var]  # it has close()
        provider.create_schema()
    return directory


def init_container() -> list[str]:
    deployment: Any = yaml.safe_load((PAGE.examples / "deployment.yaml").read_text())
    [first, second] = deployment["spec"]["template"]["spec"]["initContainers"]
    assert first["command"] == ["shedlock", "schema", "--create"]
    command: list[str] = second["command"]
    return command


def begun(app: Application) -> list[int]:
    return [int(pid) for pid in re.findall(r"begun in (\d+)", app.log.read_text())]


def check(project: Path, command: str, ready: Callable[[Application], int]) -> None:
    """Run ``command`` in four replicas, and kill the first replica that migrates before its end.

    :param ready: how many replicas have finished waiting for the migration.
    """
    variables = {"SHEDLOCK_STORE": "sqlite:///locks.db", "DATABASE_URL": "sqlite:///app.db"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with application(command, project, 4, PATH=path, **variables) as app:
        wait_until(lambda: begun(app), timeout=60, what="a migration")
        [first] = begun(app)
        [killed] = [each.pid for each in app.processes if first in (each.pid, *descendants(each.pid))]
        kill_tree(killed)
        wait_until(lambda: len(begun(app)) == 2, timeout=60, what="another replica that takes over")
        assert ready(app) == 0, "the others wait"
        (project / "go").touch()
        wait_until(lambda: ready(app) == 3, timeout=60, what="the others")
        assert len(begun(app)) == 2
        assert app.log.read_text().count("done in") == 1
    with closing(sqlite3.connect(project / "app.db")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("42",)]


@pytest.mark.slow("four processes of uvicorn")
def test_i14_in_the_lifespan_of_an_application(project: Path) -> None:
    app = project / "app.py"
    app.write_text(app.read_text().replace('wait="5m"', 'wait="5m", lock_at_most_for="2s"'))
    check(project, "uvicorn app:app --port 0", lambda app: app.log.read_text().count("startup complete"))


@pytest.mark.slow("four processes of Alembic")
def test_i14_in_the_pods_of_a_deployment(project: Path) -> None:
    shedlock, once, key, *rest = init_container()
    command = " ".join([shedlock, once, key, "--at-most", "2s", *rest])
    check(project, command, lambda app: [process.poll() for process in app.processes].count(0))
    listed = shedlock_command("list", key, store=f"sqlite:///{project}/locks.db")
    assert re.search(rf"^{key} +done ", listed.stdout, re.MULTILINE)
    (forget,) = PAGE.commands("shedlock once --forget")
    assert shedlock_command(*forget.split()[1:], store=f"sqlite:///{project}/locks.db").returncode == 0
