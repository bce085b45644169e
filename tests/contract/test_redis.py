"""The contract on Redis: managed and user-supplied clients, a cluster, and a quorum."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from shedlock_py.providers.redis import (
    AsyncRedisLockProvider,
    AsyncRedisQuorumLockProvider,
    RedisLockProvider,
    RedisQuorumLockProvider,
)
from shedlock_py.providers.redis.quorum import broadcast
from shedlock_py.testing.contract import (
    AsyncHistoryContract,
    AsyncLockProviderContract,
    AsyncPauseContract,
    EventLoopContract,
    ForkContract,
    HistoryContract,
    LockProviderContract,
    NetworkContract,
    PauseContract,
    ProcessContract,
    StallingStoreContract,
)
from shedlock_py.testing.contract.threads import ThreadsContract
from tests.contract.redis import RedisContract, RedisStore
from tests.contract.stores import BUSY
from tests.support.ports import free_port
from tests.support.redis import RedisServer


class TestUrl(
    RedisContract,
    NetworkContract,
    StallingStoreContract,
    LockProviderContract,
    HistoryContract,
    ProcessContract,
    ForkContract,
):
    kind = RedisLockProvider


class TestAsyncUrl(
    RedisContract,
    NetworkContract,
    StallingStoreContract,
    AsyncLockProviderContract,
    AsyncHistoryContract,
    ProcessContract,
    EventLoopContract,
):
    kind = AsyncRedisLockProvider


class WithHistory(RedisContract):
    """What every provider does, by one with history."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> RedisStore:
        server = request.getfixturevalue("redis_server")
        return RedisStore([server], cls.kind, server.url(), {"history": 3})


class TestUrlWithHistory(WithHistory, NetworkContract):
    kind = RedisLockProvider


@pytest.mark.matrix
class TestAsyncUrlWithHistory(WithHistory, NetworkContract, AsyncLockProviderContract, EventLoopContract):
    kind = AsyncRedisLockProvider


class TestUsersClient(RedisContract, StallingStoreContract, ThreadsContract, HistoryContract, ForkContract):
    """What depends on the client; the rest is of the matrix."""

    kind = RedisLockProvider
    from_url = redis.Redis.from_url
    client_options: ClassVar = {"decode_responses": True, "protocol": 2, "max_connections": 300}


@pytest.mark.matrix
class TestAllWithUsersClient(RedisContract, LockProviderContract):
    kind = RedisLockProvider
    from_url = redis.Redis.from_url
    client_options: ClassVar = {"decode_responses": True, "protocol": 2, "max_connections": 300}


@pytest.mark.matrix
class TestAsyncUsersClient(RedisContract, StallingStoreContract, AsyncLockProviderContract, AsyncHistoryContract):
    kind = AsyncRedisLockProvider
    from_url = redis.asyncio.Redis.from_url
    client_options: ClassVar = {"decode_responses": True, "protocol": 3, "max_connections": 300}


class UsersClientNetwork(RedisContract, NetworkContract):
    """With a client that retries ten times without pauses."""

    sends = 11
    most_connections = 300


class TestUsersClientNetwork(UsersClientNetwork):
    kind = RedisLockProvider
    from_url = redis.Redis.from_url
    client_options: ClassVar = {"retry": Retry(NoBackoff(), 10), "max_connections": 300}


class TestAsyncUsersClientNetwork(UsersClientNetwork):
    kind = AsyncRedisLockProvider
    from_url = redis.asyncio.Redis.from_url
    client_options: ClassVar = {"retry": AsyncRetry(NoBackoff(), 10), "max_connections": 300}


class OnCluster(RedisContract):
    """Providers get the client of a cluster of three masters."""

    client_options: ClassVar = {"max_connections": 300}

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> RedisStore:
        cluster = request.getfixturevalue("redis_cluster")
        return RedisStore([cluster], cls.kind, cluster.url(), {}, cls.make_client())


@pytest.mark.matrix
class TestCluster(OnCluster, LockProviderContract, HistoryContract):
    kind = RedisLockProvider
    from_url = redis.RedisCluster.from_url


@pytest.mark.matrix
class TestAsyncCluster(OnCluster, AsyncLockProviderContract, AsyncHistoryContract):
    kind = AsyncRedisLockProvider
    from_url = redis.asyncio.RedisCluster.from_url


class OnQuorum(RedisContract):
    """Providers get the URLs of several servers."""

    size: ClassVar[int]
    herd: ClassVar[int] = 30  # each caller sends a request to each server

    @pytest.fixture(autouse=True)
    def _on_a_busy_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A broadcast waits for servers that are up for as long as they may need there.

        Also for the last one: which servers reply decides by some ms which times a record has.
        """
        monkeypatch.setattr(broadcast, "BROADCAST_SECONDS", 8.0)
        monkeypatch.setattr(broadcast, "GRACE_SECONDS", 4.0)

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> RedisStore:
        servers: list[RedisServer] = request.getfixturevalue("redis_nodes")[: cls.size]
        # The contract has leases of ten years; nothing is restarted here.
        options = {"longest_lease": "521w", "timeout": BUSY}
        return RedisStore(servers, cls.kind, [server.url() for server in servers], options)

    @pytest.fixture
    def unreachable(self, store: RedisStore) -> Any:
        """A majority is down."""
        alive = self.size // 2
        dead = [f"redis://127.0.0.1:{free_port()}" for _ in range(self.size - alive)]
        return [*store.place[:alive], *dead]


class TestQuorumOf3(OnQuorum, LockProviderContract, HistoryContract, ProcessContract, ForkContract):
    kind = RedisQuorumLockProvider
    size = 3


class TestAsyncQuorumOf5(OnQuorum, AsyncLockProviderContract, AsyncHistoryContract, ProcessContract):
    programs_in = TestQuorumOf3
    kind = AsyncRedisQuorumLockProvider
    size = 5


class TestPause(RedisContract, PauseContract):
    kind = RedisLockProvider


class TestAsyncPause(RedisContract, AsyncPauseContract):
    kind = AsyncRedisLockProvider


class TestPauseOnQuorum(OnQuorum, PauseContract):
    kind = RedisQuorumLockProvider
    size = 3


class TestAsyncPauseOnQuorum(OnQuorum, AsyncPauseContract):
    programs_in = TestPauseOnQuorum
    kind = AsyncRedisQuorumLockProvider
    size = 3
