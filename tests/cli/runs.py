"""`shedlock run` in processes of its own, away from the terminal of whoever runs the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shedlock_py import LockProvider, provider_from_url
from tests.cli.terminal import NOTHING_IGNORED, PROGRAM
from tests.guides.examples.scripts import PROJECT
from tests.support.polling import wait_until

SECONDS = 30.0


class Runs:
    """Starts runs on one store; all that is left of them is killed at the end."""

    def __init__(self, store: str, directory: Path) -> None:
        self.store = store
        self.directory = directory
        self.provider: LockProvider = provider_from_url(store)
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self,
        *arguments: str,
        command: Sequence[str] | None = None,
        python: str = "",
        program: str = PROGRAM,
        variables: dict[str, str | None] | None = None,
        under: Sequence[str] = (),
        **options: Any,
    ) -> subprocess.Popen[str]:
        """`shedlock run ARGUMENTS -- COMMAND`, started by the program ``under``; the command is `python`'s code, unless
        another is given."""
        path = os.pathsep.join([str(PROJECT), str(self.directory)])  # this very library, wherever the run begins
        given = {"SHEDLOCK_STORE": self.store, "PYTHONPATH": path, **(variables or {})}
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SHEDLOCK_")}
        environ |= {name: value for name, value in given.items() if value is not None}
        words = [sys.executable, "-c", python] if command is None else list(command)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen(
            [*under, sys.executable, "-c", NOTHING_IGNORED + program, "run", *arguments, "--", *words],
            **{**streams, "text": True, "env": environ, "start_new_session": True, **options},
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str, **options: Any) -> tuple[int, str, str]:
        """Start it, wait for it: exit code, standard output, standard error."""
        return self.end(self.start(*arguments, **options))

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=SECONDS)
        return process.returncode, out, err

    def is_held(self, name: str) -> bool:
        record = self.provider.record(name)
        return record is not None and record.is_held

    def path(self, name: str) -> Path:
        return self.directory / name

    def wait_for(self, name: str) -> str:
        """What a command has written to a file of that name, once there is something."""
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
