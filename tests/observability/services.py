"""A monitoring service for listeners: a real HTTP server, which may also fail."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.support.polling import wait_until


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Service:
    """Record each request before replying.

    :ivar statuses: HTTP statuses of its next replies; 200 after them.
    :ivar is_silent: the service accepts requests, and replies only at the end of the test.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.statuses: list[int] = []
        self.is_silent = False
        self.headers: dict[str, str] = {}
        self.body = b"OK"
        """Body and headers of its replies."""
        self.ended = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                url = urlsplit(self.path)
                service.requests.append(
                    Request(self.command, url.path, parse_qs(url.query), dict(self.headers.items()), body)
                )
                if service.is_silent:
                    service.ended.wait(30)
                    return
                self.send_response(service.statuses.pop(0) if service.statuses else 200)
                for name, value in service.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(service.body)))
                self.end_headers()
                self.wfile.write(service.body)

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False  # so that server_close() waits for them
        self.port: int = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def received(self, count: int) -> list[Request]:
        wait_until(lambda: len(self.requests) >= count, what=f"{count} requests")
        assert len(self.requests) == count, self.paths
        return self.requests

    def close(self) -> None:
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10)


@contextmanager
def running_service() -> Iterator[Service]:
    service = Service()
    try:
        yield service
    finally:
        service.close()
