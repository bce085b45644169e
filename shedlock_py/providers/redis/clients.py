"""redis-py clients: those of the application, which we borrow, and those that we open for a URL."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote

import redis
import redis.asyncio
import redis.asyncio.client
import redis.client
import redis.cluster
from redis import RedisError
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.redis.algorithm import Ask, Call, Redact, Scan
from shedlock_py.providers.redis.pools import AsyncPool, AsyncRedis, Stack

ANSWER_SECONDS = 1.0
POOL_SECONDS = 2.0
POOL_SIZE = 20

_BYTES: dict[str, Any] = {"NEVER_DECODE": True}
"""redis-py's option for replies as they are, whatever the client's mode."""
_SCAN_COUNT = 500

# What text can say. redis-py takes any option of its constructors from a URL, objects too, and fails when it connects.
_URL_OPTIONS = re.compile(
    r"db|username|password|client_name|lib_name|lib_version|protocol|health_check_interval|max_connections|timeout|"
    r"decode_responses|legacy_responses|encoding|encoding_errors|retry_on_timeout|"
    r"socket_timeout|socket_connect_timeout|socket_keepalive|socket_read_size|ssl_\w+"
)

# They are clients to redis-py, but remember commands instead of asking.
_PIPELINES = redis.client.Pipeline | redis.cluster.ClusterPipeline
_ASYNC_PIPELINES = redis.asyncio.client.Pipeline

AnyClient = TypeVar("AnyClient")


class Client:
    """One Redis, asked from ordinary functions. Connections that we open wait for nothing longer than ``seconds``."""

    def __init__(self, client_or_url: object, seconds: float = ANSWER_SECONDS) -> None:
        self.is_own = isinstance(client_or_url, str)
        if isinstance(client_or_url, str):
            self._client: Any = _open(
                client_or_url, redis.Redis, redis.BlockingConnectionPool, Retry, seconds, queue_class=Stack
            )
        elif isinstance(client_or_url, redis.Redis | redis.RedisCluster) and not isinstance(client_or_url, _PIPELINES):
            self._client = client_or_url
        elif isinstance(client_or_url, redis.asyncio.Redis | redis.asyncio.RedisCluster):
            raise ConfigurationError("this is a client of redis.asyncio: give it to the Async… provider")
        else:
            raise ConfigurationError(f"not a redis.Redis, redis.RedisCluster or URL: {type(client_or_url).__name__}")
        self.is_cluster = isinstance(self._client, redis.RedisCluster)

    def execute(self, ask: Ask) -> Any:
        match ask:
            case Call():
                return self._client.execute_command(*_command(ask), **_BYTES)
            case Scan(pattern):
                return list(self._client.scan_iter(match=pattern, count=_SCAN_COUNT, **_BYTES))

    @property
    def options(self) -> dict[str, Any]:
        return _options(self._client)

    def close(self) -> None:
        """Close the connections that we opened ourselves."""
        if self.is_own:
            self._client.close()
            self._client.connection_pool.disconnect()


class AsyncClient:
    """:class:`Client` for asyncio. One that we open has connections for each event loop."""

    def __init__(self, client_or_url: object, seconds: float = ANSWER_SECONDS) -> None:
        self.is_own = isinstance(client_or_url, str)
        if isinstance(client_or_url, str):
            url = client_or_url
            self._open: Callable[[], Any] = lambda: _open(url, AsyncRedis, AsyncPool, AsyncRetry, seconds)
            self._client: Any = self._open()  # not for use: it says at once if the URL is wrong
        elif isinstance(client_or_url, redis.asyncio.Redis | redis.asyncio.RedisCluster) and not isinstance(
            client_or_url, _ASYNC_PIPELINES
        ):
            self._client = client_or_url
        elif isinstance(client_or_url, redis.Redis | redis.RedisCluster):
            raise ConfigurationError("this client is not one of redis.asyncio: give it to the provider without Async…")
        else:
            raise ConfigurationError(
                f"not a redis.asyncio.Redis, redis.asyncio.RedisCluster or URL: {type(client_or_url).__name__}"
            )
        self.is_cluster = isinstance(self._client, redis.asyncio.RedisCluster)
        self._process = os.getpid()
        self._loops: dict[asyncio.AbstractEventLoop, Any] = {}

    async def execute(self, ask: Ask) -> Any:
        client = self._client_here()
        match ask:
            case Call():
                return await client.execute_command(*_command(ask), **_BYTES)
            case Scan(pattern):
                return [key async for key in client.scan_iter(match=pattern, count=_SCAN_COUNT, **_BYTES)]

    @property
    def options(self) -> dict[str, Any]:
        return _options(self._client)

    async def close(self) -> None:
        """Close the connections that this event loop opened; those of a borrowed client stay as they are."""
        mine = self._loops.pop(asyncio.get_running_loop(), None)
        if mine is not None:
            await mine.aclose()
            await mine.connection_pool.disconnect()

    def _client_here(self) -> Any:
        if self._process != os.getpid():
            if not self.is_own:
                raise ConfigurationError(
                    "this client of redis.asyncio was made before the process forked, and its connections belong to "
                    "the parent: make a new client and a new provider in the child"
                )
            _abandoned.append(self._loops)
            self._loops, self._process = {}, os.getpid()
        if not self.is_own:
            return self._client
        # Connections belong to the event loop that opened them. Each loop adds only itself, in one atomic step.
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None:
            for other in [other for other in list(self._loops) if other.is_closed()]:
                self._loops.pop(other, None)
            mine = self._loops[loop] = self._open()
        return mine


_abandoned: list[object] = []
"""Clients of the parent of a forked process: closing them would reach into the parent's event loop."""


