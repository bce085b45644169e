"""Event loops that close nothing, and clients of another loop. The contract tests other cases."""

import asyncio
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.mongodb import AsyncMongoLockProvider, MongoLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import only_async
from tests.stores.mongodb.stores import DATABASE, SLOW_SERVER, Store
from tests.support.locks import acquired
from tests.support.polling import wait_until


@only_async
def test_connections_of_event_loops_that_ended_are_closed(store: Store, proxy: TcpProxy, name: str) -> None:
    def many_loops() -> None:
        provider = AsyncMongoLockProvider(store.url(proxy.address, **SLOW_SERVER), collection=store.collection)

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
        warnings.simplefilter("ignore", ResourceWarning)  # PyMongo and asyncio warn even without shedlock_py
        many_loops()
        gc.collect()


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


def test_a_provider_that_was_closed_connects_anew(store: Store, name: str) -> None:
    provider = store.provider(**SLOW_SERVER)
    lease = acquired(provider, name)
    assert isinstance(provider, MongoLockProvider)
    provider.close()
    provider.close()
    assert provider.release(lease)
