"""A TCP proxy that counts round trips and, on demand, makes network faults.

A round trip is a change of direction: the client has sent something and the server then replies. The count does not
depend on the number of packets, so it is the same on every run. The proxy counts a reply before it passes it on: a
client that has the reply finds it counted.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from shedlock_py.testing.ports import listen, reserve_port

Address = tuple[str, int]
"""Host and port."""
Delay = tuple[float, float]
"""Minimum and maximum, in seconds."""
NO_DELAY: Delay = (0.0, 0.0)

_CHUNK = 65536
_JOIN_TIMEOUT = 10.0


class TcpProxy:
    """A proxy that listens until `close()`. Use it as a context manager; any thread may call it.

    :param upstream: the server's address, or a function from the client's address to the server's.
    :param rewrite: gets each chunk that the server sends, and returns the chunk for the client.
    """

    def __init__(
        self, upstream: Address | Callable[[Address], Address], *, rewrite: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._upstream = upstream
        self._rewrite = rewrite
        self._changed = threading.Condition()
        self._links: set[_Link] = set()
        self._pumps: set[threading.Thread] = set()
        self._stalled = {True: False, False: False}  # key: True is towards the server
        self._delays = {True: NO_DELAY, False: NO_DELAY}
        self._replies_until_drop: int | None = None
        self._drop_marker = b""
        self._marked_drops = 0
        self._drop_skip = 0
        self._dropping: set[_Link] = set()
        self._hold_marker = b""
        self._hold_skip = 0
        self._late_request: tuple[_Link, bytes] | None = None
        self._silent: set[_Link] = set()
        self._silence_marker = b""
        self._silence_skip = 0
        self._silences_left: int | None = None
        # Counts since the last reset().
        self.round_trips = 0
        """Replies, including dropped replies. A server's greeting, such as MySQL's, does not count."""
        self.connections = 0
        """Connections that clients opened."""
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self.replies_dropped = 0
        self._port = reserve_port()
        self.address: Address = self._port.getsockname()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self.accept()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def open_connections(self) -> int:
        """Number of connections that are open now; `reset()` does not change it."""
        with self._changed:
            return len(self._links)

    def reset(self) -> None:
        """Set the counts to zero. Connections and faults do not change."""
        with self._changed:
            self.connections = self.round_trips = self.replies_dropped = 0
            self.bytes_to_server = self.bytes_to_client = 0

    # Faults

    def drop_next_reply(self, *, skip: int = 0) -> None:
        """Pass the next request on, drop its reply and close that connection.

        The first `skip` replies pass: for example, replies to a ping or a prepare before the statement under test.
        """
        with self._changed:
            self._replies_until_drop = skip

    def drop_replies_to(self, marker: str, times: int = 1, *, skip: int = 0) -> None:
        """Pass the next `times` requests that contain `marker` on, drop their replies and close their connections.

        The first `skip` requests with `marker` get their replies.
        """
        with self._changed:
            self._drop_marker, self._marked_drops, self._drop_skip = marker.encode(), times, skip

    @property
    def drops_left(self) -> int:
        """Number of replies that :meth:`drop_replies_to` has still to drop."""
        return self._marked_drops

    def hold(self, marker: str, *, skip: int = 0) -> None:
        """Keep back the next request that contains `marker`, and close the client's end of its connection.

        The client sees a broken connection and sends the request again. The first `skip` requests pass.
        """
        with self._changed:
            self._hold_marker, self._hold_skip = marker.encode(), skip

    @property
    def holds(self) -> bool:
        """Whether a request is kept back."""
        return self._late_request is not None

    def deliver(self) -> None:
        """Pass on the request that is kept back, and return when the server has replied."""
        assert self._late_request is not None
        (link, chunk), self._late_request = self._late_request, None
        link.server.sendall(chunk)
        with self._changed:  # the client has gone, so the reply ends the link
            assert self._changed.wait_for(lambda: link not in self._links, _JOIN_TIMEOUT), "no reply to a late request"

    def silence(self, marker: str = "", *, skip: int = 0, times: int | None = None) -> None:
        """Pass requests on, but drop every reply on the connections that are open now. New connections work.

        With a `marker`, a connection becomes silent when a request contains the marker. The first `skip` of these
        requests pass; `times` limits how many connections become silent (None: all).
        """
        with self._changed:
            self._silence_marker, self._silence_skip, self._silences_left = marker.encode(), skip, times
            self._silent = set() if marker else set(self._links)

    @property
    def silent_connections(self) -> int:
        """Number of connections that have become silent, including closed connections."""
        with self._changed:
            return len(self._silent)

    def stall(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Pass nothing on in these directions until `resume()`. Keep all connections, accept new ones, and lose
        nothing."""
        with self._changed:
            self._stalled = {True: to_server, False: to_client}

    def resume(self) -> None:
        with self._changed:
            self._stalled = {True: False, False: False}
            self._changed.notify_all()

    def delay(self, *, to_server: Delay = NO_DELAY, to_client: Delay = NO_DELAY) -> None:
        """Hold back each chunk for a random time between minimum and maximum. Later chunks wait for earlier chunks."""
        self._delays = {True: to_server, False: to_client}

    def refuse(self) -> None:
        """Refuse new connections until `accept()`. Open connections stay."""
        if self._listener is not None and self._acceptor is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(); close() would not
            self._acceptor.join(_JOIN_TIMEOUT)
            self._listener.close()
            self._listener = self._acceptor = None

    def accept(self) -> None:
        if self._acceptor is None:
            self._listener = listen(self.address[1])
            self._acceptor = threading.Thread(target=self._accept_from, args=(self._listener,), daemon=True)
            self._acceptor.start()

    def retarget(self, upstream: Address) -> None:
        """Lead new connections to another server, as a fail-over does. Open connections stay."""
        self._upstream = upstream

    def cut(self) -> None:
        """Close every connection at once. Chunks that a stall holds back are lost."""
        with self._changed:
            for link in self._links:
                link.cut()
            self._changed.notify_all()

    def close(self) -> None:
        """Close all connections and give the port back."""
        self.refuse()
        self._port.close()
        self.cut()
        with self._changed:
            pumps = list(self._pumps)
        for pump in pumps:
            pump.join(_JOIN_TIMEOUT)

    def _accept_from(self, listener: socket.socket) -> None:
        while True:
            try:
                client, its_address = listener.accept()
            except OSError:
                return
            try:
                upstream = self._upstream(its_address) if callable(self._upstream) else self._upstream
                server = socket.create_connection(upstream, timeout=_JOIN_TIMEOUT)
            except OSError:
                client.close()
                continue
            self._open(_Link(client, server))

    def _open(self, link: _Link) -> None:
        pumps = {
            threading.Thread(target=self._pump, args=(link, link.client, link.server), daemon=True),
            threading.Thread(target=self._pump, args=(link, link.server, link.client), daemon=True),
        }
        with self._changed:
            self.connections += 1
            self._links.add(link)
            self._pumps |= pumps
        for pump in pumps:
            pump.start()

    def _pump(self, link: _Link, source: socket.socket, sink: socket.socket) -> None:
        try:
            while chunk := source.recv(_CHUNK):
                if not self._may_pass(link, chunk, to_server=source is link.client):
                    break
                sink.sendall(chunk if self._rewrite is None or source is link.client else self._rewrite(chunk))
            else:
                if self._may_pass(link, b"", to_server=source is link.client):
                    sink.shutdown(socket.SHUT_WR)
        except OSError:
            link.cut()
        finally:
            with self._changed:
                self._pumps.discard(threading.current_thread())
                link.pumps -= 1
                if link.pumps == 0:
                    link.client.close()
                    link.server.close()
                    self._links.discard(link)
                self._changed.notify_all()

    def _may_pass(self, link: _Link, chunk: bytes, *, to_server: bool) -> bool:
        if chunk and any(self._delays[to_server]):
            time.sleep(random.uniform(*self._delays[to_server]))
        with self._changed:
            self._changed.wait_for(lambda: not self._stalled[to_server] or link.is_cut)
            if link.is_cut:
                return False
            if to_server:
                if self._is_held(link, chunk):
                    return False
                if self._marked_drops and self._drop_marker in chunk:
                    self._drop_skip -= 1
                    if self._drop_skip < 0:
                        self._marked_drops -= 1
                        self._dropping.add(link)  # mark this connection: a reply on another connection may come first
                if self._silence_marker and self._silence_marker in chunk and self._silences_left != 0:
                    self._silence_skip -= 1
                    if self._silence_skip < 0:
                        self._silences_left = None if self._silences_left is None else self._silences_left - 1
                        self._silent.add(link)
                self.bytes_to_server += len(chunk)
                link.awaits_reply = link.awaits_reply or bool(chunk)
            elif link in self._silent:
                return False
            elif chunk:
                if link.awaits_reply:
                    link.awaits_reply = False
                    self.round_trips += 1
                    if self._is_reply_to_drop(link):
                        link.cut()
                        return False
                self.bytes_to_client += len(chunk)
            return True

    def _is_held(self, link: _Link, chunk: bytes) -> bool:
        if not self._hold_marker or self._hold_marker not in chunk:
            return False
        self._hold_skip -= 1
        if self._hold_skip >= 0:
            return False
        self._hold_marker = b""
        self._late_request = link, chunk
        link.client.shutdown(socket.SHUT_RDWR)
        return True

    def _is_reply_to_drop(self, link: _Link) -> bool:
        if link in self._dropping:
            self._dropping.discard(link)
            self.replies_dropped += 1
            return True
        if self._replies_until_drop is None:
            return False
        if self._replies_until_drop > 0:
            self._replies_until_drop -= 1
            return False
        self._replies_until_drop = None
        self.replies_dropped += 1
        return True


class _Link:
    """A client's connection and its counterpart at the server. Guarded by the proxy's lock."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.pumps = 2
        self.awaits_reply = False
        self.is_cut = False
        for sock in (client, server):
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def cut(self) -> None:
        self.is_cut = True
        for sock in (self.client, self.server):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