def _command(call: Call) -> tuple[Any, ...]:
    if call.by_text:
        return ("EVAL", call.script.text, len(call.keys), *call.keys, *call.args)
    return ("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args)


def _open(
    url: str, client_class: type[AnyClient], pool_class: Any, retry_class: Any, seconds: float, **options_of_pool: Any
) -> AnyClient:
    """A client with short time limits, a bounded pool that waits, and no retries that nobody sees."""
    options: dict[str, Any] = {
        "socket_connect_timeout": seconds,
        "socket_timeout": seconds,
        "max_connections": POOL_SIZE,
        "timeout": POOL_SECONDS,
        "retry": retry_class(NoBackoff(), 0),
        "protocol": 2,  # no HELLO, which Redis 5 does not know
        **options_of_pool,
    }
    try:
        _check(url)
        pool = pool_class.from_url(url, **options)
        pool.connection_class(**pool.connection_kwargs)  # an option that it does not know, it would refuse much later
        if url.startswith("unix:") and not pool.connection_kwargs.get("path"):
            raise ValueError("no path of a socket")
        client: Any = client_class
        opened: AnyClient = client(connection_pool=pool)
        return opened
    except (ValueError, TypeError, RedisError) as error:
        raise ConfigurationError(f"bad Redis URL {shown(url)}: {_without_password(url, str(error))}") from None


def _check(url: str) -> None:
    """Refuse what redis-py would pass over, or find out only when it connects."""
    rest, _, query = url.partition("?")
    if "#" in url:
        raise ValueError("a '#' in a password is written %23")
    if _is_socket_with_host(url):
        raise ValueError("a socket has no host")
    if re.match("rediss?://[^/]*/.*[^0-9/]", rest):
        raise ValueError("the database is a number")
    for name in parse_qs(query):
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


def place(client: Client | AsyncClient) -> str:
    """Where a client is connected to, for people to read."""
    options = client.options
    if client.is_cluster:
        return "a cluster"
    if "path" in options:
        return f"unix://{options['path']}"
    if "connection_pool" in options:
        return "the master that Sentinel names"
    return f"{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0) or 0}"


def has_retries(client: Client | AsyncClient) -> bool:
    """Whether the client asks again by itself: redis-py's own default since version 6, and always in a cluster."""
    if client.is_cluster:
        return True
    options = client.options
    retry = options.get("retry")
    if retry is None:
        return bool(options.get("retry_on_timeout") or options.get("retry_on_error"))
    return bool(getattr(retry, "_retries", 1) != 0)


def redactor(client: Client | AsyncClient) -> Redact:
    """Takes the password out of a driver's message, should it be in there."""
    password = client.options.get("password")

    def redact(message: str) -> str:
        return message.replace(str(password), "***") if password else message

    return redact
