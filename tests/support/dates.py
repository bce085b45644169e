"""The clock of an HTTP server that a test sets: a proxy that writes the ``Date`` header of each reply anew.

For servers whose clock cannot be set: a program in Go does not ask libc for the time, so ``faults/shim.c`` does not
reach it.
"""

from __future__ import annotations

import re
import struct
import threading
import time
from email.utils import formatdate
from pathlib import Path
from random import Random

from shedlock_py.testing.proxy import Address, TcpProxy

_DATE = re.compile(rb"(?im)^date: [^\r\n]*")


class DateProxy(TcpProxy):
    """A front end of the server at ``upstream`` whose clock is ahead of the machine's by :attr:`offset` seconds."""

    def __init__(self, upstream: Address, offset: float = 0.0) -> None:
        self.offset = offset
        self.next_offset: float | None = None
        """For one reply."""
        super().__init__(upstream, rewrite=self._with_date)

    def _with_date(self, reply: bytes) -> bytes:
        """The headers of one reply are in one chunk."""
        date = formatdate(time.time() + self.seconds_ahead(), usegmt=True)
        return _DATE.sub(f"Date: {date}".encode(), reply, count=1) if reply.startswith(b"HTTP/") else reply

    def seconds_ahead(self) -> float:
        offset, self.next_offset = self.offset if self.next_offset is None else self.next_offset, None
        return offset


class ClockedProxy(DateProxy):
    """Its clock is the one in a file of ``faults/clocks.py``: nanoseconds that it is ahead of the machine's."""

    def __init__(self, upstream: Address, file: Path) -> None:
        self._file = file
        super().__init__(upstream)

    def seconds_ahead(self) -> float:
        nanoseconds: int = struct.unpack("q", self._file.read_bytes())[0]
        return nanoseconds / 1e9


class OneReplyWrong(DateProxy):
    """Its clock is ``error`` seconds ahead or behind for one reply, and right for the next :data:`RIGHT` at least."""

    RIGHT = 8

    def __init__(self, upstream: Address, error: float, seed: int = 0) -> None:
        self.odd = 0
        self._error, self._random, self._left = error, Random(seed), self.RIGHT
        self._mutex = threading.Lock()  # each connection has a thread for its replies
        super().__init__(upstream)

    def seconds_ahead(self) -> float:
        with self._mutex:
            self._left -= 1
            if self._left >= 0:
                return 0.0
            self._left = self.RIGHT + self._random.randrange(4)
            self.odd += 1
            return self._error * self._random.choice((-1, 1))
