"""redis-py clients from the user, and clients that a provider opens for a URL.

Clients for a URL put redis-py's connections into a pool of the kit. redis-py's own pools resolve host names in the
caller's thread without a time limit, and keep connections to a server that is not the primary any more.
"""

from __future__ import annotations

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

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.kit import (
    AsyncConnectionPool,
    ConnectionPool,
    NotSent,
    PooledConnection,
    TimedOut,
    is_secret_option,
    seconds_left,
    within,
)
from shedlock_py.providers.redis.commands import Call, Command, Scan, Setting
from shedlock_py.providers.redis.errors import is_not_connected, is_temporary
from shedlock_py.providers.redis.urls import parse_url
from shedlock_py.runtime.process import OwningProcess, PerLoop, PerProcess, monotonic
from shedlock_py.runtime.program import Program, drive, drive_async

POOL_SIZE = 20
"""The connections of one process, or of one event loop."""
RESERVED = 2
"""Connections that only held locks may use, so that a lease does not end while its heartbeat waits for an acquire."""
ALLOWANCE = 1.1
"""redis-py's limits are longer by this factor: the operation's error comes first and names the cause of the wait."""

_REPLY = "a reply"
_BYTES: dict[str, Any] = {"NEVER_DECODE": True}
"""redis-py's option for raw bytes in replies, whatever the client's mode."""
_SCAN_COUNT = 500

_SYNC = (redis.Redis, redis.RedisCluster)
_ASYNC = (redis.asyncio.Redis, redis.asyncio.RedisCluster)
# These subclasses of clients collect commands instead of sending them.
_PIPELINES = (redis.client.Pipeline, redis.cluster.ClusterPipeline, redis.asyncio.client.Pipeline)

Words = tuple[Any, ...]
"""A Redis command, ready to send."""


def open_client(client_or_url: object, timeout: float | None) -> Client | ManagedClient:
    """Return the client of a sync provider. ``timeout``: the time limit of an operation with a URL, in seconds."""
    if isinstance(client_or_url, str):
        return ManagedClient(client_or_url, timeout or 0)
    if isinstance(client_or_url, _ASYNC):
        raise ConfigurationError("this is a client of redis.asyncio: give it to the Async… provider")
    if not isinstance(client_or_url, _SYNC) or isinstance(client_or_url, _PIPELINES):
        raise ConfigurationError(f"not a redis.Redis, redis.RedisCluster or URL: {type(client_or_url).__name__}")
    return Client(client_or_url)


def open_async_client(client_or_url: object, timeout: float | None) -> AsyncClient | AsyncManagedClient:
    """Return the client of an async provider."""
    if isinstance(client_or_url, str):
        return AsyncManagedClient(client_or_url, timeout or 0)
    if isinstance(client_or_url, _SYNC):
        raise ConfigurationError("this client is not one of redis.asyncio: give it to the provider without Async…")
    if not isinstance(client_or_url, _ASYNC) or isinstance(client_or_url, _PIPELINES):
        kind = type(client_or_url).__name__
        raise ConfigurationError(f"not a redis.asyncio.Redis, redis.asyncio.RedisCluster or URL: {kind}")
    return AsyncClient(client_or_url)


class BaseClient:
    """Base of all clients.

    :ivar place: the address of the server, for people.
    :ivar options: the options of redis-py's connections.
    :ivar passwords: secrets that must not be shown.
    :ivar names: other names in the options, for messages.
    :ivar has_retries: the client itself retries, so its last error does not show what it sent before.
    """

    def __init__(self, options: dict[str, Any], *, is_cluster: bool = False, has_retries: bool = False) -> None:
        self.options = options
        self.is_cluster = is_cluster
        self.has_retries = has_retries
        if is_cluster:
            self.place = "a cluster"
        elif "path" in options:
            self.place = f"unix://{options['path']}"
        elif "connection_pool" in options:
            self.place = "the master that Sentinel names"
        else:
            self.place = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db') or 0}"
        self.shown = f"at {self.place}"
        self.passwords = [value for name, value in options.items() if isinstance(value, str) and is_secret_option(name)]
        self.names = [str(options.get(name) or "") for name in ("username", "host", "port", "path")]


class _UserSuppliedClient(BaseClient):
    """The application's client, with its own time limits and retries. It is never closed."""

    def __init__(self, client: Any) -> None:
        is_cluster = isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster)
        pool = getattr(client, "connection_pool", client)  # a cluster's client has no pool
        if not getattr(pool, "is_master", True):
            raise ConfigurationError("this client of a Sentinel reads from replicas: make it with master_for")
        options = getattr(pool, "connection_kwargs", {})
        retry = options.get("retry")  # redis-py's default since version 6
        if retry is None:
            has_retries = bool(options.get("retry_on_timeout") or options.get("retry_on_error"))
        else:
            has_retries = getattr(retry, "_retries", 1) != 0
        super().__init__(options, is_cluster=is_cluster, has_retries=is_cluster or has_retries)
        self._client = client

    def _send(self, words: Words) -> Any:
        return self._client.execute_command(*words, **_BYTES)

    def _scan(self, command: Scan) -> Any:
        """Scan. redis-py scans all nodes of a cluster."""
        return self._client.scan_iter(match=command.pattern, count=_SCAN_COUNT, **_BYTES)


