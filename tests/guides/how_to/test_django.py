"""docs/how-to/django.md: a management command that is started on three hosts runs on one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from shedlock_py import provider_from_url
from tests.guides.documents import Page
from tests.guides.examples.scripts import PROJECT
from tests.support.database import DatabaseServer

HOSTS = 3
DATABASE = "how_to_django"
SKIPPED = "skipped: nightly-report (held)"

POSTGRES = """
from mysite.settings import *

DATABASES = {{
    "default": {{
        "ENGINE": "django.db.backends.postgresql",
        "NAME": {url.database!r},
        "USER": {url.username!r},
        "PASSWORD": {url.password!r},
        "HOST": {url.host!r},
        "PORT": {url.port!r},
    }}
}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    target = tmp_path / "project"
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(PROJECT / "examples" / "how_to" / "django_project", target, ignore=ignored))


def start(project: Path, command: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "manage.py", command],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    output, errors = process.communicate(timeout=100)
    assert process.returncode == code, output + errors
    return output, errors


def manage(project: Path, command: str, **variables: str) -> None:
    output, errors = finish(start(project, command, **variables))
    assert errors == "", output


def new_project(directory: Path) -> Path:
    """What a reader has who follows the guide: Django's own project and application, and the code of the page."""
    project = directory / "mysite"
    project.mkdir()
    for arguments in (["startproject", "mysite", "."], ["startapp", "reports"]):
        subprocess.run([sys.executable, "-m", "django", *arguments], cwd=project, check=True, timeout=60)
    for block in Page("django").blocks:
        if block.title and "excerpt" not in block.title:
            path = project / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    (installed,) = (block.text for block in Page("django").blocks if "settings.py" in block.title)
    with (project / "mysite" / "settings.py").open("a") as settings:
        settings.write(installed.replace("INSTALLED_APPS =", "INSTALLED_APPS +="))
    return project


def run_tests(project: Path, **variables: str) -> str:
    return "".join(finish(start(project, "test", **variables)))


def on_all_hosts(project: Path, **variables: str) -> list[str]:
    """What the command prints on each, sorted."""
    processes = [start(project, "nightly_report", **variables) for _ in range(HOSTS)]
    return sorted(output.strip() for output, _ in map(finish, processes))


def test_the_guide_in_a_new_project_on_sqlite(tmp_path: Path) -> None:
    """As written: migrate, the tests, and then the command."""
    project = new_project(tmp_path)
    assert "\nOK\n" in run_tests(project)
    assert not (project / "db.sqlite3").exists()  # the tests touch no real database
    manage(project, "migrate")
    assert on_all_hosts(project) == [SKIPPED, SKIPPED, "written: 42 pages"]
    assert "\nOK\n" in run_tests(project)
    record = provider_from_url(f"sqlite:///{project}/db.sqlite3").record("nightly-report")
    assert record is not None
    assert 0 < record.remaining.total_seconds() <= 60


def test_without_locks_all_of_them_run(project: Path) -> None:
    manage(project, "migrate")
    assert on_all_hosts(project, SHEDLOCK_ACTIVE="0") == ["written: 42 pages"] * HOSTS


def test_without_migrate_it_says_what_is_missing(project: Path) -> None:
    _, errors = finish(start(project, "nightly_report"), 1)
    assert "create the table shedlock once" in errors


@pytest.fixture
def postgres_settings(project: Path, postgres_server: DatabaseServer) -> Iterator[str]:
    url = make_url(postgres_server.url("postgresql", DATABASE))
    (project / "mysite" / "on_postgres.py").write_text(POSTGRES.format(url=url))
    with postgres_server.new_database(DATABASE):
        yield "mysite.on_postgres"


def test_on_postgresql(project: Path, postgres_settings: str) -> None:
    manage(project, "migrate", DJANGO_SETTINGS_MODULE=postgres_settings)
    lines = on_all_hosts(project, DJANGO_SETTINGS_MODULE=postgres_settings)
    assert lines == [SKIPPED, SKIPPED, "written: 42 pages"]
    # Django drops its test database at the end, which no open connection of the library may prevent.
    assert "\nOK\n" in run_tests(project, DJANGO_SETTINGS_MODULE=postgres_settings)
