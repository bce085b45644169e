"""The command in a process of its own, on a terminal of a given size."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

PROGRAM = "from shedlock_py.__main__ import main; main()"
# Whoever runs the tests may ignore these signals (nohup, a shell's background job), which children inherit.
NOTHING_IGNORED = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "[signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGQUIT)]; "
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", NOTHING_IGNORED + PROGRAM, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """That of the tests, without what would change colours or sizes."""
    unwanted = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **variables}


class Terminal:
    """One run of ``shedlock`` on a pseudo-terminal; ``raw`` is what it wrote so far."""

    def __init__(self, *arguments: str, columns: int = 80, lines: int = 24, **variables: str) -> None:
        self.raw = ""
        self._side, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._process = subprocess.Popen(
            command(*arguments), stdin=other, stdout=other, stderr=other, env=environment(**variables)
        )
        os.close(other)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        os.close(self._side)

    @property
    def text(self) -> str:
        """Without colours and movements of the cursor."""
        return _ESCAPES.sub("", self.raw)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def read_until(self, condition: Callable[[str], object], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not condition(self.text):
            assert time.monotonic() < deadline, f"not seen within {seconds} s; there is:\n{self.text}"
            assert self._read(0.2) or self._process.poll() is None or condition(self.text), self.text

    def end(self, seconds: float = 20) -> int:
        """Read all that it writes until it ends; its exit code."""
        deadline = time.monotonic() + seconds
        while self._read(0.2) or self._process.poll() is None:
            assert time.monotonic() < deadline, f"still running; there is:\n{self.text}"
        return self._process.wait(10)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._side], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self._side, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)
