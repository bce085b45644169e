"""Clients as applications set them up: the locks are the same with each setup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from shedlock_py import ConfigurationError, LockProvider, LockRequest, ProviderError
from shedlock_py.providers.redis import AsyncRedisLockProvider, RedisLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import URL_KINDS, Store, through
from tests.support.availability import private_server
from tests.support.locks import acquired, record_of, token_of
from tests.support.polling import wait_until
from tests.support.redis import RedisEndpoint, RedisTlsServer

ONCE = ("once", "async once")
NAME = "größe 🐑"

OPTIONS: list[dict[str, Any]] = [
    {"decode_responses": True},
    {"decode_responses": True, "encoding": "latin-1"},
    {"decode_responses": True, "encoding": "ascii"},
    {"protocol": 2},
    {"protocol": 3, "decode_responses": True},
    {"protocol": 3, "legacy_responses": False},
    {"single_connection_client": True},
    {"health_check_interval": 1, "client_name": "jobs"},
    {"max_connections": 1},
]


@through(*ONCE)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_lock_is_the_same_with_any_options_of_the_client(
    store: Store, other: LockProvider, options: dict[str, Any], name: str
) -> None:
    provider = store.provider(**options)
    lock, holder = f"{NAME} {name}", "größe\\'\"{}🐑#"
    lease = acquired(provider, lock, holder=holder)
    assert other.acquire(LockRequest(lock, "1m")) is None
    for record in (record_of(provider, lock), record_of(other, lock), *provider.records(lock)):
        assert (record.name, record.holder, record.fencing_token) == (lock, holder, token_of(lease))
    assert provider.extend(lease, "2m") is lease
    assert provider.release(lease) is True
    assert provider.take_over(LockRequest(lock, "1m")).is_trusted()
    assert provider.force_release(lock) is True


@through(*URL_KINDS)
def test_a_lock_is_held_and_released_over_a_unix_socket(private: Store, name: str) -> None:
    url: str = private.server.unix_url(3)  # type: ignore[attr-defined]  # a private one has it
    provider = private.provider(url=url)
    lease = acquired(provider, name)
    with private.server.client(3) as client:
        assert client.exists(f"shedlock:{{{name}}}")
    assert provider.release(lease)
    assert repr(getattr(provider, "async_provider", provider)).endswith("/socket>")


@pytest.fixture(scope="module")
def tls_server() -> Iterator[RedisTlsServer]:
    if os.environ.get("SHEDLOCK_TEST_REDIS") == "valkey":
        pytest.skip("the Valkey of PyPI is built without TLS")
    with private_server("redis", RedisTlsServer) as server:
        yield server


@through(*URL_KINDS, *ONCE)
def test_a_lock_is_held_and_released_over_tls(tls_server: RedisTlsServer, kind: str, name: str) -> None:
    store = Store(tls_server, kind)
    url = tls_server.url()
    with store.stack:
        if kind in ONCE:
            from_url = (redis.asyncio.Redis if store.is_async else redis.Redis).from_url
            provider = store.provider_of(lambda: from_url(url))
        else:
            provider = store.provider(url=url)
        lease = acquired(provider, name)
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.release(lease) is True
        for options in ("", "?ssl_ca_certs=/no/such/file"):
            untrusting = store.provider_of(f"{url.partition('?')[0]}{options}")
            with pytest.raises(ProviderError) as refused:
                untrusting.acquire(LockRequest(name, "1m"))
            assert refused.value.__cause__ is not None


# Objects that are not clients


def test_the_wrong_kind_of_client_is_refused(store_url: str) -> None:
    client: Any = redis.Redis.from_url(store_url)
    async_client: Any = redis.asyncio.Redis.from_url(store_url)
    with pytest.raises(ConfigurationError, match="give it to the Async… provider"):
        RedisLockProvider(async_client)
    with pytest.raises(ConfigurationError, match="provider without Async…"):
        AsyncRedisLockProvider(client)
    client.close()


@pytest.fixture
def store_url(redis_server: RedisEndpoint) -> str:
    return redis_server.url()


class Lookalike:
    def execute_command(self, *words: object, **options: object) -> int:
        return 1


def nonsense() -> list[Any]:
    return [None, 5, b"redis://h", object(), ["redis://h"], redis.Redis, redis.ConnectionPool(), Lookalike()]


def test_neither_a_client_nor_a_url_is_refused() -> None:
    for provider_class in (RedisLockProvider, AsyncRedisLockProvider):
        for given in nonsense():
            with pytest.raises(ConfigurationError, match=r"^not a redis\.\S+, redis\.\S+ or URL: \w+$"):
                provider_class(given)


def test_a_pipeline_would_only_collect_commands(store_url: str) -> None:
    with redis.Redis.from_url(store_url) as client:
        for pipeline in (client.pipeline(), client.pipeline(transaction=False)):
            with pytest.raises(ConfigurationError, match="Pipeline"):
                RedisLockProvider(pipeline)
    async_pipeline = redis.asyncio.Redis.from_url(store_url).pipeline()
    with pytest.raises(ConfigurationError, match="Pipeline"):
        AsyncRedisLockProvider(async_pipeline)


@pytest.mark.parametrize("prefix", ["a\x00", "\ud800", "tab\t", 7, None])
def test_prefixes_that_no_name_can_have_are_refused(prefix: Any, store_url: str) -> None:
    for provider_class in (RedisLockProvider, AsyncRedisLockProvider):
        with pytest.raises(ConfigurationError, match=r"^key_prefix "):
            provider_class(store_url, key_prefix=prefix)
    provider = RedisLockProvider(store_url)
    with pytest.raises(ConfigurationError, match=r"^prefix "):
        provider.records(prefix)


# Closing


@through(*URL_KINDS)
def test_close_closes_managed_connections(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    close(provider)
    acquired(provider, name)
    assert proxy.open_connections == 1
    close(provider)
    wait_until(lambda: proxy.open_connections == 0, what="the connection closed")
    assert provider.acquire(LockRequest(name, "1m")) is None, "and the provider can be used again"
    for _ in range(2):
        close(provider)
    wait_until(lambda: proxy.open_connections == 0, what="the connection closed")


@through(*ONCE)
def test_close_leaves_a_user_supplied_client_open(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    lease = acquired(provider, name)
    close(provider)
    assert provider.release(lease)
    assert proxy.connections == 1


def close(provider: Any) -> None:
    if hasattr(provider, "async_provider"):
        provider.run(provider.async_provider.close())
    else:
        provider.close()


@pytest.mark.parametrize("module", [redis.sentinel, redis.asyncio.sentinel])
def test_a_sentinels_client_of_replicas_is_refused(module: Any) -> None:
    """A replica that has lost its master reports "held" for a lock released long ago."""
    client = module.Sentinel([("127.0.0.1", 9)]).slave_for("mymaster")
    make = RedisLockProvider if module is redis.sentinel else AsyncRedisLockProvider
    with pytest.raises(ConfigurationError, match="make it with master_for"):
        make(client)
