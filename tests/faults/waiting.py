"""A Redis provider that sends ``WAIT`` after each acquire, as ours does not: what would that be worth?

Not after an extension or a release: workers that use it do not extend.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from shedlock_py import AsyncLockProvider, Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.providers.redis import AsyncRedisLockProvider, RedisLockProvider

REPLICAS = 1
REPLICA_MILLISECONDS = 300
LIMITS: dict[str, Any] = {"socket_timeout": 1, "socket_connect_timeout": 1, "single_connection_client": True}
"""``WAIT`` is about the writes of its own connection, so there is only one."""


def open_waiting(family: str, is_async: bool, where: str, options: dict[str, Any]) -> LockProvider | AsyncLockProvider:
    return AsyncWaiting(where, **options) if is_async else Waiting(where, **options)


class Waiting(RedisLockProvider):
    def __init__(self, url: str, **options: Any) -> None:
        self._connection = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **LIMITS)
        super().__init__(self._connection, **options)

    def acquire(self, request: LockRequest) -> Lease | None:
        lease = super().acquire(request)
        if lease is not None:
            self._wait()
        return lease

    def _wait(self) -> None:
        try:
            have_it = self._connection.wait(REPLICAS, REPLICA_MILLISECONDS)
        except redis.RedisError as error:
            raise ProviderUnreachable(f"WAIT: {error}", operation="acquire") from error
        _check(have_it)


class AsyncWaiting(AsyncRedisLockProvider):
    def __init__(self, url: str, **options: Any) -> None:
        self._connection = redis.asyncio.Redis.from_url(url, retry=AsyncRetry(NoBackoff(), 0), **LIMITS)
        super().__init__(self._connection, **options)

    async def acquire(self, request: LockRequest) -> Lease | None:
        lease = await super().acquire(request)
        if lease is not None:
            await self._wait()
        return lease

    async def _wait(self) -> None:
        try:
            have_it = await self._connection.wait(REPLICAS, REPLICA_MILLISECONDS)
        except redis.RedisError as error:
            raise ProviderUnreachable(f"WAIT: {error}", operation="acquire") from error
        _check(have_it)


def _check(have_it: Any) -> None:
    if int(have_it) < REPLICAS:
        raise ProviderUnreachable("WAIT: no replica has it yet", operation="acquire")
