"""The contract on Redis: our own clients, those of applications, a cluster, and a quorum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import pytest
import redis
import redis.asyncio

from shedlock_py import LockProvider
from shedlock_py.providers.redis import (
    AsyncRedisLockProvider,
    AsyncRedisQuorumLockProvider,
    RedisLockProvider,
    RedisQuorumLockProvider,
)
from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    BlockingLockProvider,
    LockProviderContract,
    ProcessContract,
    StallingStoreContract,
)
from tests.contract.redis import RedisContract, RedisStore
from tests.support.ports import free_port
from tests.support.redis import RedisCluster, RedisEndpoint, RedisServer

Make = Callable[..., Any]


@pytest.fixture(scope="class")
def store(request: pytest.FixtureRequest) -> Iterator[RedisStore]:
    """The lock records of one class of tests, on the servers that the class names."""
    contract = request.cls
    servers, make = contract.place(request)
    store = RedisStore(servers, make, is_async=issubclass(contract, AsyncLockProviderContract))
    yield store
    store.close()


def of_client(provider: Make, from_url: Make, url: str, *, key_prefix: str, **options: Any) -> Any:
    """A provider of a client as an application has it."""
    return provider(from_url(url, **options), key_prefix=key_prefix)


class OneServer(RedisContract, StallingStoreContract):
    """Where providers get a URL."""

    kind: ClassVar[Make]

    @classmethod
    def place(cls, request: pytest.FixtureRequest) -> tuple[Sequence[RedisEndpoint], Make]:
        server: RedisEndpoint = request.getfixturevalue("redis_server")
        return [server], partial(cls.kind, server.url())

    @pytest.fixture
    def failing_provider(self) -> Iterator[LockProvider]:
        url = f"redis://127.0.0.1:{free_port()}"
        if issubclass(type(self), AsyncLockProviderContract):
            with BlockingLockProvider(lambda: self.kind(url)) as facade:
                yield facade
        else:
            yield self.kind(url)


class UsersClient(OneServer):
    """Where providers get a client, with options that an application may have chosen."""

    from_url: ClassVar[Make]
    options: ClassVar[dict[str, Any]]

    @classmethod
    def place(cls, request: pytest.FixtureRequest) -> tuple[Sequence[RedisEndpoint], Make]:
        server: RedisEndpoint = request.getfixturevalue("redis_server")
        return [server], partial(of_client, cls.kind, cls.from_url, server.url(), **cls.options)


class TestUrl(OneServer, LockProviderContract, ProcessContract):
    kind = RedisLockProvider


class TestAsyncUrl(OneServer, AsyncLockProviderContract, ProcessContract):
    kind = AsyncRedisLockProvider


class TestUsersClient(UsersClient, LockProviderContract):
    kind = RedisLockProvider
    from_url = redis.Redis.from_url
    options: ClassVar = {"decode_responses": True, "protocol": 2, "max_connections": 300}


class TestAsyncUsersClient(UsersClient, AsyncLockProviderContract):
    kind = AsyncRedisLockProvider
    from_url = redis.asyncio.Redis.from_url
    options: ClassVar = {"decode_responses": True, "protocol": 3, "max_connections": 300}


class OnCluster(RedisContract):
    """Where providers get the client of a cluster of three masters."""

    kind: ClassVar[Make]
    from_url: ClassVar[Make]

    @classmethod
    def place(cls, request: pytest.FixtureRequest) -> tuple[Sequence[RedisCluster], Make]:
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        return [cluster], partial(of_client, cls.kind, cls.from_url, cluster.url(), max_connections=300)


class TestCluster(OnCluster, LockProviderContract):
    kind = RedisLockProvider
    from_url = redis.RedisCluster.from_url


class TestAsyncCluster(OnCluster, AsyncLockProviderContract):
    kind = AsyncRedisLockProvider
    from_url = redis.asyncio.RedisCluster.from_url


class OnQuorum(RedisContract):
    """Where providers get the URLs of several servers."""

    kind: ClassVar[Make]
    size: ClassVar[int]

    @classmethod
    def place(cls, request: pytest.FixtureRequest) -> tuple[Sequence[RedisEndpoint], Make]:
        servers: list[RedisServer] = request.getfixturevalue("redis_nodes")[: cls.size]
        # A contract asks for leases of ten years; nothing is restarted here.
        return servers, partial(cls.kind, [server.url() for server in servers], longest_lease="521w")

    @pytest.fixture
    def failing_provider(self, store: RedisStore) -> Iterator[LockProvider]:
        """A majority is down."""
        alive = self.size // 2
        urls = [server.url() for server in store.servers[:alive]]
        urls += [f"redis://127.0.0.1:{free_port()}" for _ in range(self.size - alive)]
        if issubclass(type(self), AsyncLockProviderContract):
            with BlockingLockProvider(lambda: self.kind(urls, key_prefix=store.prefix)) as facade:
                yield facade
        else:
            provider = self.kind(urls, key_prefix=store.prefix)
            yield provider
            provider.close()


class TestQuorumOf3(OnQuorum, LockProviderContract, ProcessContract):
    kind = RedisQuorumLockProvider
    size = 3


class TestAsyncQuorumOf5(OnQuorum, AsyncLockProviderContract, ProcessContract):
    kind = AsyncRedisQuorumLockProvider
    size = 5
