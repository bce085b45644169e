"""The contract on Redis: managed and user-supplied clients, a cluster, and a quorum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from shedlock_py import LockProvider
from shedlock_py.providers.kit import AsyncProgramProvider
from shedlock_py.providers.redis import (
    AsyncRedisLockProvider,
    AsyncRedisQuorumLockProvider,
    RedisLockProvider,
    RedisQuorumLockProvider,
)
from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    BlockingLockProvider,
    EventLoopContract,
    ForkContract,
    LockProviderContract,
    NetworkContract,
    ProcessContract,
    StallingStoreContract,
)
from shedlock_py.testing.proxy import TcpProxy
from tests.contract.redis import RedisContract, RedisStore
from tests.support.ports import free_port
from tests.support.redis import RedisCluster, RedisEndpoint, RedisServer

Make = Callable[..., Any]


@pytest.fixture(scope="class")
def store(request: pytest.FixtureRequest) -> Iterator[RedisStore]:
    """The lock records of one class of tests, on the servers that the class names."""
    contract = request.cls
    servers, make = contract.place(request)
    store = RedisStore(servers, make, is_async=issubclass(contract.kind, AsyncProgramProvider))
    yield store
    store.close()


def of_client(provider: Make, from_url: Make, url: str, *, key_prefix: str, **options: Any) -> Any:
    """A provider of a client as an application has it."""
    return provider(from_url(url, **options), key_prefix=key_prefix)


class OneServer(RedisContract):
    """Where providers get a URL."""

    kind: ClassVar[Any]

    @classmethod
    def place(cls, request: pytest.FixtureRequest) -> tuple[Sequence[RedisEndpoint], Make]:
        server: RedisEndpoint = request.getfixturevalue("redis_server")
        return [server], cls.make_at(server.url())

    @classmethod
    def make_at(cls, url: str) -> Make:
        return partial(cls.kind, url)

    @pytest.fixture
    def make_proxied_provider(self, store: RedisStore, proxy: TcpProxy) -> Iterator[Make]:
        server: Any = store.servers[0]
        with ExitStack() as resources:
            yield lambda: store.open(resources, self.make_at(server.url(via=proxy.address)))

    @pytest.fixture
    def failing_provider(self) -> Iterator[LockProvider]:
        url = f"redis://127.0.0.1:{free_port()}"
        if issubclass(self.kind, AsyncProgramProvider):
            with BlockingLockProvider(lambda: self.kind(url)) as facade:
                yield facade
        else:
            yield self.kind(url)


class UsersClient(OneServer):
    """Where providers get a client, with options that an application may have chosen."""

    from_url: ClassVar[Make]
    options: ClassVar[dict[str, Any]]

    @classmethod
    def make_at(cls, url: str) -> Make:
        return partial(of_client, cls.kind, cls.from_url, url, **cls.options)


class UsersClientNetwork(UsersClient, NetworkContract):
    """With a client that retries ten times without pauses, and is closed at the end."""

    sends = 11
    most_connections = 300

    @pytest.fixture
    def make_proxied_provider(self, store: RedisStore, proxy: TcpProxy) -> Iterator[Make]:
        server: Any = store.servers[0]
        clients: list[Any] = []

        def make(key_prefix: str) -> Any:
            clients.append(type(self).from_url(server.url(via=proxy.address), **self.options))
            return self.kind(clients[-1], key_prefix=key_prefix)

        def open_one() -> LockProvider:
            provider = store.open(resources, make)
            if isinstance(provider, BlockingLockProvider):
                resources.callback(lambda: provider.run(clients[-1].aclose()))
            else:
                resources.callback(clients[-1].close)
            return provider

        with ExitStack() as resources:
            yield open_one


class TestUrl(OneServer, StallingStoreContract, LockProviderContract, ProcessContract):
    kind = RedisLockProvider


class TestAsyncUrl(OneServer, StallingStoreContract, AsyncLockProviderContract, ProcessContract):
    kind = AsyncRedisLockProvider


class TestUsersClient(UsersClient, StallingStoreContract, LockProviderContract):
    kind = RedisLockProvider
    from_url = redis.Redis.from_url
    options: ClassVar = {"decode_responses": True, "protocol": 2, "max_connections": 300}


class TestAsyncUsersClient(UsersClient, StallingStoreContract, AsyncLockProviderContract):
    kind = AsyncRedisLockProvider
    from_url = redis.asyncio.Redis.from_url
    options: ClassVar = {"decode_responses": True, "protocol": 3, "max_connections": 300}


class TestNetwork(OneServer, NetworkContract):
    kind = RedisLockProvider


class TestAsyncNetwork(OneServer, NetworkContract):
    kind = AsyncRedisLockProvider


class TestUsersClientNetwork(UsersClientNetwork):
    kind = RedisLockProvider
    from_url = redis.Redis.from_url
    options: ClassVar = {"retry": Retry(NoBackoff(), 10), "max_connections": 300}


class TestAsyncUsersClientNetwork(UsersClientNetwork):
    kind = AsyncRedisLockProvider
    from_url = redis.asyncio.Redis.from_url
    options: ClassVar = {"retry": AsyncRetry(NoBackoff(), 10), "max_connections": 300}


class TestForks(OneServer, ForkContract):
    kind = RedisLockProvider


class TestUsersClientForks(UsersClient, ForkContract):
    kind = RedisLockProvider
    from_url = redis.Redis.from_url
    options: ClassVar = {}


class TestEventLoops(OneServer, EventLoopContract):
    kind = AsyncRedisLockProvider


class OnCluster(RedisContract):
    """Where providers get the client of a cluster of three masters."""

    kind: ClassVar[Any]
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

    kind: ClassVar[Any]
    size: ClassVar[int]

    @classmethod
    def place(cls, request: pytest.FixtureRequest) -> tuple[Sequence[RedisEndpoint], Make]:
        servers: list[RedisServer] = request.getfixturevalue("redis_nodes")[: cls.size]
        # The contract has leases of ten years; nothing is restarted here.
        return servers, partial(cls.kind, [server.url() for server in servers], longest_lease="521w")

    @pytest.fixture
    def failing_provider(self, store: RedisStore) -> Iterator[LockProvider]:
        """A majority is down."""
        alive = self.size // 2
        urls = [server.url() for server in store.servers[:alive]]
        urls += [f"redis://127.0.0.1:{free_port()}" for _ in range(self.size - alive)]
        if issubclass(self.kind, AsyncProgramProvider):
            with BlockingLockProvider(lambda: self.kind(urls, key_prefix=store.prefix)) as facade:
                yield facade
        else:
            provider = self.kind(urls, key_prefix=store.prefix)
            yield provider
            provider.close()


class TestQuorumOf3(OnQuorum, LockProviderContract, ProcessContract):
    kind = RedisQuorumLockProvider
    size = 3


class TestQuorumForks(OnQuorum, ForkContract):
    kind = RedisQuorumLockProvider
    size = 3


class TestAsyncQuorumOf5(OnQuorum, AsyncLockProviderContract, ProcessContract):
    kind = AsyncRedisQuorumLockProvider
    size = 5
