from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.django_projects import Project

APP = "shedlock_py.integrations.django"


@pytest.fixture(scope="session")
def started_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project from startproject, made once."""
    return Project.new(tmp_path_factory.mktemp("django") / "project").directory


@pytest.fixture
def project(started_project: Path, tmp_path: Path) -> Project:
    """A new project on SQLite, with our application."""
    project = Project(Path(shutil.copytree(started_project, tmp_path / "project")))
    project.add_settings(f"INSTALLED_APPS += [{APP!r}]")
    return project


@pytest.fixture
def small_project(project: Project) -> Project:
    """A project with our application only: no admin, no users, and "migrate" makes only our tables."""
    project.add_settings(INSTALLED_APPS=[APP], ROOT_URLCONF=None)
    return project
