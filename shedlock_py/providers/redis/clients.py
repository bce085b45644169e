"""redis-py clients: user-supplied ones, and those that a provider opens for a URL."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
from typing import Any
from urllib.parse import parse_qs, unquote

import redis
import redis.asyncio
import redis.asyncio.client
import redis.client
import redis.cluster
from redis import RedisError
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from shedlock_py._clock import monotonic
from shedlock_py._program import Program, run, run_async
from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.kit import NotSent, split_options
from shedlock_py.providers.redis.connections import AsyncConnections, Connections
from shedlock_py.providers.redis.errors import is_not_connected
from shedlock_py.providers.redis.programs import Call, Command, Redact, Scan

POOL_SIZE = 20
"""The connections of one process, or of one event loop."""
ALLOWANCE = 1.1
"""redis-py's own limits are so much longer than that of the operation, which knows what was waited for."""

_BYTES: dict[str, Any] = {"NEVER_DECODE": True}
"""redis-py's option for replies as they are, whatever the client's mode."""
_SCAN_COUNT = 500
_URGENT = ("extend", "release", "undo")
"""Scripts."""

# What text can say. redis-py takes any option of its constructors from a URL, objects too, and fails when it connects.
_URL_OPTIONS = re.compile(
    r"db|username|password|client_name|lib_name|lib_version|protocol|health_check_interval|"
    r"decode_responses|legacy_responses|encoding|encoding_errors|retry_on_timeout|"
    r"socket_timeout|socket_connect_timeout|socket_keepalive|socket_read_size|ssl_\w+"
)

# They are clients to redis-py, but remember commands instead of asking.
_PIPELINES = redis.client.Pipeline | redis.cluster.ClusterPipeline
_ASYNC_PIPELINES = redis.asyncio.client.Pipeline

Words = tuple[Any, ...]
"""A Redis command as it is sent."""


def open_client(client_or_url: object, timeout: float) -> Client | ManagedClient:
    """The client of a sync provider. ``timeout``: the seconds of one operation, for a URL."""
    if isinstance(client_or_url, str):
        return ManagedClient(client_or_url, timeout)
    if isinstance(client_or_url, redis.Redis | redis.RedisCluster) and not isinstance(client_or_url, _PIPELINES):
        return Client(client_or_url)
    if isinstance(client_or_url, redis.asyncio.Redis | redis.asyncio.RedisCluster):
        raise ConfigurationError("this is a client of redis.asyncio: give it to the Async… provider")
    raise ConfigurationError(f"not a redis.Redis, redis.RedisCluster or URL: {type(client_or_url).__name__}")


def open_async_client(client_or_url: object, timeout: float) -> AsyncClient | AsyncManagedClient:
    """The client of an async provider. ``timeout``: the seconds of one operation, for a URL."""
    if isinstance(client_or_url, str):
        return AsyncManagedClient(client_or_url, timeout)
    if isinstance(client_or_url, redis.asyncio.Redis | redis.asyncio.RedisCluster) and not isinstance(
        client_or_url, _ASYNC_PIPELINES
    ):
        return AsyncClient(client_or_url)
    if isinstance(client_or_url, redis.Redis | redis.RedisCluster):
        raise ConfigurationError("this client is not one of redis.asyncio: give it to the provider without Async…")
    raise ConfigurationError(
        f"not a redis.asyncio.Redis, redis.asyncio.RedisCluster or URL: {type(client_or_url).__name__}"
    )


class _UsersClient:
    """A client of the application, with its own time limits and retries. It is never closed here."""

    is_own = False

    def __init__(self, client: Any) -> None:
        self._client = client
        self.is_cluster = isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster)
        self.options: dict[str, Any] = _options(client)
        self.has_retries = self.is_cluster or _has_retries(self.options)

    def _explained(self, error: Exception) -> Exception:
        """:class:`NotSent`, if that is sure."""
        return NotSent() if not self.has_retries and is_not_connected(error) else error


class Client(_UsersClient):
    """A ``redis.Redis`` or ``redis.RedisCluster``."""

    def execute(self, command: Command, timeout: float | None) -> Any:
        try:
            if isinstance(command, Scan):  # redis-py asks all nodes of a cluster
                return list(self._client.scan_iter(match=command.pattern, count=_SCAN_COUNT, **_BYTES))
            return run(_requests(command), lambda words: self._client.execute_command(*words, **_BYTES))
        except Exception as error:
            if (explained := self._explained(error)) is not error:
                raise explained from error
            raise

    def close(self) -> None:
        """Leave it open: the application closes it."""


