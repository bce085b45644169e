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
    """Locks in one Redis (5 or newer), Valkey or a compatible server; also behind Sentinel or as a cluster.

    A single asynchronous Redis can lose a lease during failover: a replica that is promoted may not have received the
    last lock. Fencing tokens still increase. :class:`RedisQuorumLockProvider` survives a lost server.

    :param client_or_url: the application's own ``redis.Redis`` (a Sentinel's ``master_for(…)`` is one) or
        ``redis.RedisCluster``, which is never closed; or a URL (``redis://``, ``rediss://``, ``unix://``), for
        which the provider opens connections of its own, without hidden retries.
    :param key_prefix: what the keys of the lock records begin with: ``shedlock:{name}``.
    :param timeout: how long one operation may take, everything included (5 s). For a URL, where it can also be written:
        ``?timeout=3s``. A client of the application has limits of its own.
    :param fire_time_tolerance: how far a fire time may lie in the future of the server's clock (5 minutes); in a URL
        ``?fire_time_tolerance=10m``.
    :param history: how many runs of each lock name to keep, for :meth:`runs`; in a URL ``?history=50``.
    :raises ConfigurationError: a URL, client, prefix or option that cannot work.
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

    One from a URL may be used on several event loops; it has connections for each.
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
    """The client, or the URL without the options of the programs; and these options."""
    is_managed = isinstance(client_or_url, str)
    client_or_url, in_url = split_options(client_or_url) if is_managed else (client_or_url, {})
    return client_or_url, parse_limits(timeout, tolerance, in_url, is_managed=is_managed, history=history)
