"""Processes that fork, and event loops: one after another, and at once."""

import asyncio
import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.mongodb import AsyncMongoLockProvider, MongoLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.mongodb.stores import DATABASE, PATIENT, Store
from tests.stores.sql.stores import acquired
from tests.stores.sql.test_forks_and_loops import use_on_both_sides
from tests.support.forks import in_child
from tests.support.polling import wait_until

only_sync = pytest.mark.parametrize("store", ["sync"], indirect=True)
only_async = pytest.mark.parametrize("store", ["async"], indirect=True)


@only_sync
def test_fork(store: Store, name: str) -> None:
    provider = store.provider(**PATIENT)
    use_on_both_sides(provider, name)


# As PyMongo warns, with advice that a user of theirs may not be able to follow: a web server forks after the import.
@pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")
@only_sync
def test_fork_with_a_users_client(store: Store, name: str) -> None:
    use_on_both_sides(store.provider_of_client(), name)


@only_sync
def test_a_child_that_closes_does_not_close_the_parents(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = MongoLockProvider(store.url(proxy.address, **PATIENT), collection=store.collection)
    lease = acquired(provider, name)
    before = proxy.connections
    in_child(provider.close)
    assert provider.release(lease)
    assert proxy.connections == before
    provider.close()


@only_async
def test_fork_between_event_loops(store: Store, name: str) -> None:
    provider = AsyncMongoLockProvider(store.url(**PATIENT), collection=store.collection)

    async def main() -> None:
        lease = await provider.acquire(LockRequest(name, "1m"))
        assert lease
        assert await provider.release(lease)
        await provider.close()

    asyncio.run(main())
    in_child(lambda: asyncio.run(main()))
    asyncio.run(main())


@only_async
def test_event_loops_one_after_the_other(store: Store, name: str) -> None:
    provider = AsyncMongoLockProvider(store.url(**PATIENT), collection=store.collection)

    async def main() -> None:
        await provider.create_schema()
        lease = await provider.acquire(LockRequest(name, "1m"))
        assert lease
        assert await provider.acquire(LockRequest(name, "1m")) is None
        assert await provider.extend(lease, "2m") is lease
        assert await provider.release(lease)
        await provider.close()

    for _ in range(3):
        asyncio.run(main())


@only_async
def test_event_loops_that_nobody_cleans_up_after(store: Store, proxy: TcpProxy, name: str) -> None:
    def many_loops() -> None:
        provider = AsyncMongoLockProvider(store.url(proxy.address, **PATIENT), collection=store.collection)

        async def use(i: int) -> None:
            leases = await asyncio.gather(*(provider.acquire(LockRequest(f"{name}-{i}-{j}", "1m")) for j in range(2)))
            for lease in leases:
                assert lease
                assert await provider.release(lease)

        for i in range(8):
            asyncio.run(use(i))
        gc.collect()
        wait_until(lambda: proxy.open_connections <= 5, what="the connections of all loops but the last gone")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # PyMongo and asyncio complain, as they would without us
        many_loops()
        gc.collect()


@only_async
def test_event_loops_at_once(store: Store, name: str) -> None:
    provider = AsyncMongoLockProvider(store.url(**PATIENT), collection=store.collection)
    loops = 4
    barrier = threading.Barrier(loops)
    winners: list[int] = []

    async def main() -> None:
        await provider.create_schema()
        for i in range(5):
            await asyncio.to_thread(barrier.wait, 30)
            lease = await provider.acquire(LockRequest(f"{name}-{i}", "1m"))
            winners.extend([i] if lease else [])
            assert await provider.record(f"{name}-{i}")
        await provider.close()

    with ThreadPoolExecutor(loops) as pool:
        for done in [pool.submit(lambda: asyncio.run(main())) for _ in range(loops)]:
            done.result(60)
    assert sorted(winners) == [0, 1, 2, 3, 4]


@only_async
def test_a_users_client_from_a_second_loop_is_an_error_not_a_skip(store: Store, name: str) -> None:
    client = AsyncMongoClient[Any](store.url())
    provider = AsyncMongoLockProvider(client[DATABASE], collection=store.collection)

    async def second() -> None:
        with pytest.raises(ProviderError, match="event loop") as error:
            await provider.acquire(LockRequest(f"{name}-2", "1m"))
        assert not isinstance(error.value, ProviderUnreachable)

    with asyncio.Runner() as first:
        assert first.run(provider.acquire(LockRequest(name, "1m")))
        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, second()).result(60)
        first.run(client.close())


@only_sync
def test_close_and_go_on(store: Store, name: str) -> None:
    provider = store.provider(**PATIENT)
    lease = acquired(provider, name)
    assert isinstance(provider, MongoLockProvider)
    provider.close()
    provider.close()
    assert provider.release(lease)
