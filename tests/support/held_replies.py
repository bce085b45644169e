"""A reply that is delayed for as long as a test wants."""

from __future__ import annotations

from threading import Event

LONGEST_SECONDS = 60.0


class HeldReply:
    """The ``rewrite`` of a :class:`TcpProxy` that keeps one reply back and passes all other replies on."""

    def __init__(self) -> None:
        self._holds_next = False
        self.has_come = Event()
        """Set when the server has sent the held reply."""
        self._may_go = Event()

    def hold_next(self) -> None:
        """Hold the server's next chunk, on any connection."""
        self._holds_next = True

    def let_go(self) -> None:
        self._may_go.set()

    def __call__(self, chunk: bytes) -> bytes:
        if self._holds_next:
            self._holds_next = False
            self.has_come.set()
            self._may_go.wait(LONGEST_SECONDS)
        return chunk
