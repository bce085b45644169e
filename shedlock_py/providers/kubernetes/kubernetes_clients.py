"""Clients for threads and for asyncio: the same exchange with the API server over httpx."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

import httpx

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.text import parsed
from shedlock_py.providers.cas import CasReply, OtherReplyError, ServerTime
from shedlock_py.providers.cas.over_http import client_of_threads
from shedlock_py.providers.kit import ErrorReply, Failure, NotSent, TimedOut, call_within, close_with_loop, within
from shedlock_py.providers.kit.proxies import proxy_of
from shedlock_py.providers.kubernetes.access import Access, Place
from shedlock_py.providers.kubernetes.wire import FORBIDDEN, UNAUTHORIZED, Call, Command, call_of, value_of
from shedlock_py.runtime.process import PerLoop, PerProcess, monotonic
from shedlock_py.runtime.program import Program, drive, drive_async
from shedlock_py.runtime.threads import WorkerPool

if TYPE_CHECKING:
    import asyncio  # imported late elsewhere: sync programs do not need asyncio

POOL_SIZE = 16
_HEADERS = {"Accept": "application/json", "Content-Type": "application/json"}
_NO_CREDENTIALS = (
    "no credentials were sent: does the plugin of the kubeconfig work (the log has its error), and has its user a "
    "token or a certificate?"
)
IDLE_SECONDS = 30.0
"""An idle connection is closed after this time. It is long, because a TLS handshake takes longer than a request."""


class Session(NamedTuple):
    """An access, and its open connections."""

    access: Access
    http: Any
    """An ``httpx.Client`` or an ``httpx.AsyncClient``."""


class SignIn(NamedTuple):
    """Get the session to use. It is not ``refused``, which the server refused."""

    refused: Session | None


class Send(NamedTuple):
    """Send a request. The reply is an ``httpx.Response``."""

    session: Session
    call: Call


def exchange(command: Command, clock_error: timedelta) -> Program[SignIn | Send, Any, CasReply]:
    """Execute ``command``. If the server refuses the token, or gets none, read the token again and repeat."""
    session: Session | None = None
    for is_last in (False, True):
        session = yield SignIn(refused=session)
        call = call_of(command, session.access.namespace)
        sent_at = monotonic()
        try:
            with _connection_errors(session.http):
                response = yield Send(session, call)
        except NotSent as error:
            if is_last or not _is_of_tls(error):
                raise
            continue  # the certificate of the authority may have been replaced
        received_at = monotonic()
        # If a plugin fails, the official client continues without a token, and the server sees an anonymous user.
        is_anonymous = response.status_code == FORBIDDEN and session.access.is_anonymous
        if response.status_code != UNAUTHORIZED and not is_anonymous:
            break
    try:
        value = value_of(command, response.status_code, _content(response), clock_error)
    except ErrorReply as error:
        if is_anonymous and error.failure is Failure.REFUSED:
            error.hint = _NO_CREDENTIALS
        raise
    return CasReply(value, ServerTime.from_header(response.headers.get("Date"), sent_at, received_at))


def _content(response: httpx.Response) -> Any:
    """Return the JSON of a reply. None if it is other text, which comes from a proxy or a similar server."""
    try:
        return parsed(response.content)
    except ValueError:
        return None


def _is_of_tls(error: BaseException | None) -> bool:
    """Return whether ``error`` comes from TLS. httpcore sets no ``__cause__``, because it raises its errors again."""
    return error is not None and (isinstance(error, ssl.SSLError) or _is_of_tls(error.__cause__ or error.__context__))


@contextmanager
def _connection_errors(http: Any) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if http.is_closed:  # by the provider's close()
            raise NotSent from error
        raise
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise NotSent from error
    except httpx.PoolTimeout as error:
        raise TimedOut("a free connection", sent=False) from error


def _arguments(access: Access) -> dict[str, Any]:
    """Return the arguments for both httpx clients. The environment's proxy counts, as with kubectl."""
    proxy = access.proxy or proxy_of(access.server)
    limits = httpx.Limits(max_connections=POOL_SIZE, max_keepalive_connections=POOL_SIZE, keepalive_expiry=IDLE_SECONDS)
    return {"verify": access.tls, "limits": limits, "proxy": proxy, "trust_env": False}


@contextmanager
def _proxy_errors() -> Iterator[None]:
    """Translate errors about a bad proxy: httpx raises three kinds, and none says that the proxy is the cause."""
    try:
        yield
    except (ImportError, RuntimeError, ValueError, httpx.InvalidURL) as error:
        what = "the proxy of the environment, or proxy-url of the kubeconfig, cannot be used"
        raise ConfigurationError(f"{what}: {error}") from error


def _request(send: Send, timeout: float | None, extensions: Mapping[str, Any]) -> dict[str, Any]:
    access, call = send.session.access, send.call
    return {
        "method": call.method,
        "url": access.server + call.path,
        "content": None if call.body is None else json.dumps(call.body, separators=(",", ":")),
        "headers": {**access.headers, **_HEADERS},
        "extensions": {**access.extensions, **extensions},
        "timeout": timeout,
    }


