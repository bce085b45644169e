"""Projects as Django's own startproject makes them, and their manage.py as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

CLONE = Path(__file__).parents[2]
ENGINES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite3"}


def database(url: str) -> dict[str, Any]:
    """The entry of ``DATABASES`` for the database that an SQLAlchemy URL names."""
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
        subprocess.run([sys.executable, "-m", "django", *arguments], cwd=self.directory, check=True, timeout=60)

    def add_settings(self, text: str = "", **values: Any) -> None:
        with (self.directory / "mysite" / "settings.py").open("a") as settings:
            settings.write("".join(f"\n{name} = {value!r}" for name, value in values.items()) + f"\n{text}\n")

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "manage.py", *arguments],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": str(CLONE), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def manage(self, *arguments: str, code: int = 0, **variables: str) -> tuple[str, str]:
        """What it prints, and what it writes to standard error."""
        return finish(self.start(*arguments, **variables), code)


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    output, errors = process.communicate(timeout=100)
    assert process.returncode == code, output + errors
    return output, errors
