"""200 replicas of one job in one process, all at once: 199 skips, no error, and no more sessions than the pool has."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shedlock_py import Lease, LockRequest
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import ASYNC_DRIVERS, SYNC_DRIVERS, Store

HERD = 200
OWN_POOL = 5


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
@pytest.mark.parametrize(("kind", "most"), [("url", OWN_POOL), ("engine", 3)])
def test_threads(driver: str, kind: str, most: int, store: Store, proxy: TcpProxy, name: str) -> None:
    if kind == "url":
        provider = store.provider(proxy.address)
    else:
        provider = store.provider_of_engine(proxy.address, pool_size=3, max_overflow=0)
    barrier = threading.Barrier(HERD)

    def acquire(_: int) -> list[Lease | None]:
        barrier.wait(60)
        return [provider.acquire(LockRequest(name, "1m")) for _ in range(2)]

    with ThreadPoolExecutor(HERD) as pool:
        leases = [lease for pair in pool.map(acquire, range(HERD)) for lease in pair]
    assert sum(lease is not None for lease in leases) == 1
    assert 1 <= proxy.connections <= most


@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
def test_tasks(driver: str, store: Store, proxy: TcpProxy, name: str) -> None:
    async def main() -> list[Lease | None]:
        provider = AsyncSqlAlchemyLockProvider(store.url(proxy.address))
        leases: list[Lease | None] = []
        for _ in range(2):
            leases += await asyncio.gather(*(provider.acquire(LockRequest(name, "1m")) for _ in range(HERD)))
        await provider.close()
        return leases

    leases = asyncio.run(main())
    assert sum(lease is not None for lease in leases) == 1
    assert 1 <= proxy.connections <= OWN_POOL