class Client(_UserSuppliedClient):
    """A ``redis.Redis`` or ``redis.RedisCluster``."""

    def execute(self, command: Command, timeout: float | None) -> Any:
        try:
            return list(self._scan(command)) if isinstance(command, Scan) else drive(_requests(command), self._send)
        except Exception as error:
            if self.has_retries or not is_not_connected(error):
                raise
            raise NotSent from error


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
        try:
            if isinstance(command, Scan):
                return [key async for key in self._scan(command)]
            return await drive_async(_requests(command), self._send)
        except Exception as error:
            if self.has_retries or not is_not_connected(error):
                raise
            raise NotSent from error


class _ManagedClient(BaseClient):
    """Connections for a URL, with the operation's time limit."""

    def __init__(self, url: str, timeout: float, pool_class: Any, retry_class: Any) -> None:
        pool, size = parse_url(url, pool_class, retry_class(NoBackoff(), 0))
        super().__init__(pool.connection_kwargs)
        self.connection_class = pool.connection_class
        self._timeout = timeout
        self._size = POOL_SIZE if size is None else int(size)
        # Limits in the URL can only shorten the provider's limits.
        longest = timeout * ALLOWANCE
        self._reply_seconds = min(self.options.get("socket_timeout") or longest, longest)
        """The longest wait for one reply, even if the operation has more time left."""
        self.options["socket_connect_timeout"] = min(self.options.get("socket_connect_timeout") or longest, longest)

    def _until(self, timeout: float | None) -> float:
        return monotonic() + (self._timeout if timeout is None else timeout)


class ManagedClient(_ManagedClient):
    """The connections of a sync provider."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__(url, timeout, redis.ConnectionPool, Retry)
        self.options["socket_timeout"] = self._reply_seconds
        self._pool: PerProcess[ConnectionPool[Any]] = PerProcess(self._make_pool)

    def _make_pool(self) -> ConnectionPool[Any]:
        def connect(until: float) -> Any:
            connection = self.connection_class(**self.options)
            connection.connect()
            return connection

        def disconnect(connection: Any) -> None:
            connection.disconnect()

        return ConnectionPool(connect, disconnect, size=self._size, reserved=RESERVED, name="shedlock-redis-connect")

    def execute(self, command: Command, timeout: float | None) -> Any:
        until, pool = self._until(timeout), self._pool.get()

        def request(words: Words) -> Any:
            """Return the reply to one Redis command. During a long scan, other requests can use the connection."""
            return pool.use(lambda pooled: self._send(pooled, words, until), until, is_urgent=command.is_urgent)

        return drive(_requests(command), request)

    def _send(self, pooled: PooledConnection[Any], words: Words, until: float) -> Any:
        try:
            pooled.connection.send_command(*words)
            seconds = seconds_left(until)
            # If the URL's socket_timeout is shorter, redis-py reports it.
            if seconds <= self._reply_seconds and not pooled.connection.can_read(seconds):
                raise TimedOut(_REPLY, sent=True)
            reply = pooled.connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            pooled.is_good = not is_temporary(error)
            raise
        pooled.is_good = True
        return reply

    def close(self) -> None:
        self._pool.get().close()


class AsyncManagedClient(_ManagedClient):
    """The connections of an async provider, for each event loop."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__(url, timeout, redis.asyncio.ConnectionPool, AsyncRetry)
        # With a socket_timeout, redis-py uses asyncio.wait_for, which can swallow a cancellation before Python 3.12.
        self.options["socket_timeout"] = None
        self._pool: PerLoop[AsyncConnectionPool[Any]] = PerLoop(self._make_pool)

    def _make_pool(self) -> AsyncConnectionPool[Any]:
        async def connect(until: float) -> Any:
            connection = self.connection_class(**self.options)
            try:
                await connection.connect()
            except BaseException:
                await disconnect(connection)  # it may be connected, but not authenticated
                raise
            return connection

        async def disconnect(connection: Any) -> None:
            await connection.disconnect(nowait=True)  # does not wait, so a cancellation cannot interrupt it

        async def end(connection: Any) -> None:
            await connection.disconnect()

        return AsyncConnectionPool(connect, disconnect, end=end, size=self._size, reserved=RESERVED)

    async def execute(self, command: Command, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        until, pool = self._until(timeout), self._pool.get()

        async def request(words: Words) -> Any:
            return await pool.use(lambda pooled: self._send(pooled, words, until), until, is_urgent=command.is_urgent)

        return await drive_async(_requests(command), request)

    async def _send(self, pooled: PooledConnection[Any], words: Words, until: float) -> Any:
        seconds = seconds_left(until)
        try:
            async with within(min(seconds, self._reply_seconds), _REPLY, sent=True):
                await pooled.connection.send_command(*words)
                reply = await pooled.connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            pooled.is_good = not is_temporary(error)
            raise
        except RuntimeError as error:  # from uvloop: the connection was reset while idle
            raise redis.ConnectionError(str(error)) from error
        except TimedOut:
            if seconds <= self._reply_seconds:
                raise
            raise redis.TimeoutError("Timeout reading from socket") from None  # redis-py's message
        pooled.is_good = True
        return reply

    async def close(self) -> None:
        """Close the connections that this event loop opened."""
        pool = self._pool.pop()
        if pool is not None:
            await pool.close()


def _requests(command: Command) -> Program[Words, Any, Any]:
    """Yield the Redis commands for ``command``. A script is sent by its hash, or as text to a server that lacks it."""
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
        case Setting(name):
            reply = yield ("CONFIG", "GET", name)
            values = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))  # RESP 3, 2
            value = values.get(name.encode())
            return None if value is None else value.decode(errors="replace")
