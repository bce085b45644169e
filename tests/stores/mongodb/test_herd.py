"""200 replicas of one job in one process, all at once: 199 skips, no error, no more connections than the pool has."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shedlock_py import Lease, LockRequest
from shedlock_py.providers.mongodb import AsyncMongoLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.mongodb.stores import PATIENT, Store

HERD = 200
OWN_POOL = 20
MONITORS = 2


@pytest.mark.parametrize("store", ["sync"], indirect=True)
@pytest.mark.parametrize(("kind", "most"), [("url", OWN_POOL), ("client", 3)])
def test_threads(kind: str, most: int, store: Store, proxy: TcpProxy, name: str) -> None:
    if kind == "url":
        provider = store.provider(proxy.address, **PATIENT)
    else:
        provider = store.provider_of_client(proxy.address, maxPoolSize=3)
    barrier = threading.Barrier(HERD)

    def acquire(_: int) -> list[Lease | None]:
        barrier.wait(60)
        return [provider.acquire(LockRequest(name, "1m")) for _ in range(2)]

    with ThreadPoolExecutor(HERD) as pool:
        leases = [lease for pair in pool.map(acquire, range(HERD)) for lease in pair]
    assert sum(lease is not None for lease in leases) == 1
    assert 1 <= proxy.connections <= most + MONITORS


@pytest.mark.parametrize("store", ["async"], indirect=True)
def test_tasks(store: Store, proxy: TcpProxy, name: str) -> None:
    async def main() -> list[Lease | None]:
        provider = AsyncMongoLockProvider(store.url(proxy.address, **PATIENT), collection=store.collection)
        leases: list[Lease | None] = []
        for _ in range(2):
            leases += await asyncio.gather(*(provider.acquire(LockRequest(name, "1m")) for _ in range(HERD)))
        await provider.close()
        return leases

    leases = asyncio.run(main())
    assert sum(lease is not None for lease in leases) == 1
    assert 1 <= proxy.connections <= OWN_POOL + MONITORS
