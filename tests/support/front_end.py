"""An HTTP server in front of another server: it passes requests on, or replies with an error like Amazon's."""

from __future__ import annotations

import http.client
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from shedlock_py.testing.proxy import Address


@dataclass(frozen=True)
class Fault:
    """The reply of the front end instead of the server's reply.

    :ivar marker: text in a header or in the body of the requests that get this reply. Empty for all requests.
    """

    status: int
    body: bytes
    marker: str = ""
    has_date: bool = True
    content_type: str = "application/x-amz-json-1.0"


class FrontEnd:
    """Listen until the end of the ``with`` block."""

    def __init__(self, upstream: Address) -> None:
        self.fault: Fault | None = None
        self.ignored: set[tuple[str, str]] = set()
        """A method and a header, as in ``("PUT", "If-Match")``: the header is dropped, and so is the request's
        signature."""
        self.cuts_off = False
        """Whether the connection is cut before the end of each reply."""
        self.requests: list[str] = []
        """Headers and body of each request that a fault replied to."""
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request, fault = f"{self.headers}{body.decode(errors='replace')}", front.fault
                if fault is not None and fault.marker in request:
                    front.requests.append(request)
                    self.reply(fault.status, {"Content-Type": fault.content_type}, fault.body, fault.has_date)
                    return
                connection = http.client.HTTPConnection(*upstream, timeout=30)
                connection.request(self.command, self.path, body, self.passed_on())
                reply = connection.getresponse()
                self.reply(reply.status, dict(reply.headers), reply.read(), fault is None or fault.has_date)
                connection.close()

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

            def passed_on(self) -> dict[str, str]:
                headers = dict(self.headers)
                if ignored := [name for method, name in front.ignored if method == self.command and name in headers]:
                    for name in ("Authorization", *ignored):
                        del headers[name]
                return headers

            def reply(self, status: int, headers: dict[str, str], body: bytes, has_date: bool) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("date", "content-length", "transfer-encoding"):
                        self.send_header(name, value)
                if has_date:
                    self.send_header("Date", self.date_time_string())
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if front.cuts_off:
                    body, self.close_connection = body[:-10], True
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address: Address = ("127.0.0.1", self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def reset(self) -> None:
        self.fault, self.ignored, self.cuts_off = None, set(), False
        self.requests.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
