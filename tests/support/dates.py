"""The clock of an HTTP server that a test sets: a proxy that writes the ``Date`` header of each reply anew.

For servers whose clock cannot be set: a program in Go does not ask libc for the time, so ``faults/shim.c`` does not
reach it.
"""

from __future__ import annotations

import re
import struct
import time
from email.utils import formatdate
from pathlib import Path

from shedlock_py.testing.proxy import Address, TcpProxy

_DATE = re.compile(rb"(?im)^date: [^\r\n]*")


class DateProxy(TcpProxy):
    """A front end of the server at ``upstream`` whose clock is ahead of the machine's by :attr:`offset` seconds."""

    def __init__(self, upstream: Address, offset: float = 0.0) -> None:
        self.offset = offset
        super().__init__(upstream, rewrite=self._with_date)

    def _with_date(self, reply: bytes) -> bytes:
        """The headers of one reply are in one chunk."""
        date = formatdate(time.time() + self.seconds_ahead(), usegmt=True)
        return _DATE.sub(f"Date: {date}".encode(), reply, count=1) if reply.startswith(b"HTTP/") else reply

    def seconds_ahead(self) -> float:
        return self.offset


class ClockedProxy(DateProxy):
    """Its clock is the one in a file of ``faults/clocks.py``: nanoseconds that it is ahead of the machine's."""

    def __init__(self, upstream: Address, file: Path) -> None:
        self._file = file
        super().__init__(upstream)

    def seconds_ahead(self) -> float:
        nanoseconds: int = struct.unpack("q", self._file.read_bytes())[0]
        return nanoseconds / 1e9
