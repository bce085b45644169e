"""A sync httpx client with one deadline for a whole request."""

from __future__ import annotations

import ssl
import threading
from typing import Any

import httpcore
import httpx

from shedlock_py.providers.kit import TimedOut
from shedlock_py.runtime.process import monotonic

_request = threading.local()
"""``until`` is the deadline of the current request of this thread, on the monotonic clock."""


def client_of_threads(
    *, verify: ssl.SSLContext | bool, limits: httpx.Limits, proxy: str | None = None, trust_env: bool = False
) -> httpx.Client:
    """Return a client. The request extension ``until`` is the deadline of a request."""
    return httpx.Client(transport=_Transport(verify, limits, proxy), trust_env=trust_env)


class _Transport(httpx.BaseTransport):
    """Transport for requests that neither send nor receive a byte after their deadline.

    httpx limits only each single read, so a server that sends one byte per second can occupy a thread without end. And
    no limit interrupts the lookup of a host name. Meanwhile the caller gives up, and the undo is sent. If the request
    left after the undo, it would take a lock that nobody releases.

    httpcore lets its users replace the network: https://www.encode.io/httpcore/network-backends/

    :raises RuntimeError: a SOCKS proxy needs the package socksio.
    """

    def __init__(self, verify: ssl.SSLContext | bool, limits: httpx.Limits, proxy: str | None) -> None:
        options: dict[str, Any] = {
            "ssl_context": httpx.create_ssl_context(verify=verify) if isinstance(verify, bool) else verify,
            "max_connections": limits.max_connections,
            "max_keepalive_connections": limits.max_keepalive_connections,
            "keepalive_expiry": limits.keepalive_expiry,
            "network_backend": _Network(),
        }
        self._pool: httpcore.ConnectionPool
        if proxy is None:
            self._pool = httpcore.ConnectionPool(**options)
            return
        via = httpx.Proxy(proxy)
        kind = httpcore.SOCKSProxy if via.url.scheme.startswith("socks5") else httpcore.HTTPProxy
        self._pool = kind(proxy_url=_url(via.url), proxy_auth=via.raw_auth, **options)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        until = _request.until = request.extensions.get("until")
        try:
            response = self._pool.handle_request(
                httpcore.Request(
                    request.method,
                    _url(request.url),
                    headers=request.headers.raw,
                    content=request.read(),
                    extensions=request.extensions,
                )
            )
            try:
                content = response.read()
            finally:
                response.close()
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError) as error:
            if until is not None and monotonic() >= until:
                raise TimedOut("a reply", sent=True) from error
            raise getattr(httpx, type(error).__name__)(str(error)) from error  # httpx has the same class names
        return httpx.Response(response.status, headers=response.headers, content=content)

    def close(self) -> None:
        self._pool.close()


def _url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _left(seconds: float | None, error: type[Exception]) -> float | None:
    """Return ``seconds``, or the time left to this thread's request if that is less."""
    until: float | None = _request.until
    if until is None:
        return seconds
    left = until - monotonic()
    if left <= 0:
        raise error("the time limit of the request")
    return left if seconds is None else min(seconds, left)


class _Network(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self._network = httpcore.SyncBackend()

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any) -> _Stream:
        seconds = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._network.connect_tcp(host, port, seconds, *args, **options))


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(timeout, httpcore.WriteTimeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> _Stream:
        seconds = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, seconds))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def close(self) -> None:
        self._stream.close()
