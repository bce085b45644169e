"""An HTTP server's clock that a test sets: a proxy rewrites the ``Date`` header of each reply.

For servers in Go, which do not ask libc for the time, so that ``faults/shim.c`` cannot set their clock.
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
    """A front end of the server at ``upstream``. Its clock is :attr:`offset` seconds ahead of the machine's."""

    def __init__(self, upstream: Address, offset: float = 0.0) -> None:
        self.offset = offset
        self.next_offset: float | None = None
        super().__init__(upstream, rewrite=self._with_date)

    def _with_date(self, reply: bytes) -> bytes:
        """A chunk contains all headers of a reply."""
        date = formatdate(time.time() + self.seconds_ahead(), usegmt=True)
        return _DATE.sub(f"Date: {date}".encode(), reply, count=1) if reply.startswith(b"HTTP/") else reply

    def seconds_ahead(self) -> float:
        offset, self.next_offset = self.offset if self.next_offset is None else self.next_offset, None
        return offset


class ClockedProxy(DateProxy):
    """The clock in a file of ``faults/clocks.py`` sets the offset: nanoseconds ahead of the machine's clock."""

    def __init__(self, upstream: Address, file: Path) -> None:
        self._file = file
        super().__init__(upstream)

    def seconds_ahead(self) -> float:
        nanoseconds: int = struct.unpack("q", self._file.read_bytes())[0]
        return nanoseconds / 1e9


class OneReplyWrong(DateProxy):
    """Its clock is wrong by ``error`` seconds for one reply, and right for at least the next :data:`RIGHT` replies."""

    RIGHT = 8

    def __init__(self, upstream: Address, error: float, seed: int = 0) -> None:
        self.odd = 0
        self._error, self._random, self._left = error, Random(seed), self.RIGHT
        self._mutex = threading.Lock()  # each connection has its own thread for replies
        super().__init__(upstream)

    def seconds_ahead(self) -> float:
        with self._mutex:
            self._left -= 1
            if self._left >= 0:
                return 0.0
            self._left = self.RIGHT + self._random.randrange(4)
            self.odd += 1
            return self._error * self._random.choice((-1, 1))
