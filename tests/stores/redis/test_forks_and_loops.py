"""Processes that fork; event loops in sequence, and at the same time."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio

from shedlock_py import ConfigurationError, LockRequest, ProviderError
from shedlock_py.providers.redis import AsyncRedisLockProvider
from shedlock_py.testing.forks import in_child
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import SYNC_KINDS, Store, through
from tests.support.forks import check_fork_by_c, in_a_loop_of_its_own
from tests.support.locks import acquired
from tests.support.polling import wait_until
from tests.support.redis import RedisEndpoint


@through(*SYNC_KINDS)
def test_a_child_has_a_connection_of_its_own(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    held = acquired(provider, f"{name}-held")

    def child() -> None:
        assert provider.acquire(LockRequest(f"{name}-held", "1m")) is None
        assert provider.release(acquired(provider, f"child-{name}"))

    for _ in range(2):
        in_child(child)
        assert provider.extend(held, "2m") is held
    assert proxy.connections == 3, "the parent's connection has survived two children with one each"


@pytest.mark.slow("processes that fork in C, in three ways")
def test_a_child_that_c_has_forked_has_a_connection_of_its_own(redis_server: RedisEndpoint, name: str) -> None:
    check_fork_by_c("url asyncio block", redis_server.url(), name)


async def use(provider: AsyncRedisLockProvider, name: str) -> None:
    lease = await provider.acquire(LockRequest(name, "1m"))
    assert lease
    assert await provider.acquire(LockRequest(name, "1m")) is None
    assert await provider.extend(lease, "2m") is lease
    assert [record.name for record in await provider.records(name)] == [name]
    assert await provider.release(lease)


async def use_and_close(provider: AsyncRedisLockProvider, name: str) -> None:
    await use(provider, name)
    await provider.close()


def test_a_child_forked_inside_an_event_loop_has_a_connection_of_its_own(
    redis_server: RedisEndpoint, name: str
) -> None:
    """The child inherits a provider with connections, on another loop in another thread."""

    async def main() -> None:
        lease = await provider.acquire(LockRequest(name, "1m"))
        assert lease
        in_child(lambda: in_a_loop_of_its_own(lambda: use_and_close(provider, f"child-{name}")))
        assert await provider.extend(lease, "2m") is lease
        assert await provider.release(lease)
        await provider.close()

    with TcpProxy(redis_server.address) as proxy:
        provider = AsyncRedisLockProvider(redis_server.url(via=proxy.address))
        asyncio.run(main())
        assert proxy.connections == 2, "the parent's connection has survived"


def test_a_user_supplied_async_client_in_a_child_is_refused(redis_server: RedisEndpoint, name: str) -> None:
    async def main() -> None:
        client: Any = redis.asyncio.Redis.from_url(redis_server.url())
        provider = AsyncRedisLockProvider(client)
        lease = await provider.acquire(LockRequest(name, "1m"))
        assert lease

        def child() -> None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, daemon=True)
            thread.start()
            work = provider.acquire(LockRequest(f"{name}-child", "1m"))
            with pytest.raises(ConfigurationError, match="make a new client and a new provider in the child"):
                asyncio.run_coroutine_threadsafe(work, loop).result(30)

        in_child(child)
        assert await provider.extend(lease, "2m") is lease
        assert await provider.release(lease)
        await client.aclose()

    asyncio.run(main())


# redis-py and asyncio warn of each connection that outlives its loop.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_event_loops_without_a_close_leave_no_connection(redis_server: RedisEndpoint, name: str) -> None:
    with TcpProxy(redis_server.address) as proxy:
        provider = AsyncRedisLockProvider(redis_server.url(via=proxy.address))
        for _ in range(4):
            asyncio.run(use(provider, name))
        wait_until(lambda: open_after_collecting(proxy) <= 1, what="the connections of all loops but the last gone")
        assert proxy.connections == 4
        asyncio.run(provider.close())
        asyncio.run(use_and_close(provider, name))
        wait_until(lambda: open_after_collecting(proxy) == 0, what="these gone, too")


def open_after_collecting(proxy: TcpProxy) -> int:
    gc.collect()  # does nothing while another thread collects
    return proxy.open_connections


# redis-py warns of a connection that the wrong loop could not close.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:loop is closed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_user_supplied_client_on_two_loops_never_reports_a_skip(redis_server: RedisEndpoint, name: str) -> None:
    client: Any = redis.asyncio.Redis.from_url(redis_server.url())
    provider = AsyncRedisLockProvider(client)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        assert first.run(provider.acquire(LockRequest(name, "1m")))
        try:
            lease = second.run(provider.acquire(LockRequest(f"{name}-2", "1m")))
            assert lease, "it was free"
        except ProviderError as error:
            assert error.__cause__ is not None  # noqa: PT017  # either is right: redis-py may open a new connection
        with suppress(RuntimeError):
            first.run(client.aclose())
    gc.collect()  # here, not in another test


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:loop is closed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_user_supplied_client_whose_loop_is_closed_is_an_error(redis_server: RedisEndpoint, name: str) -> None:
    provider = AsyncRedisLockProvider(redis.asyncio.Redis.from_url(redis_server.url()))
    assert asyncio.run(provider.acquire(LockRequest(name, "1m")))
    with pytest.raises(ProviderError, match=r"Event loop is closed.*make another one for this loop"):
        asyncio.run(provider.acquire(LockRequest(f"{name}-2", "1m")))
    del provider
    gc.collect()
