"""The sync and the async provider for one Redis."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

from shedlock_py.model.durations import Duration
from shedlock_py.providers.kit import AsyncProgramProvider, Limits, ProgramProvider, parse_limits, split_options
from shedlock_py.providers.redis.redis_clients import open_async_client, open_client
from shedlock_py.providers.redis.redis_programs import RedisPrograms


class RedisLockProvider(ProgramProvider):
    """Locks in one Redis (5 or newer), Valkey or a compatible server, also behind Sentinel or in a cluster.

    Redis replicates asynchronously, so a failover can lose a lease: the promoted replica may lack the latest lock.
    Fencing tokens still increase. :class:`RedisQuorumLockProvider` survives a lost server.

    :param client_or_url: the application's ``redis.Redis`` (for example from Sentinel's ``master_for(…)``) or
        ``redis.RedisCluster``, which is never closed. Or a URL (``redis://``, ``rediss://``, ``unix://``): the provider
        then opens its own connections, without hidden retries.
    :param key_prefix: start of the keys of the lock records: ``shedlock:{name}``.
    :param timeout: the time limit of a whole operation (default: 5 s). For a URL, which may also contain it:
        ``?timeout=3s``. The application's client has its own limits.
    :param fire_time_tolerance: how far a fire time may be ahead of the server's clock (default: 5 minutes). In a URL:
        ``?fire_time_tolerance=10m``.
    :param history: the number of runs to keep for each lock name, for :meth:`runs`. In a URL: ``?history=50``.
    :raises ConfigurationError: the URL, the client, the prefix or an option cannot work.
    """

    def __init__(
        self,
        client_or_url: redis.Redis | redis.RedisCluster | str,
        *,
        key_prefix: str = "shedlock",
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
        history: int | None = None,
    ) -> None:
        client_or_url, limits = _parse(client_or_url, timeout, fire_time_tolerance, history)
        client = open_client(client_or_url, limits["timeout"])
        super().__init__(RedisPrograms(key_prefix, client, **limits), client)


class AsyncRedisLockProvider(AsyncProgramProvider):
    """:class:`RedisLockProvider` for asyncio, with a client of ``redis.asyncio`` or a URL.

    With a URL, several event loops may use it. Each has its own connections.
    """

    def __init__(
        self,
        client_or_url: redis.asyncio.Redis | redis.asyncio.RedisCluster | str,
        *,
        key_prefix: str = "shedlock",
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
        history: int | None = None,
    ) -> None:
        client_or_url, limits = _parse(client_or_url, timeout, fire_time_tolerance, history)
        client = open_async_client(client_or_url, limits["timeout"])
        super().__init__(RedisPrograms(key_prefix, client, **limits), client)


def _parse(
    client_or_url: Any, timeout: Duration | None, tolerance: Duration | None, history: int | None
) -> tuple[Any, Limits]:
    """Return the client, or the URL without the options, and the options."""
    is_managed = isinstance(client_or_url, str)
    client_or_url, in_url = split_options(client_or_url) if is_managed else (client_or_url, {})
    return client_or_url, parse_limits(timeout, tolerance, in_url, is_managed=is_managed, history=history)
