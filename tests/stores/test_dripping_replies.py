"""A server that sends its replies byte by byte, each within the time limit of a read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from shedlock_py import LockRequest, ProviderUnreachable
from tests.support.polling import wait_until
from tests.support.ports import reserve_port
from tests.support.stores import Store


class DrippingServer:
    """:ivar ended: how many connections the client has closed."""

    def __init__(self, begin: bytes) -> None:
        self.ended = 0
        self._begin = begin
        self._listener = reserve_port()
        self._listener.listen(64)
        self.address: tuple[str, int] = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._drip, args=(connection,), daemon=True).start()

    def _drip(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(0.05)
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + self._begin)
            while True:
                try:
                    if not connection.recv(65536):
                        break
                except TimeoutError:
                    pass
                except OSError:
                    break
                try:
                    connection.sendall(b"x")
                except OSError:
                    break
        self.ended += 1

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("begin", [b"X-Slow: ", b"Content-Length: 100000\r\n\r\n"], ids=["header", "body"])
@pytest.mark.parametrize("store_name", ["etcd", "kubernetes"])
def test_i13_a_server_that_drips_its_replies_keeps_no_thread(
    store_name: str, begin: bytes, make_store: Callable[..., Store]
) -> None:
    store = make_store(store_name).sync()
    with ExitStack() as stack:
        server = DrippingServer(begin)
        stack.callback(server.close)
        provider = stack.enter_context(store.provider([server.address], timeout="300ms"))
        for _ in range(3):
            with pytest.raises(ProviderUnreachable, match="no reply in the time limit"):
                provider.acquire(LockRequest("job", "1m"))
        wait_until(lambda: server.ended >= 3, timeout=30, what="the connections of requests that were given up closed")
