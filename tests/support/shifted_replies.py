"""A proxy that sends the reply to another request."""

from __future__ import annotations

import re
import threading
from random import Random

from shedlock_py.testing.proxy import Address, TcpProxy

_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


class ShiftingProxy(TcpProxy):
    """For clients that send one request at a time on each connection.

    :param chance: the probability that a reply is the first shifted reply on its connection.
    """

    def __init__(self, upstream: Address, chance: float = 0.0, seed: int = 0) -> None:
        self.odd = 0
        self._chance, self._random = chance, Random(seed)
        self._last_shifted = 0
        self._of_connection = threading.local()  # each connection has its own thread for replies
        super().__init__(upstream, rewrite=self._reply)

    def shift(self) -> None:
        """From now on, reply to each request with the previous request's reply, until the client opens another
        connection."""
        self._last_shifted = self.connections

    def _reply(self, chunk: bytes) -> bytes:
        mine = self._of_connection
        if not hasattr(mine, "number"):
            mine.number, mine.part, mine.former, mine.is_shifted = self.connections, b"", b"", False
        mine.part += chunk
        head, separator, body = mine.part.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        assert length or not separator, "each reply of these servers has its length"
        if length is None or len(body) < int(length[1]):
            return b""
        former, mine.former, mine.part = mine.former, mine.part, b""
        is_now = mine.number <= self._last_shifted or self._random.random() < self._chance
        mine.is_shifted = bool(former) and (mine.is_shifted or is_now)
        self.odd += mine.is_shifted
        reply: bytes = former if mine.is_shifted else mine.former
        return reply
