"""The two shells around the algorithm: one asks Redis directly, one awaits it."""

from __future__ import annotations

import redis
import redis.asyncio

from shedlock_py._aio import shielded
from shedlock_py._clock import monotonic
from shedlock_py._program import run, run_async
from shedlock_py.durations import Duration
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.providers.redis.algorithm import RedisAlgorithm
from shedlock_py.providers.redis.clients import AsyncClient, Client, has_retries, place, redactor
from shedlock_py.rules import Lease, LockRecord, LockRequest


class RedisLockProvider(LockProvider):
    """Locks in one Redis (5 or newer), Valkey or a server that speaks like them; also behind Sentinel or as a cluster.

    One asynchronous Redis does not promise mutual exclusion across a fail-over: a replica that is promoted may not have
    heard of the last lock. Fencing tokens still increase. :class:`RedisQuorumLockProvider` survives a lost server.

    :param client_or_url: the application's own ``redis.Redis`` (a Sentinel's ``master_for(…)`` is one) or
        ``redis.RedisCluster``, which we borrow and never close; or a URL (``redis://``, ``rediss://``, ``unix://``),
        for which we open a client with time limits (connect 1 s, answer 1 s) and no hidden retries.
    :param key_prefix: what the keys of the lock records begin with: ``shedlock:{name}``.
    :raises ConfigurationError: a URL, client or prefix that cannot work.
    """

    def __init__(self, client_or_url: redis.Redis | redis.RedisCluster | str, *, key_prefix: str = "shedlock") -> None:
        self._client = Client(client_or_url)
        self._algorithm = _algorithm(self._client, key_prefix)

    def acquire(self, request: LockRequest) -> Lease | None:
        return run(self._algorithm.acquire(request), self._client.execute)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return run(self._algorithm.extend(lease, lock_at_most_for), self._client.execute)

    def release(self, lease: Lease) -> bool:
        return run(self._algorithm.release(lease), self._client.execute)

    def record(self, name: str) -> LockRecord | None:
        return run(self._algorithm.record(name), self._client.execute)

    def records(self, prefix: str = "") -> list[LockRecord]:
        return run(self._algorithm.records(prefix), self._client.execute)

    def force_release(self, name: str) -> bool:
        return run(self._algorithm.force_release(name), self._client.execute)

    def take_over(self, request: LockRequest) -> Lease:
        return run(self._algorithm.take_over(request), self._client.execute)

    def prune(self, unused_for: Duration) -> int:
        return run(self._algorithm.prune(unused_for), self._client.execute)

    def create_schema(self) -> None:
        """Nothing to create."""

    def close(self) -> None:
        """Close the connections that we opened ourselves; those of a borrowed client stay as they are."""
        self._client.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {place(self._client)}>"


class AsyncRedisLockProvider(AsyncLockProvider):
    """:class:`RedisLockProvider` for asyncio, with a client of ``redis.asyncio`` or a URL.

    One from a URL may be used on several event loops; it has connections for each.
    """

    def __init__(
        self, client_or_url: redis.asyncio.Redis | redis.asyncio.RedisCluster | str, *, key_prefix: str = "shedlock"
    ) -> None:
        self._client = AsyncClient(client_or_url)
        self._algorithm = _algorithm(self._client, key_prefix)

    async def acquire(self, request: LockRequest) -> Lease | None:
        return await shielded(
            run_async(self._algorithm.acquire(request), self._client.execute), when_abandoned=self.release
        )

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        # To its end even if cancelled: a release that overtook it would be undone by it.
        return await shielded(run_async(self._algorithm.extend(lease, lock_at_most_for), self._client.execute))

    async def release(self, lease: Lease) -> bool:
        return await shielded(run_async(self._algorithm.release(lease), self._client.execute))

    # The others, too: a call that is cancelled costs its connection.

    async def record(self, name: str) -> LockRecord | None:
        return await shielded(run_async(self._algorithm.record(name), self._client.execute))

    async def records(self, prefix: str = "") -> list[LockRecord]:
        return await shielded(run_async(self._algorithm.records(prefix), self._client.execute))

    async def force_release(self, name: str) -> bool:
        return await shielded(run_async(self._algorithm.force_release(name), self._client.execute))

    async def take_over(self, request: LockRequest) -> Lease:
        return await shielded(
            run_async(self._algorithm.take_over(request), self._client.execute), when_abandoned=self.release
        )

    async def prune(self, unused_for: Duration) -> int:
        return await shielded(run_async(self._algorithm.prune(unused_for), self._client.execute))

    async def create_schema(self) -> None:
        """Nothing to create."""

    async def close(self) -> None:
        """Close the connections that this event loop opened; those of a borrowed client stay as they are."""
        await self._client.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {place(self._client)}>"


def _algorithm(client: Client | AsyncClient, key_prefix: str) -> RedisAlgorithm:
    return RedisAlgorithm(
        key_prefix,
        monotonic,
        redactor(client),
        keys_per_call=1 if client.is_cluster else 500,
        has_retries=has_retries(client),
    )
