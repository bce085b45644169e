"""Projects made by Django's startproject, their manage.py as processes, and providers of DATABASES."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.utils import ConnectionHandler
from sqlalchemy import make_url

from shedlock_py.integrations.django.conf import Conf
from shedlock_py.integrations.django.django_provider import DatabaseLockProvider
from tests.support import forked
from tests.support.forked import Program

DJANGO = ["django.core.management.commands.migrate", "django.core.management.commands.check", "django.forms.models"]
DJANGO += ["django.db.backends.sqlite3.base", "django.db.migrations.autodetector", "django.views.debug", "sqlparse.sql"]
"""Modules that most ``manage.py`` commands import. They need no settings at import."""
CLONE = Path(__file__).parents[2]
ENGINES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite3"}


def database(url: str) -> dict[str, Any]:
    """Return the entry of ``DATABASES`` for an SQLAlchemy URL."""
    parts = make_url(url)
    return {
        "ENGINE": f"django.db.backends.{ENGINES[parts.get_backend_name()]}",
        "NAME": parts.database,
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.host or "",
        "PORT": str(parts.port or ""),
    }


class Project:
    """A directory with manage.py and the package ``mysite``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def new(cls, directory: Path) -> Project:
        directory.mkdir()
        project = cls(directory)
        project.django_admin("startproject", "mysite", ".")
        return project

    def django_admin(self, *arguments: str) -> None:
        forked.run(["-m", "django", *arguments], cwd=self.directory, preload=DJANGO).check_returncode()

    def add_settings(self, text: str = "", **values: Any) -> None:
        with (self.directory / "mysite" / "settings.py").open("a") as settings:
            settings.write("".join(f"\n{name} = {value!r}" for name, value in values.items()) + f"\n{text}\n")

    def start(self, *arguments: str, **variables: str) -> Program:
        return self._start(arguments, variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def start_logged(self, log: Path, *arguments: str) -> Program:
        """Start manage.py with its output in a file."""
        with log.open("w") as file:
            return self._start(arguments, {"PYTHONUNBUFFERED": "1"}, stdout=file, stderr=subprocess.STDOUT)

    def _start(self, arguments: Sequence[str], variables: Mapping[str, str], **streams: Any) -> Program:
        return Program(
            ["-W", "error", "manage.py", *arguments],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": str(CLONE), **variables},
            stdin=subprocess.DEVNULL,
            preload=DJANGO,
            **streams,
        )

    def manage(self, *arguments: str, code: int = 0, **variables: str) -> tuple[str, str]:
        """Run manage.py and return its standard output and standard error."""
        return finish(self.start(*arguments, **variables), code)


def finish(process: Program, code: int = 0) -> tuple[str, str]:
    output, errors = process.communicate(timeout=100)
    assert process.returncode == code, output + errors
    return output, errors


# Without a project, in the process of a test


def add_database(alias: str, values: dict[str, Any]) -> None:
    if not settings.configured:
        settings.configure(DATABASES={})
    connections.settings[alias] = ConnectionHandler({"default": values}).settings["default"]
    with suppress(AttributeError):
        del connections[alias]  # the connection of the former entry


def open_provider(url: str, **options: Any) -> DatabaseLockProvider:
    """Open the application's provider, in any process, for the database of an SQLAlchemy URL."""
    alias = f"database-{url}"
    add_database(alias, database(url))
    provider = DatabaseLockProvider(Conf(alias, options))
    provider.current()  # refuse wrong options here, not at the first lock
    return provider
