"""200 replicas of one job in one process, all at once: no error, and no more connections than the pool has."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shedlock_py import Lease, LockRequest
from shedlock_py.providers.redis import AsyncRedisLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import URL_KINDS, Store

HERD = 200
OWN_POOL = 20


@pytest.mark.parametrize("kind", ["url"])
def test_threads(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    barrier = threading.Barrier(HERD)

    def acquire(_: int) -> list[Lease | None]:
        barrier.wait(60)
        return [provider.acquire(LockRequest(name, "1m")) for _ in range(3)]

    with ThreadPoolExecutor(HERD) as pool:
        leases = [lease for some in pool.map(acquire, range(HERD)) for lease in some]
    assert len(leases) == 3 * HERD
    assert sum(lease is not None for lease in leases) == 1
    assert 2 <= proxy.connections <= OWN_POOL


@pytest.mark.parametrize("kind", ["async url"])
def test_tasks(store: Store, proxy: TcpProxy, name: str) -> None:
    async def main() -> list[Lease | None]:
        provider = AsyncRedisLockProvider(store.server.url(via=proxy.address))
        leases: list[Lease | None] = []
        for _ in range(3):
            leases += await asyncio.gather(*(provider.acquire(LockRequest(name, "1m")) for _ in range(HERD)))
        await provider.close()
        return leases

    leases = asyncio.run(main())
    assert len(leases) == 3 * HERD
    assert sum(lease is not None for lease in leases) == 1
    assert 2 <= proxy.connections <= OWN_POOL


@pytest.mark.parametrize("kind", URL_KINDS)
def test_a_url_says_how_many_connections(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(url=f"{store.server.url(via=proxy.address)}?max_connections=3")
    with ThreadPoolExecutor(HERD) as pool:
        leases = list(pool.map(lambda _: provider.acquire(LockRequest(name, "1m")), range(HERD)))
    assert sum(lease is not None for lease in leases) == 1
    assert proxy.connections <= 3


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
