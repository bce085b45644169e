"""A proxy that keeps a request back, as a network may: the client hears that the connection broke and asks again."""

import socket

from tests.support.database import Address
from tests.support.polling import wait_until
from tests.support.proxy import TcpProxy, _Link


class HoldingProxy(TcpProxy):
    def __init__(self, upstream: Address) -> None:
        self._marker = b""
        self._skip = 0
        self._held: tuple[_Link, bytes] | None = None
        super().__init__(upstream)

    def hold(self, marker: str, *, skip: int = 0) -> None:
        """Keep the next request back that contains `marker`, and close the client's end of its connection.

        The first `skip` of them pass.
        """
        self._skip = skip
        self._marker = marker.encode()

    @property
    def holds(self) -> bool:
        return self._held is not None

    def deliver(self) -> None:
        """Let the server have it now; returns when the server has answered."""
        assert self._held is not None
        (link, chunk), self._held = self._held, None
        link.server.sendall(chunk)
        # The reply finds nobody, which ends the link.
        wait_until(lambda: link not in self._links, what="a reply to what was kept back")

    def _may_pass(self, link: _Link, chunk: bytes, *, to_server: bool) -> bool:
        if to_server and self._marker and self._marker in chunk:
            self._skip -= 1
            if self._skip >= 0:
                return super()._may_pass(link, chunk, to_server=to_server)
            self._marker = b""
            self._held = link, chunk
            link.client.shutdown(socket.SHUT_RDWR)
            return False
        return super()._may_pass(link, chunk, to_server=to_server)
