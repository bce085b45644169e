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
from shedlock_py.testing.contract.network import LateCopiesContract, LostRepliesContract
from shedlock_py.testing.contract.threads import ThreadsContract
from tests.contract.parts import (
    MANY_PROCESSES,
    SAME_PROGRAMS,
    SAME_STATEMENTS,
    AsyncClient,
    AsyncClientBriefly,
    BeforeStore,
    without,
)
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
    PauseContract,
    ForkContract,
):
    kind = RedisLockProvider


class TestAsyncUrl(RedisContract, AsyncClient, LostRepliesContract, StallingStoreContract, EventLoopContract):
    kind = AsyncRedisLockProvider


@pytest.mark.slow(SAME_PROGRAMS)
@without(TestAsyncUrl)
class TestAsyncPrograms(
    RedisContract, NetworkContract, AsyncLockProviderContract, AsyncHistoryContract, AsyncPauseContract
):
    kind = AsyncRedisLockProvider


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(RedisContract, ProcessContract):
    kind = RedisLockProvider


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncProcesses(RedisContract, ProcessContract):
    kind = AsyncRedisLockProvider


class WithHistory(RedisContract):
    """Tests of every provider, on a provider with history."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> RedisStore:
        server = request.getfixturevalue("redis_server")
        return RedisStore([server], cls.kind, server.url(), {"history": 3})


@pytest.mark.slow("the statements have one more part: the runs")
class TestUrlWithHistory(WithHistory, NetworkContract):
    kind = RedisLockProvider


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncUrlWithHistory(WithHistory, NetworkContract, AsyncLockProviderContract, EventLoopContract):
    kind = AsyncRedisLockProvider


class UsersClient(RedisContract):
    kind = RedisLockProvider
    from_url = redis.Redis.from_url
    client_options: ClassVar = {"decode_responses": True, "protocol": 2, "max_connections": 300}


class TestUsersClient(UsersClient, StallingStoreContract, ThreadsContract, ForkContract):
    """Tests that depend on the client."""


@pytest.mark.matrix(SAME_STATEMENTS)
@without(TestUsersClient)
class TestAllWithUsersClient(UsersClient, LockProviderContract, HistoryContract): ...


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncUsersClient(RedisContract, StallingStoreContract, AsyncLockProviderContract, AsyncHistoryContract):
    kind = AsyncRedisLockProvider
    from_url = redis.asyncio.Redis.from_url
    client_options: ClassVar = {"decode_responses": True, "protocol": 3, "max_connections": 300}


class UsersClientNetwork(RedisContract):
    """With a client that retries ten times without pauses."""

    sends = 11
    most_connections = 300
    kind: ClassVar[Any] = RedisLockProvider
    from_url: ClassVar[Any] = redis.Redis.from_url
    client_options: ClassVar = {"retry": Retry(NoBackoff(), 10), "max_connections": 300}


class TestUsersClientNetwork(UsersClientNetwork, LostRepliesContract): ...


@pytest.mark.slow("TestUrl tries the same statements")
class TestUsersClientLateCopies(UsersClientNetwork, LateCopiesContract): ...


@pytest.mark.slow("TestUsersClientNetwork tries a client that retries")
class TestAsyncUsersClientNetwork(UsersClientNetwork, LostRepliesContract):
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


@pytest.mark.matrix(SAME_STATEMENTS)
class TestCluster(OnCluster, LockProviderContract, HistoryContract):
    kind = RedisLockProvider
    from_url = redis.RedisCluster.from_url


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncCluster(OnCluster, AsyncLockProviderContract, AsyncHistoryContract):
    kind = AsyncRedisLockProvider
    from_url = redis.asyncio.RedisCluster.from_url


class OnQuorum(RedisContract):
    """Providers get several servers' URLs."""

    size: ClassVar[int]
    herd: ClassVar[int] = 30  # each caller sends a request to each server

    @pytest.fixture(autouse=True)
    def _on_a_busy_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make a broadcast wait long enough for running servers on a busy machine.

        It also waits for the last server: a few ms decide which servers reply, and so which times a record has.
        """
        monkeypatch.setattr(broadcast, "BROADCAST_SECONDS", 8.0)
        monkeypatch.setattr(broadcast, "GRACE_SECONDS", 4.0)

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> RedisStore:
        servers: list[RedisServer] = request.getfixturevalue("redis_nodes")[: cls.size]
        # The contract has leases of ten years; it restarts nothing.
        options = {"longest_lease": "521w", "timeout": BUSY}
        return RedisStore(servers, cls.kind, [server.url() for server in servers], options)

    @pytest.fixture
    def unreachable(self, store: RedisStore) -> Any:
        """A majority is down."""
        alive = self.size // 2
        dead = [f"redis://127.0.0.1:{free_port()}" for _ in range(self.size - alive)]
        return [*store.place[:alive], *dead]


@without(BeforeStore)
class TestQuorumOf3(OnQuorum, LockProviderContract, HistoryContract, PauseContract, ForkContract):
    kind = RedisQuorumLockProvider
    size = 3


class TestAsyncQuorumOf5(OnQuorum, AsyncClientBriefly):
    kind = AsyncRedisQuorumLockProvider
    size = 5


@pytest.mark.matrix(SAME_PROGRAMS)
@without(TestAsyncQuorumOf5)
class TestAsyncQuorumPrograms(OnQuorum, AsyncLockProviderContract, AsyncHistoryContract, AsyncPauseContract):
    kind = AsyncRedisQuorumLockProvider
    size = 5


@pytest.mark.slow(MANY_PROCESSES)
class TestQuorumProcesses(OnQuorum, ProcessContract):
    kind = RedisQuorumLockProvider
    size = 3


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncQuorumProcesses(OnQuorum, ProcessContract):
    kind = AsyncRedisQuorumLockProvider
    size = 5
