"""The command line in this process, and stores with records."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shedlock_py import Lease, LockProvider, LockRecord, provider_from_url
from shedlock_py.cli.app import shedlock
from tests.support import forked
from tests.support.locks import acquired, opened, record_of
from tests.support.scripts import PROJECT

in_a_process = pytest.mark.not_quick("starts the command in a process of its own")


def run(*arguments: str, store: str | None = None, **variables: str) -> Result:
    """Run ``shedlock ARGUMENTS`` in this process, not on a terminal."""
    given = {"SHEDLOCK_STORE": store, **variables}
    return CliRunner().invoke(shedlock, arguments, env=given, prog_name="shedlock")


def shedlock_command(
    *arguments: str, store: str | None = None, cwd: Path | None = None, **variables: Any
) -> subprocess.CompletedProcess[str]:
    """Run ``shedlock ARGUMENTS`` in a new process, not on a terminal.

    :param variables: added to its environment; ``stdout`` and ``stderr`` are streams, by default pipes.
    """
    streams = {name: variables.pop(name) for name in ("stdout", "stderr") if name in variables}
    environ = {**os.environ, "PYTHONPATH": str(PROJECT), **variables}
    if store is not None:
        environ["SHEDLOCK_STORE"] = store
    encoding = variables.get("PYTHONIOENCODING", "utf-8")
    return forked.run(["-m", "shedlock_py", *arguments], env=environ, cwd=cwd, **streams, encoding=encoding)


_opened = ExitStack()


def provider_at(url: str) -> LockProvider:
    """Open a provider; conftest.py closes it after the test. From Python 3.13 on, sqlite3 warns of open connections."""
    provider: Any = provider_from_url(url)
    _opened.callback(provider.close)
    return provider  # type: ignore[no-any-return]  # as provider_from_url says


def close_providers() -> None:
    _opened.close()


def file_store(directory: Path) -> str:
    (directory / "locks.db").write_bytes(_empty_store())
    return f"sqlite:///{directory}/locks.db"


@cache
def _empty_store() -> bytes:
    """Return the file of a store with a schema but without locks."""
    with TemporaryDirectory() as directory:
        with opened(f"sqlite:///{directory}/locks.db?timeout=60s") as provider:  # the disk may be busy
            provider.create_schema()
        return Path(directory, "locks.db").read_bytes()


def take(store: str | LockProvider, name: str, at_most: str = "10m", **options: Any) -> Lease:
    provider = provider_at(store) if isinstance(store, str) else store
    return acquired(provider, name, at_most, **options)


def job_of(store: str) -> LockRecord:
    return record_of(provider_at(store), "job")


def set_fire_time(store: str, name: str, fire_time: datetime) -> None:
    """Store a fire time that the store now refuses, as an older release stored it for a replica with a wrong clock."""
    with sqlite3.connect(store.removeprefix("sqlite:///")) as connection:
        values = (f"{fire_time.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}", name)
        connection.execute("UPDATE shedlock SET last_fire_time = ? WHERE name = ?", values)
    connection.close()


def insert(store: str, name: str, locked_by: str, *, ago: timedelta, hold: timedelta) -> None:
    """Write a record without the checks of names and holders."""
    locked_at = datetime.now(UTC) - ago
    times = [f"{moment:%Y-%m-%d %H:%M:%S.%f}" for moment in (locked_at, locked_at + hold)]
    with sqlite3.connect(store.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "INSERT INTO shedlock (name, locked_by, locked_at, lock_until) VALUES (?, ?, ?, ?)",
            (name, locked_by, *times),
        )
    connection.close()
