"""redis-py clients: user-supplied ones, and those that a provider opens for a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.client
import redis.client
import redis.cluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from shedlock_py._process import OwningProcess, PerLoop, PerProcess, monotonic
from shedlock_py._program import Program, run, run_async
from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.kit import NotSent
from shedlock_py.providers.redis.connections import AsyncConnections, Connections
from shedlock_py.providers.redis.errors import is_not_connected
from shedlock_py.providers.redis.programs import Call, Command, Scan
from shedlock_py.providers.redis.urls import parse_url

POOL_SIZE = 20
"""The connections of one process, or of one event loop."""
ALLOWANCE = 1.1
"""redis-py's own limits are so much longer than that of the operation, whose error names what it waited for."""

_BYTES: dict[str, Any] = {"NEVER_DECODE": True}
"""redis-py's option for replies as they are, whatever the client's mode."""
_SCAN_COUNT = 500
_URGENT = ("extend", "release", "undo")
"""The scripts that are for a lock that is held, and not for one that is wanted."""

_SYNC = (redis.Redis, redis.RedisCluster)
_ASYNC = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
# Subclasses of clients, which collect commands instead of sending them.
_PIPELINES = (redis.client.Pipeline, redis.cluster.ClusterPipeline, redis.asyncio.client.Pipeline)

Words = tuple[Any, ...]
"""A Redis command as it is sent."""


def open_client(client_or_url: object, timeout: float | None) -> Client | ManagedClient:
    """The client of a sync provider. ``timeout``: the seconds of one operation, for a URL."""
    if isinstance(client_or_url, str):
        return ManagedClient(client_or_url, timeout or 0)
    if isinstance(client_or_url, _ASYNC):
        raise ConfigurationError("this is a client of redis.asyncio: give it to the Async… provider")
    if not isinstance(client_or_url, _SYNC) or isinstance(client_or_url, _PIPELINES):
        raise ConfigurationError(f"not a redis.Redis, redis.RedisCluster or URL: {type(client_or_url).__name__}")
    return Client(client_or_url)


def open_async_client(client_or_url: object, timeout: float | None) -> AsyncClient | AsyncManagedClient:
    """The client of an async provider. ``timeout``: the seconds of one operation, for a URL."""
    if isinstance(client_or_url, str):
        return AsyncManagedClient(client_or_url, timeout or 0)
    if isinstance(client_or_url, _SYNC):
        raise ConfigurationError("this client is not one of redis.asyncio: give it to the provider without Async…")
    if not isinstance(client_or_url, _ASYNC) or isinstance(client_or_url, _PIPELINES):
        kind = type(client_or_url).__name__
        raise ConfigurationError(f"not a redis.asyncio.Redis, redis.asyncio.RedisCluster or URL: {kind}")
    return AsyncClient(client_or_url)


class AnyClient:
    """What all clients have.

    :ivar options: the options of redis-py's connections.
    :ivar has_retries: the client retries by itself, so its last error does not show what it sent before.
    """

    options: dict[str, Any]
    is_cluster = False
    has_retries = False

    @property
    def place(self) -> str:
        """Where the client connects to, for people to read."""
        if self.is_cluster:
            return "a cluster"
        if "path" in self.options:
            return f"unix://{self.options['path']}"
        if "connection_pool" in self.options:
            return "the master that Sentinel names"
        host, port = self.options.get("host", "localhost"), self.options.get("port", 6379)
        return f"{host}:{port}/{self.options.get('db', 0) or 0}"

    def redact(self, message: str) -> str:
        """A driver's message without the password."""
        password = self.options.get("password")
        return message.replace(str(password), "***") if password else message


