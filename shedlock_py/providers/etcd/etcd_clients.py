"""Clients for threads and for asyncio: the same exchange with etcd over httpx."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import finalize

import httpx

from shedlock_py.providers.cas import CasReply, OtherReplyError, ServerTime
from shedlock_py.providers.cas.over_http import client_of_threads
from shedlock_py.providers.etcd.urls import Place
from shedlock_py.providers.etcd.wire import Command, EtcdError, reply_of, request_of, value_of
from shedlock_py.providers.kit import NotSent, TimedOut, call_within, close_with_loop, within
from shedlock_py.runtime.process import PerLoop, PerProcess, monotonic
from shedlock_py.runtime.program import Program, drive, drive_async
from shedlock_py.runtime.threads import WorkerPool

POOL_SIZE = 16
_LIMITS = httpx.Limits(max_connections=POOL_SIZE, max_keepalive_connections=POOL_SIZE)
_SHARE = 0.4
"""The share of the time limit for one member, so that time is left for another member."""


class Request(NamedTuple):
    """A request to one member."""

    url: str
    body: dict[str, Any]
    headers: dict[str, str]


class Exchange:
    """The cluster as one process or event loop knows it: the member that replied last, and a token for the user."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._endpoints = place.endpoints
        self._token = ""

    def of(self, command: Command) -> Program[Request, httpx.Response, CasReply]:
        """Execute ``command`` on the first member that can be reached."""
        path, body = request_of(command, self._place.prefix)
        may_log_in, token = bool(self._place.cluster.user), self._token
        may_move = may_log_in
        if may_log_in and not token:
            token = yield from self._log_in()
        while True:
            sent_at = monotonic()
            response = yield from self._request(path, body, token)
            received_at = monotonic()
            try:
                reply = reply_of(response.status_code, response.text)
            except EtcdError as error:
                if not error.is_old_login or not (may_log_in or may_move):
                    raise
                if may_log_in:
                    may_log_in = False  # the new token is not too old
                    token = yield from self._log_in()
                else:  # this member does not know the new token yet
                    may_move = False
                    self._avoid(self._endpoints[0])
            else:
                time = ServerTime.from_header(response.headers.get("Date"), sent_at, received_at)
                return CasReply(value_of(command, self._place.prefix, reply), time)

    def _log_in(self) -> Program[Request, httpx.Response, str]:
        """Return a new token, and keep it for later commands."""
        body = {"name": self._place.cluster.user, "password": self._place.cluster.password}
        response = yield from self._request("/v3/auth/authenticate", body)
        token: str = reply_of(response.status_code, response.text)["token"]
        self._token = token
        return token

    def _request(
        self, path: str, body: dict[str, Any], token: str = ""
    ) -> Program[Request, httpx.Response, httpx.Response]:
        headers = {"Authorization": token} if token else {}
        failed: list[str] = []
        for endpoint in self._endpoints:
            try:
                response = yield Request(endpoint + path, body, headers)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failed.append(f"{endpoint}: {error}" if str(error) else f"{endpoint}: no connection in time")
                self._avoid(endpoint)
            except httpx.PoolTimeout as error:
                raise TimedOut("a free connection", sent=False) from error
            except (httpx.TransportError, OSError):  # asyncio can raise a bare ssl.SSLError
                self._avoid(endpoint)  # the kit repeats the request, which then goes to another member
                raise
            else:
                if response.status_code >= 500:
                    self._avoid(endpoint)  # it has no leader, or is a learner: the next request goes to another member
                return response
        raise NotSent from httpx.ConnectError("; ".join(failed))

    def _avoid(self, endpoint: str) -> None:
        # A new list, because other threads would see the old list empty during sort(). The order stays otherwise.
        self._endpoints = sorted(self._endpoints, key=endpoint.__eq__)

    def timeout(self, seconds: float | None) -> httpx.Timeout:
        """Return httpx's limits for one request."""
        if seconds is None:
            return httpx.Timeout(None)
        share = seconds if len(self._endpoints) == 1 else seconds * _SHARE
        return httpx.Timeout(share, connect=seconds / (len(self._endpoints) + 1), pool=seconds)


