"""A proxy and an address from which no replies come, each in its own way."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from shedlock_py.testing.proxy import TcpProxy, _Link
from tests.support.database import Address
from tests.support.ports import bind_free_port


class SilentProxy(TcpProxy):
    """Passes requests with the marker on, and swallows all replies on their connections from then on."""

    def __init__(self, upstream: Address, marker: str, times: int | None = None) -> None:
        """:param times: how many connections become silent; None: all that carry such a request."""
        self.silent: set[_Link] = set()
        self.times = times
        self._marker = marker.encode()
        super().__init__(upstream)

    def _may_pass(self, link: _Link, chunk: bytes, *, to_server: bool) -> bool:
        if to_server and self._marker in chunk and self.times != 0:
            self.times = None if self.times is None else self.times - 1
            self.silent.add(link)
        return (to_server or link not in self.silent) and super()._may_pass(link, chunk, to_server=to_server)


@contextmanager
def black_hole() -> Iterator[Address]:
    """An address that neither accepts nor refuses connections: the listener's queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(bind_free_port())
        listener.listen(0)
        with suppress(TimeoutError):
            while True:
                waiting = stack.enter_context(socket.socket())
                waiting.settimeout(0.5)
                waiting.connect(listener.getsockname())
        yield listener.getsockname()