class AsyncClient(_UsersClient):
    """A ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._process = os.getpid()

    async def execute(self, command: Command, timeout: float | None) -> Any:  # noqa: ASYNC109 (the client has its own)
        if self._process != os.getpid():
            raise ConfigurationError(
                "this client of redis.asyncio was made before the process forked, and its connections belong to "
                "the parent: make a new client and a new provider in the child"
            )
        try:
            if isinstance(command, Scan):
                found = self._client.scan_iter(match=command.pattern, count=_SCAN_COUNT, **_BYTES)
                return [key async for key in found]
            return await run_async(_requests(command), lambda words: self._client.execute_command(*words, **_BYTES))
        except Exception as error:
            if (explained := self._explained(error)) is not error:
                raise explained from error
            raise

    async def close(self) -> None:
        """Leave it open: the application closes it."""


class _ManagedClient:
    """What a URL says."""

    is_own = True
    is_cluster = False
    has_retries = False

    def __init__(self, url: str, timeout: float, pool_class: Any, retry_class: Any) -> None:
        self._url, self._timeout = url, timeout
        self._pool_class, self._retry_class = pool_class, retry_class
        self.size = POOL_SIZE
        pool = self._make_pool()
        self.options: dict[str, Any] = pool.connection_kwargs
        self._process = os.getpid()

    def _make_pool(self) -> Any:
        """redis-py's pool, which makes connections as the URL says; without retries that nobody sees."""
        url, options = split_options(self._url, ("max_connections",))
        try:
            _check(url)
            pool = self._pool_class.from_url(
                url,
                retry=self._retry_class(NoBackoff(), 0),
                protocol=2,  # no HELLO, which Redis 5 does not know
                max_connections=2**31,  # counted by Connections
            )
            self._set_limits(pool.connection_kwargs)
            codecs.lookup(pool.connection_kwargs.get("encoding") or "utf-8")
            if pool.connection_kwargs.get("socket_read_size", 1) < 1:
                raise ValueError("socket_read_size is a positive whole number")
            pool.connection_class(**pool.connection_kwargs)  # an unknown option it would refuse much later
            if url.startswith("unix:") and not pool.connection_kwargs.get("path"):
                raise ValueError("no path of a socket")
            if "max_connections" in options:
                self.size = _positive(options["max_connections"], "max_connections")
        except (ValueError, TypeError, LookupError, RedisError) as error:
            raise ConfigurationError(f"bad Redis URL {shown(url)}: {_without_password(url, str(error))}") from None
        return pool

    def _set_limits(self, options: dict[str, Any]) -> None:
        """Take those of the URL as upper bounds."""
        for option in ("socket_timeout", "socket_connect_timeout"):
            if not (options.get(option) or 0) >= 0:  # NaN, too
                raise ValueError(f"{option} is a number of seconds")
        longest = self._timeout * ALLOWANCE
        options["socket_connect_timeout"] = min(options.get("socket_connect_timeout") or longest, longest)
        self.reply_seconds: float | None = options.get("socket_timeout") or None


