"""Many replicas of one job in one process share a few connections."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from shedlock_py import LockRequest
from shedlock_py.providers.redis import AsyncRedisLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import URL_KINDS, Store, through

HERD = 50


@through(*URL_KINDS)
def test_a_url_limits_the_connections(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(url=f"{store.server.url(via=proxy.address)}?max_connections=4")
    with ThreadPoolExecutor(HERD) as pool:
        leases = list(pool.map(lambda _: provider.acquire(LockRequest(name, "1m")), range(HERD)))
    assert sum(lease is not None for lease in leases) == 1
    assert 1 <= proxy.connections <= 4


@through("async url")
def test_a_long_scan_lets_others_have_the_connection(private: Store, name: str) -> None:
    async def main() -> None:
        provider = AsyncRedisLockProvider(f"{private.server.url()}?max_connections=1")
        scanning = asyncio.create_task(provider.records())
        assert await provider.acquire(LockRequest(name, "1m"))
        assert await provider.acquire(LockRequest(name, "1m")) is None
        scans = client.info("commandstats")["cmdstat_scan"]["calls"]
        await scanning
        assert scans < client.info("commandstats")["cmdstat_scan"]["calls"], "the scan went on after the skip"
        await provider.close()

    with private.server.client() as client:
        client.mset({f"other-{number}": "" for number in range(20_000)})
        asyncio.run(main())
