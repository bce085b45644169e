import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from shedlock_py.testing.proxy import TcpProxy
from tests.support.connections import process_of
from tests.support.polling import wait_until
from tests.support.ports import reserve_port


class Echo:
    """Reply to each line in capitals; record the requests."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self._listener = reserve_port()
        self._listener.listen()
        self.address = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines, suppress(OSError):
            for line in lines:
                self.asked.append(line)
                client.sendall(line.upper())


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(proxy.address, timeout=10)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as echo:
        yield echo


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy(echo.address) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[socket.socket]:
    with connect(proxy) as client:
        yield client


def ask(client: socket.socket, question: bytes) -> bytes:
    client.sendall(question)
    return answer(client, len(question))


def answer(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (chunk := client.recv(size - len(received))):
        received += chunk
    return received


def is_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_counts_a_change_of_direction_not_packets(proxy: TcpProxy, client: socket.socket) -> None:
    assert ask(client, b"one\n") == b"ONE\n"
    assert (proxy.connections, proxy.round_trips) == (1, 1)

    client.sendall(b"in two ")
    wait_until(lambda: proxy.bytes_to_server == len(b"one\nin two "))
    client.sendall(b"pieces\n")
    assert answer(client, len(b"in two pieces\n")) == b"IN TWO PIECES\n"
    assert proxy.round_trips == 2

    large = b"x" * 1_000_000 + b"\n"
    sender = threading.Thread(target=client.sendall, args=(large,))
    sender.start()
    assert answer(client, len(large)) == large.upper()
    sender.join()
    assert proxy.round_trips == 3
    assert proxy.bytes_to_server == proxy.bytes_to_client == len(b"one\nin two pieces\n") + len(large)


def test_counts_each_connection_by_itself(proxy: TcpProxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        first.sendall(b"a\n")
        second.sendall(b"b\n")
        assert (answer(first, 2), answer(second, 2)) == (b"A\n", b"B\n")
        assert (proxy.connections, proxy.open_connections, proxy.round_trips) == (2, 2, 2)
        proxy.reset()
        assert (proxy.connections, proxy.open_connections, proxy.round_trips) == (0, 2, 0)
    wait_until(lambda: proxy.open_connections == 0, what="both connections closed")


def test_drops_one_reply_after_the_server_has_acted(echo: Echo, proxy: TcpProxy) -> None:
    proxy.drop_next_reply(skip=1)
    with connect(proxy) as client:
        assert ask(client, b"ping\n") == b"PING\n"
        assert ask(client, b"pay\n") == b""
    assert echo.asked == [b"ping\n", b"pay\n"]
    assert proxy.replies_dropped == 1
    with connect(proxy) as client:
        assert ask(client, b"again\n") == b"AGAIN\n"


def test_stall_passes_nothing_and_loses_nothing(echo: Echo, proxy: TcpProxy, client: socket.socket) -> None:
    ask(client, b"before\n")
    proxy.stall()
    client.sendall(b"held\n")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)
    assert echo.asked == [b"before\n"]
    proxy.resume()
    client.settimeout(10)
    assert answer(client, 5) == b"HELD\n"


def test_cut_loses_what_a_stall_held_back(echo: Echo, proxy: TcpProxy, client: socket.socket) -> None:
    ask(client, b"before\n")
    proxy.stall()
    client.sendall(b"lost\n")
    proxy.cut()
    assert is_ended(client)
    wait_until(lambda: proxy.open_connections == 0)
    proxy.resume()
    with connect(proxy) as again:
        assert ask(again, b"after\n") == b"AFTER\n"
    assert echo.asked == [b"before\n", b"after\n"]


def test_refuses_new_connections_and_keeps_the_open_ones(proxy: TcpProxy, client: socket.socket) -> None:
    ask(client, b"before\n")
    for _ in range(3):
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert ask(client, b"still\n") == b"STILL\n"
        proxy.accept()
        with connect(proxy) as other:
            assert ask(other, b"new\n") == b"NEW\n"


def test_client_of_a_dead_server_is_turned_away(echo: Echo) -> None:
    with reserve_port() as nobody, TcpProxy(nobody.getsockname()) as proxy, connect(proxy) as client:
        assert is_ended(client)
        assert proxy.connections == 0


def test_close_leaves_no_thread_and_frees_the_port(echo: Echo) -> None:
    before = threading.active_count()
    with TcpProxy(echo.address) as proxy, connect(proxy) as client:
        ask(client, b"hello\n")
        proxy.stall()
        client.sendall(b"held\n")
        proxy.close()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    wait_until(lambda: threading.active_count() <= before + 1, what="only the echo's thread left")


def test_leads_new_connections_elsewhere(proxy: TcpProxy, echo: Echo, client: socket.socket) -> None:
    ask(client, b"hello\n")  # the proxy has accepted the connection, not only the kernel
    with closing(Echo()) as other:
        proxy.retarget(other.address)
        assert ask(client, b"still there\n") == b"STILL THERE\n"
        with connect(proxy) as second:
            assert ask(second, b"over there\n") == b"OVER THERE\n"
        assert (echo.asked, other.asked) == ([b"hello\n", b"still there\n"], [b"over there\n"])


def test_where_a_connection_leads_may_depend_on_its_client(echo: Echo) -> None:
    seen: list[tuple[str, int]] = []

    def lead(client: tuple[str, int]) -> tuple[str, int]:
        seen.append(client)
        if len(seen) == 1:
            raise ConnectionRefusedError("this one is not let in")
        return echo.address  # type: ignore[no-any-return]  # a socket's

    with TcpProxy(lead) as proxy:
        with connect(proxy) as refused:
            assert refused.recv(100) == b""
        with connect(proxy) as client:
            client.sendall(b"hello\n")
            assert client.recv(100) == b"HELLO\n"
            assert seen[1] == client.getsockname()
            pids = [0, os.getpid()]  # no process has the number 0
            assert process_of(client.getsockname(), proxy.address, pids) == os.getpid()
            assert process_of(client.getsockname(), proxy.address, pids[:1]) is None
        assert process_of(seen[1], proxy.address, pids) is None, "its client has closed it"