class ManagedClient(_ManagedClient):
    """Connections for a sync provider, opened and limited here."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__(url, timeout, redis.ConnectionPool, Retry)
        self._connections = self._open()

    def _set_limits(self, options: dict[str, Any]) -> None:
        super()._set_limits(options)
        longest = self._timeout * ALLOWANCE
        options["socket_timeout"] = min(self.reply_seconds or longest, longest)

    def _open(self) -> Connections:
        return Connections(self._make_pool(), self.size, self.reply_seconds)

    def execute(self, command: Command, timeout: float | None) -> Any:
        until = monotonic() + (self._timeout if timeout is None else timeout)
        connections, is_urgent = self._connections_here(), _is_urgent(command)
        return run(_requests(command), lambda words: connections.request(words, until, is_urgent=is_urgent))

    def close(self) -> None:
        self._connections_here().close()

    def _connections_here(self) -> Connections:
        if self._process != os.getpid():
            # The parent's belong to the parent: closing them here closes only this process's copies.
            self._connections, self._process = self._open(), os.getpid()
        return self._connections


class AsyncManagedClient(_ManagedClient):
    """Connections for an async provider, opened and limited here: some for each event loop."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__(url, timeout, redis.asyncio.ConnectionPool, AsyncRetry)
        self._loops: dict[asyncio.AbstractEventLoop, AsyncConnections] = {}

    def _set_limits(self, options: dict[str, Any]) -> None:
        super()._set_limits(options)
        # With one redis-py uses asyncio.wait_for. Before Python 3.12 that can swallow a cancellation: our time limit.
        options["socket_timeout"] = None

    async def execute(self, command: Command, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        until = monotonic() + (self._timeout if timeout is None else timeout)
        connections, is_urgent = self._connections_here(), _is_urgent(command)
        return await run_async(_requests(command), lambda words: connections.request(words, until, is_urgent=is_urgent))

    async def close(self) -> None:
        """Close the connections that this event loop opened."""
        connections = self._loops.pop(asyncio.get_running_loop(), None)
        if connections is not None and self._process == os.getpid():
            await connections.close()

    def _connections_here(self) -> AsyncConnections:
        if self._process != os.getpid():
            _inherited.append(self._loops)
            self._loops, self._process = {}, os.getpid()
        # Connections belong to the event loop that opened them. Each loop adds only itself, in one atomic step.
        loop = asyncio.get_running_loop()
        connections = self._loops.get(loop)
        if connections is None:
            for other in [other for other in list(self._loops) if other.is_closed()]:
                self._loops.pop(other, None)
            connections = self._loops[loop] = AsyncConnections(self._make_pool(), self.size, self.reply_seconds)
        return connections


_inherited: list[object] = []
"""Connections of the parent of a forked process: closing them would reach into the parent's event loop."""


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
    """Whether it is for a lock that somebody holds, and not for one that somebody wants."""
    return isinstance(command, Call) and command.script.name.removeprefix("quorum_") in _URGENT


def _check(url: str) -> None:
    """Refuse what redis-py would pass over, or find out only when it connects."""
    rest, _, query = url.partition("?")
    if "#" in url:
        raise ValueError("a '#' in a password is written %23")
    if _is_socket_with_host(url):
        raise ValueError("a socket has no host")
    if re.match("rediss?://[^/]*/.*[^0-9/]", rest):
        raise ValueError("the database is a number")
    for name in parse_qs(query, keep_blank_values=True):
        if not _URL_OPTIONS.fullmatch(name):
            raise ValueError(f"{name!r} is not an option that a URL can have")


def _without_password(url: str, message: str) -> str:
    """redis-py's own words, which may have the URL in them, or what it took for a port."""
    if _is_socket_with_host(url):
        return "a socket has no host: unix:///path; in a password, write %2F for /"
    if _is_ambiguous(url):
        return "in a password, write %2F for /, %3F for ?, %23 for #, %40 for @"
    password = _authority(url).rpartition("@")[0].partition(":")[2]
    for secret in filter(None, (password, unquote(password))):
        message = message.replace(secret, "***")
    return message


def shown(url: str) -> str:
    """``url`` without password and options."""
    scheme, _, rest = url.partition("://")
    place = "…" if _is_ambiguous(url) else rest.partition("?")[0].partition("#")[0].rpartition("@")[2]
    return f"{scheme}://{place}"


def _authority(url: str) -> str:
    return re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0]


def _is_socket_with_host(url: str) -> bool:
    return url.startswith("unix:") and bool(_authority(url)) and "@" not in _authority(url)


def _is_ambiguous(url: str) -> bool:
    """Whether what looks like a host may be the beginning of a password."""
    return _is_socket_with_host(url) or "@" in url.partition("://")[2][len(_authority(url)) :]


def _options(client: Any) -> dict[str, Any]:
    holder = getattr(client, "connection_pool", client)  # clients of a cluster have no pool of their own
    options: dict[str, Any] = getattr(holder, "connection_kwargs", {})
    return options


AnyClient = _UsersClient | _ManagedClient


def _positive(text: str, option: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not number:
        raise ValueError(f"{option} is a positive whole number")
    return number


def place(client: AnyClient) -> str:
    """Where a client is connected to, for people to read."""
    options = client.options
    if client.is_cluster:
        return "a cluster"
    if "path" in options:
        return f"unix://{options['path']}"
    if "connection_pool" in options:
        return "the master that Sentinel names"
    return f"{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0) or 0}"


def _has_retries(options: dict[str, Any]) -> bool:
    """Whether the client retries by itself: redis-py's own default since version 6."""
    retry = options.get("retry")
    if retry is None:
        return bool(options.get("retry_on_timeout") or options.get("retry_on_error"))
    return bool(getattr(retry, "_retries", 1) != 0)


def redactor(client: AnyClient) -> Redact:
    """Takes the password out of a driver's message, should it be in there."""
    password = client.options.get("password")

    def redact(message: str) -> str:
        return message.replace(str(password), "***") if password else message

    return redact