class _Connections:
    """The open connections of a process or an event loop.

    :param client: creates an ``httpx.Client`` or an ``httpx.AsyncClient``.
    """

    def __init__(self, place: Place, client: Callable[..., Any]) -> None:
        self.exchange = Exchange(place)
        self.clients: list[Any] = []
        """The oldest client first. A replaced client is closed later, because requests may wait for its replies."""
        self._place = place
        self._client = client
        self._files: tuple[bytes, ...] | None = None
        self._has_failed = False

    def current(self) -> Any:
        """Return the client for the next request.

        Certificates expire and are replaced. If the last request failed and the files of the URL have changed, a new
        client reads them.
        """
        if self._has_failed or self._files is None or not self.clients:
            certificates = self._place.certificates
            files = certificates.content() if certificates else ()
            if files != self._files or not self.clients:
                verify = certificates.context() if certificates else False
                self.clients.append(self._client(verify=verify, limits=_LIMITS, trust_env=False))
            self._files = files
        return self.clients[-1]

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Drop all connections after a reply that belongs to another request."""
        try:
            yield
        except OtherReplyError:
            self._files = None
            raise

    @contextmanager
    def errors(self, client: Any) -> Iterator[None]:
        """Note whether a request failed."""
        try:
            yield
            self._has_failed = False
        except (httpx.TransportError, OSError):
            self._has_failed = True
            raise
        except RuntimeError as error:
            if client.is_closed:  # by the provider's close()
                raise NotSent from error
            raise


class _Threads(_Connections):
    def __init__(self, place: Place) -> None:
        super().__init__(place, client_of_threads)
        self.workers = WorkerPool(POOL_SIZE, "shedlock-etcd")
        self._mutex = threading.Lock()  # used only in worker threads, which signal handlers do not interrupt
        # For a provider that is never closed. At the end of the process, the system closes the connections.
        finalize(self, _close, self.clients, 0).atexit = False

    def post(self, request: Request, limits: httpx.Timeout, until: float | None) -> httpx.Response:
        with self._mutex:
            http = self.current()
            _close(self.clients, 2)
        with self.errors(http):
            response: httpx.Response = http.post(
                request.url,
                json=request.body,
                headers=request.headers,
                timeout=limits,
                extensions={"until": until},
            )
            return response

    def close(self) -> None:
        _close(self.clients, 0)


def _close(clients: list[httpx.Client], most: int) -> None:
    while len(clients) > most:
        clients.pop(0).close()


class EtcdClient:
    """A client for threads. A worker thread sends each request, so that one time limit covers all of it."""

    def __init__(self, place: Place) -> None:
        self.shown = place.shown
        self._of_process = PerProcess(partial(_Threads, place))

    def execute(self, command: Command, timeout: float | None) -> CasReply:
        mine = self._of_process.get()
        limits = mine.exchange.timeout(timeout)
        until = None if timeout is None else monotonic() + timeout

        def post(request: Request) -> httpx.Response:
            return mine.post(request, limits, until)

        def work() -> CasReply:
            with mine.in_order():
                return drive(mine.exchange.of(command), post)

        reply: CasReply = call_within(mine.workers, timeout, "a reply", work, sent=True, in_order=True)
        return reply

    def close(self) -> None:
        mine = self._of_process.pop()
        if mine is not None:
            mine.close()


class _Tasks(_Connections):
    def __init__(self, place: Place) -> None:
        super().__init__(place, httpx.AsyncClient)
        self._at_end: AsyncGenerator[None] | None = None

    async def post(self, request: Request, limits: httpx.Timeout) -> httpx.Response:
        if self._at_end is None:
            self._at_end = close_with_loop(self.close)
            await anext(self._at_end)
        http = self.current()
        await self._close(2)
        with self.errors(http):
            response: httpx.Response = await http.post(
                request.url, json=request.body, headers=request.headers, timeout=limits
            )
            return response

    async def close(self) -> None:
        await self._close(0)

    async def _close(self, most: int) -> None:
        while len(self.clients) > most:
            await self.clients.pop(0).aclose()


class AsyncEtcdClient:
    """A client for asyncio."""

    def __init__(self, place: Place) -> None:
        self.shown = place.shown
        self._of_loop = PerLoop(partial(_Tasks, place))

    async def execute(self, command: Command, timeout: float | None) -> CasReply:  # noqa: ASYNC109 (see kit)
        mine = self._of_loop.get()
        limits = mine.exchange.timeout(timeout)

        async def post(request: Request) -> httpx.Response:
            return await mine.post(request, limits)

        async with within(timeout, "a reply", sent=True):
            with mine.in_order():
                return await drive_async(mine.exchange.of(command), post)

    async def close(self) -> None:
        mine = self._of_loop.pop()
        if mine is not None:
            await mine.close()
