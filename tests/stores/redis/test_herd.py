"""200 replicas of one job in one process, all at once: no error, and no more connections than the pool has."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from shedlock_py import Lease, LockRequest
from shedlock_py.providers.redis import AsyncRedisLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import Store

HERD = 200
# Two connections of a pool are kept for the leases that are held.
POOLS = pytest.mark.parametrize(("options", "least", "size"), [("", 2, 20), ("?max_connections=3", 1, 3)])


@POOLS
@pytest.mark.parametrize("kind", ["url"])
def test_threads(store: Store, proxy: TcpProxy, name: str, options: str, least: int, size: int) -> None:
    provider = store.provider(url=store.server.url(via=proxy.address) + options)
    with ThreadPoolExecutor(HERD) as pool:
        leases = list(pool.map(lambda _: provider.acquire(LockRequest(name, "1m")), range(3 * HERD)))
    assert sum(lease is not None for lease in leases) == 1
    assert least <= proxy.connections <= size


@POOLS
@pytest.mark.parametrize("kind", ["async url"])
def test_tasks(store: Store, proxy: TcpProxy, name: str, options: str, least: int, size: int) -> None:
    async def main() -> list[Lease | None]:
        provider = AsyncRedisLockProvider(store.server.url(via=proxy.address) + options)
        leases: list[Lease | None] = []
        for _ in range(3):
            leases += await asyncio.gather(*(provider.acquire(LockRequest(name, "1m")) for _ in range(HERD)))
        await provider.close()
        return leases

    leases = asyncio.run(main())
    assert sum(lease is not None for lease in leases) == 1
    assert least <= proxy.connections <= size


@pytest.mark.parametrize("kind", ["async url"])
def test_a_long_scan_lets_others_have_the_connection(private: Store, name: str) -> None:
    async def main() -> None:
        provider = AsyncRedisLockProvider(f"{private.server.url()}?max_connections=1")
        scanning = asyncio.create_task(provider.records())
        assert await provider.acquire(LockRequest(name, "1m"))
        assert await provider.acquire(LockRequest(name, "1m")) is None
        assert not scanning.done()
        await scanning
        await provider.close()

    with private.server.client() as client:
        client.mset({f"other-{number}": "" for number in range(20_000)})
    asyncio.run(main())