class _UserSuppliedClient(AnyClient):
    """A client of the application, with its own time limits and retries. It is never closed here."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.is_cluster = isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster)
        pool = getattr(client, "connection_pool", client)  # clients of a cluster have no pool of their own
        self.options = getattr(pool, "connection_kwargs", {})
        self.has_retries = self.is_cluster or _has_retries(self.options)

    def _send(self, words: Words) -> Any:
        return self._client.execute_command(*words, **_BYTES)

    def _scan(self, command: Scan) -> Any:
        """redis-py scans all nodes of a cluster."""
        return self._client.scan_iter(match=command.pattern, count=_SCAN_COUNT, **_BYTES)

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        """:raises NotSent: if that is sure."""
        try:
            yield
        except Exception as error:
            if self.has_retries or not is_not_connected(error):
                raise
            raise NotSent from error


class Client(_UserSuppliedClient):
    """A ``redis.Redis`` or ``redis.RedisCluster``."""

    def execute(self, command: Command, timeout: float | None) -> Any:
        with self._errors_explained():
            return list(self._scan(command)) if isinstance(command, Scan) else run(_requests(command), self._send)

    def close(self) -> None:
        """Leave it open: the application closes it."""


class AsyncClient(_UserSuppliedClient):
    """A ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._process = OwningProcess()

    async def execute(self, command: Command, timeout: float | None) -> Any:  # noqa: ASYNC109 (the client has its own)
        if not self._process.is_current():
            raise ConfigurationError(
                "this client of redis.asyncio was made before the process forked, and its connections belong to "
                "the parent: make a new client and a new provider in the child"
            )
        with self._errors_explained():
            if isinstance(command, Scan):
                return [key async for key in self._scan(command)]
            return await run_async(_requests(command), self._send)

    async def close(self) -> None:
        """Leave it open: the application closes it."""


class _ManagedClient(AnyClient):
    """Connections as a URL describes them, with the time limit of the operation."""

    def __init__(self, url: str, timeout: float, pool_class: Any, retry_class: Any) -> None:
        pool, size = parse_url(url, pool_class, retry_class(NoBackoff(), 0))
        self.connection_class, self.options = pool.connection_class, pool.connection_kwargs
        self._timeout = timeout
        self._size = POOL_SIZE if size is None else int(size)
        # The limits of the URL are upper bounds.
        longest = timeout * ALLOWANCE
        self._reply_seconds = min(self.options.get("socket_timeout") or longest, longest)
        self.options["socket_connect_timeout"] = min(self.options.get("socket_connect_timeout") or longest, longest)

    def _make_connection(self) -> Any:
        return self.connection_class(**self.options)

    def _until(self, timeout: float | None) -> float:
        return monotonic() + (self._timeout if timeout is None else timeout)


class ManagedClient(_ManagedClient):
    """The connections of a sync provider."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__(url, timeout, redis.ConnectionPool, Retry)
        self.options["socket_timeout"] = self._reply_seconds
        self._connections = PerProcess(lambda: Connections(self._make_connection, self._size, self._reply_seconds))

    def execute(self, command: Command, timeout: float | None) -> Any:
        until, is_urgent, connections = self._until(timeout), _is_urgent(command), self._connections.get()
        return run(_requests(command), lambda words: connections.request(words, until, is_urgent=is_urgent))

    def close(self) -> None:
        self._connections.get().close()


class AsyncManagedClient(_ManagedClient):
    """The connections of an async provider: some for each event loop."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__(url, timeout, redis.asyncio.ConnectionPool, AsyncRetry)
        # With a socket_timeout redis-py uses asyncio.wait_for, which can swallow a cancellation before Python 3.12.
        self.options["socket_timeout"] = None
        self._connections = PerLoop(lambda: AsyncConnections(self._make_connection, self._size, self._reply_seconds))

    async def execute(self, command: Command, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        until, is_urgent, connections = self._until(timeout), _is_urgent(command), self._connections.get()
        return await run_async(_requests(command), lambda words: connections.request(words, until, is_urgent=is_urgent))

    async def close(self) -> None:
        """Close the connections that this event loop opened."""
        connections = self._connections.pop()
        if connections is not None:
            await connections.close()


def _requests(command: Command) -> Program[Words, Any, Any]:
    """What is sent for ``command``: a script by its hash, and by its text to a server that does not know it yet."""
    match command:
        case Call(script, keys, args):
            try:
                return (yield ("EVALSHA", script.sha, len(keys), *keys, *args))
            except NoScriptError:
                return (yield ("EVAL", script.text, len(keys), *keys, *args))
        case Scan(pattern):
            found: list[bytes] = []
            cursor = 0
            while True:
                position, page = yield ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
                found += page
                cursor = int(position)
                if cursor == 0:
                    return found


def _is_urgent(command: Command) -> bool:
    return isinstance(command, Call) and command.script.name.removeprefix("quorum_") in _URGENT


def _has_retries(options: dict[str, Any]) -> bool:
    """Whether the client retries by itself: redis-py's own default since version 6."""
    retry = options.get("retry")
    if retry is None:
        return bool(options.get("retry_on_timeout") or options.get("retry_on_error"))
    return bool(getattr(retry, "_retries", 1) != 0)
