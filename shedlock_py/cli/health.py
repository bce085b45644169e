"""HTTP health checks of ``shedlock lead``, for Kubernetes probes and load balancers."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shedlock_py.cli.listening import listening
from shedlock_py.election.elector import LeaderElector

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 32
"""One more connection closes the oldest connection, because this node needs its file descriptors to lead."""
ACCEPT_PAUSE = 0.1
"""Seconds after a failed accept(). The connection still waits, so the next attempt would follow at once."""


@contextmanager
def served(elector: LeaderElector, host: str | None, port: int) -> Iterator[None]:
    """Serve ``/`` (200 while this node takes part) and ``/leader`` (200 while it leads). Otherwise the code is 503."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "shedlock", ""

        def do_GET(self) -> None:
            # Computed for each request, because a stored flag could be outdated.
            states = {"/": elector.takes_part, "/leader": elector.is_leader()}
            path = self.path.partition("?")[0]
            self.send_response(404 if path not in states else 200 if states[path] else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing, because a probe comes every few seconds."""

    connections: list[socket.socket] = []
    """Oldest first. A list's append(), pop() and remove() are atomic."""

    class Server(ThreadingHTTPServer):
        def get_request(self) -> tuple[socket.socket, Any]:
            try:
                return super().get_request()
            except OSError:
                time.sleep(ACCEPT_PAUSE)
                raise

        def process_request(self, request: Any, client_address: Any) -> None:
            if len(connections) >= MOST_CONNECTIONS:
                with suppress(OSError):  # the connection has just ended
                    connections.pop(0).shutdown(socket.SHUT_RDWR)
            connections.append(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            with suppress(ValueError):  # process_request() has removed it as the oldest
                connections.remove(request)
            super().shutdown_request(request)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Write nothing about a client that is gone. A load balancer's check may reset its connection."""
            if not isinstance(sys.exception(), OSError):
                super().handle_error(request, client_address)

    listener = listening(host or LOOPBACK, port, "--health-port")
    server = Server(listener.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()  # ThreadingHTTPServer has made an IPv4 socket
    server.socket = listener
    threading.Thread(target=server.serve_forever, args=(0.1,), name="shedlock-health", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
