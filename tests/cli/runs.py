"""`shedlock run` and `shedlock lead` in new processes, away from the tests' terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import LockProvider, LockRecord
from tests.cli.harness import provider_at
from tests.cli.terminal import PROGRAM, command
from tests.support.forked import Process, Program
from tests.support.polling import wait_until
from tests.support.scripts import PROJECT

SECONDS = 30.0
ALSO_ON_ASYNCPG = pytest.mark.parametrize("runs", ["sqlite", "postgresql+asyncpg"], indirect=True)
"""Run the test with a sync and with an async provider."""
LATER_ON_ASYNCPG = pytest.mark.parametrize(
    "runs",
    ["sqlite", pytest.param("postgresql+asyncpg", marks=pytest.mark.slow("the same with an async provider"))],
    indirect=True,
)
"""The same, but `make test` leaves out the async provider."""


class Runs:
    """Starts runs on one store, and kills remaining runs at the end."""

    def __init__(self, store: str, directory: Path) -> None:
        self.store = store
        self.directory = directory
        self.provider: LockProvider = provider_at(store)
        self._started: list[Process] = []

    def start(
        self,
        *arguments: str,
        words: Sequence[str] | None = None,
        python: str = "",
        program: str = PROGRAM,
        verb: str = "run",
        variables: dict[str, str | None] | None = None,
        under: Sequence[str] = (),
        is_forked: bool = True,
        **options: Any,
    ) -> Process:
        """Start `shedlock run ARGUMENTS -- COMMAND`, as a child of the program ``under`` if given.

        A fork is cheap. The program ``under`` needs a new interpreter, and so does a test with ``is_forked=False``. The
        ``verb`` may also be "lead". The command is `python`'s code, unless ``words`` are given.
        """
        path = os.pathsep.join([str(PROJECT), str(self.directory)])  # use this library from any directory
        given = {"SHEDLOCK_STORE": self.store, "PYTHONPATH": path, **(variables or {})}
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SHEDLOCK_")}
        environ |= {name: value for name, value in given.items() if value is not None}
        words = [sys.executable, "-c", python] if words is None else words
        started = command(verb, *arguments, "--", *words, program=program)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        options = {**streams, "env": environ, "start_new_session": True, **options}
        process: Process
        if under or not is_forked:
            process = subprocess.Popen([*under, *started], text=True, **options)
        else:
            process = Program(started[1:], **options)
        self._started.append(process)
        return process

    def run(self, *arguments: str, **options: Any) -> tuple[int, str, str]:
        """Start a run and wait for it: exit code, standard output, standard error."""
        return self.end(self.start(*arguments, **options))

    def end(self, process: Process) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=SECONDS)
        return process.returncode, out, err

    def start_ready(self, *arguments: str, **options: Any) -> Process:
        """Start a run and wait until its command has written "ready", its first line."""
        process = self.start(*arguments, **options)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def record(self, name: str = "job") -> LockRecord:
        record = self.provider.record(name)
        assert record is not None
        return record

    def is_held(self, name: str = "job") -> bool:
        record = self.provider.record(name)
        return record is not None and record.is_held

    def use_provider(self, source: str) -> None:
        """Make the ``provider`` of a module with this source the store of the runs."""
        self.path("mine.py").write_text(source)
        self.store = "mine:provider"

    def path(self, name: str) -> Path:
        return self.directory / name

    def wait_for(self, name: str) -> str:
        """Wait until the command has written to the file ``name``, and return the text."""
        path = self.path(name)
        wait_until(lambda: path.exists() and path.read_text(), timeout=SECONDS, what=f"something in {name}")
        return path.read_text()

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(SECONDS)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
