"""Run ``site_tests.py`` in a real project with Django's runner."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.database import DatabaseServer
from tests.support.django_projects import Project, database

pytestmark = pytest.mark.slow("runs manage.py test")

TESTS = Path(__file__).with_name("site_tests.py")


def run_site_tests(project: Project) -> None:
    shutil.copy(TESTS, project.directory)
    project.add_settings(SHEDLOCK={"HISTORY": 20})
    _, errors = project.manage("test", TESTS.stem)
    number = len(re.findall(r"^    def test_", TESTS.read_text(), re.MULTILINE))
    assert f"Ran {number} tests" in errors
    assert "\nOK\n" in errors


def test_on_a_test_database_in_memory(project: Project) -> None:
    run_site_tests(project)
    assert not (project.directory / "db.sqlite3").exists()


def test_on_a_test_database_of_postgresql(project: Project, postgres_server: DatabaseServer) -> None:
    """Django drops the database at the end; an open connection of the library must not prevent it."""
    with postgres_server.new_database("django_site"):
        project.add_settings(DATABASES={"default": database(postgres_server.url("postgresql", "django_site"))})
        run_site_tests(project)


@pytest.mark.matrix("the same tests in parallel")
def test_on_clones_of_a_test_database(project: Project, postgres_server: DatabaseServer) -> None:
    """``manage.py test --parallel``: each process has its own database."""
    shutil.copy(TESTS, project.directory)
    project.add_settings(SHEDLOCK={"HISTORY": 20})
    with postgres_server.new_database("django_site"):
        project.add_settings(DATABASES={"default": database(postgres_server.url("postgresql", "django_site"))})
        assert "\nOK\n" in project.manage("test", "--parallel", "2", TESTS.stem)[1]
