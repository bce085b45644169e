"""The command line in a new process, with or without a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.forked import Process, Program
from tests.support.scripts import PROJECT

PROGRAM = "from shedlock_py.__main__ import main; main()"
# The tests' process may ignore these signals (nohup, a shell's background job), and children inherit that.
NOTHING_IGNORED = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "[signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGQUIT)]; "
)
# If the leader of a session opens a terminal, it becomes the controlling terminal.
_ON_TERMINAL = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execvp(sys.argv[1], sys.argv[1:])"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def command(*arguments: str, program: str = PROGRAM) -> list[str]:
    return [sys.executable, "-c", NOTHING_IGNORED + program, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """Return the tests' environment, without variables that change colours or sizes."""
    unwanted = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    path = {"PYTHONPATH": str(PROJECT)}
    return {**kept, **path, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **variables}


class Terminal:
    """A program as the leader of a session on a pseudo-terminal; ``raw`` is its output so far."""

    def __init__(
        self, words: Sequence[str], *, columns: int = 80, lines: int = 24, cwd: Path | None = None, **variables: str
    ) -> None:
        self.raw = ""
        self._side, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        options: dict[str, Any] = {"stdin": other, "stdout": other, "stderr": other}
        options |= {"cwd": cwd, "env": environment(**variables)}
        self._process: Process
        if words[0] == sys.executable:
            self._process = Program(words[1:], on_terminal=True, **options)
        else:
            start = [sys.executable, "-I", "-S", "-c", _ON_TERMINAL, *words]
            self._process = subprocess.Popen(start, text=True, start_new_session=True, **options)
        os.close(other)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        os.close(self._side)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        """The output without colours and cursor movements."""
        return _ESCAPES.sub("", self.raw)

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def hang_up(self) -> None:
        os.close(self._side)
        self._side = os.open(os.devnull, os.O_RDONLY)

    def read_until(self, expected: str | Callable[[str], object], seconds: float = 20) -> None:
        """Read until the output contains a text or fulfils a condition."""
        deadline = time.monotonic() + seconds

        def is_there() -> object:
            return expected in self.text if isinstance(expected, str) else expected(self.text)

        while not is_there():
            assert time.monotonic() < deadline, f"not seen within {seconds} s; there is:\n{self.text}"
            assert self.read() or self._process.poll() is None or is_there(), self.text

    def end(self, seconds: float = 20) -> int:
        """Read all output until the program ends. Return its exit code."""
        deadline = time.monotonic() + seconds
        while self.read() or self._process.poll() is None:
            assert time.monotonic() < deadline, f"still running; there is:\n{self.text}"
        return self._process.wait(10)

    def read(self, seconds: float = 0.2) -> bool:
        """Read for at most so many seconds. Return whether any text came."""
        if not select.select([self._side], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._side, 65536)
        except OSError:  # the other side is closed
            data = b""
        if not data:
            time.sleep(0.01)  # select does not wait at the end of a file
        self.raw += data.decode(errors="replace")
        return bool(data)
