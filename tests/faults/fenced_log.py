"""A resource that checks fencing tokens, as a database or a file store would that jobs write to.

One file per name holds the greatest token that was accepted. Comparing and writing are one step, under ``flock``,
which the kernel gives back when a process dies; the token is one ``pwrite`` of fixed width: no kill leaves half of it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_WIDTH = 20


class FencedLog:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory

    def write(self, name: str, token: int) -> bool:
        """Whether it was accepted: no greater token has been seen."""
        file = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            greatest = int(os.pread(file, _WIDTH, 0) or b"0")
            if token < greatest:
                return False
            os.pwrite(file, f"{token:0{_WIDTH}d}".encode(), 0)
            return True
        finally:
            os.close(file)