class _Threads:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._mutex = threading.Lock()
        self._session: Session | None = None
        self._clients: list[httpx.Client] = []
        """The oldest client first. A replaced client is closed later, because threads may wait for its replies."""
        self.workers = WorkerPool(POOL_SIZE, "shedlock-kubernetes")
        self._refreshers = WorkerPool(1, "shedlock-kubernetes-token")
        # For a provider that is never closed. At the end of the process, the system closes the connections.
        finalize(self, _close, self._clients, 0).atexit = False

    def sign_in(self, refused: Session | None) -> Session:
        with self._mutex:
            session = self._session
            if session is not None and session is not refused:
                if not session.access.is_fresh:
                    session.access.refresh_in(self._refreshers)
                return session
            access = Access(self._place)
            if session is None or session.access.connection != access.connection:
                with _proxy_errors():
                    self._clients.append(client_of_threads(**_arguments(access)))
                _close(self._clients, 2)
            self._session = Session(access, self._clients[-1])
            return self._session

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Drop all connections after a reply that belongs to another request."""
        try:
            yield
        except OtherReplyError:
            self._session = None
            raise

    def close(self) -> None:
        _close(self._clients, 0)


def _close(clients: list[httpx.Client], most: int) -> None:
    while len(clients) > most:
        clients.pop(0).close()


class KubernetesClient:
    """A client for threads. A worker thread sends each request, so that one time limit covers all of it."""

    def __init__(self, place: Place, clock_error: timedelta) -> None:
        self.shown = place.shown
        self._clock_error = clock_error
        self._of_process = PerProcess(partial(_Threads, place))

    def execute(self, command: Command, timeout: float | None) -> CasReply:
        mine = self._of_process.get()
        until = None if timeout is None else monotonic() + timeout

        def carry_out(step: SignIn | Send) -> Any:
            if isinstance(step, SignIn):
                return mine.sign_in(step.refused)
            return step.session.http.request(**_request(step, timeout, {"until": until}))

        def work() -> CasReply:
            with mine.in_order():
                return drive(exchange(command, self._clock_error), carry_out)

        reply: CasReply = call_within(mine.workers, timeout, "a reply", work, sent=True, in_order=True)
        return reply

    def close(self) -> None:
        mine = self._of_process.pop()
        if mine is not None:
            mine.close()


class _Tasks:
    def __init__(self, place: Place) -> None:
        import asyncio

        self._place = place
        self._mutex: asyncio.Lock = asyncio.Lock()
        self._session: Session | None = None
        self._clients: list[httpx.AsyncClient] = []
        self._workers = WorkerPool(1, "shedlock-kubernetes")
        self._refreshers = WorkerPool(1, "shedlock-kubernetes-token")
        self._at_end: AsyncGenerator[None] | None = None

    async def sign_in(self, refused: Session | None) -> Session:
        """Return a session. A thread reads the kubeconfig, because its plugin is a process and may take long."""
        from asyncio import wrap_future

        async with self._mutex:
            session = self._session
            if session is not None and session is not refused:
                if not session.access.is_fresh:
                    session.access.refresh_in(self._refreshers)
                return session
            access = await wrap_future(self._workers.submit(partial(Access, self._place)))
            if self._at_end is None:
                self._at_end = close_with_loop(self.close)
                await anext(self._at_end)
            if session is None or session.access.connection != access.connection:
                with _proxy_errors():
                    self._clients.append(httpx.AsyncClient(**_arguments(access)))
                await self._close(2)
            self._session = Session(access, self._clients[-1])
            return self._session

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """See :meth:`_Threads.in_order`."""
        try:
            yield
        except OtherReplyError:
            self._session = None
            raise

    async def close(self) -> None:
        self._session = None
        await self._close(0)

    async def _close(self, most: int) -> None:
        while len(self._clients) > most:
            await self._clients.pop(0).aclose()


class AsyncKubernetesClient:
    """A client for asyncio."""

    def __init__(self, place: Place, clock_error: timedelta) -> None:
        self.shown = place.shown
        self._clock_error = clock_error
        self._of_loop = PerLoop(partial(_Tasks, place))

    async def execute(self, command: Command, timeout: float | None) -> CasReply:  # noqa: ASYNC109 (see kit)
        mine = self._of_loop.get()

        async def carry_out(step: SignIn | Send) -> Any:
            if isinstance(step, SignIn):
                return await mine.sign_in(step.refused)
            return await step.session.http.request(**_request(step, timeout, {}))

        async with within(timeout, "a reply", sent=True):
            with mine.in_order():
                return await drive_async(exchange(command, self._clock_error), carry_out)

    async def close(self) -> None:
        mine = self._of_loop.pop()
        if mine is not None:
            await mine.close()
