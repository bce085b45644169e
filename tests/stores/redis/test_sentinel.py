"""A Sentinel's master, before and after a failover; and the grants of a promoted replica."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.stores.redis.stores import Store, send, through
from tests.support.availability import private_server
from tests.support.locks import acquired, token_of
from tests.support.polling import wait_until
from tests.support.redis import RedisSentinel, RedisServer

KINDS = ("once", "async once")


@pytest.fixture
def master_and_replica() -> Iterator[tuple[RedisServer, RedisServer]]:
    with private_server("redis", RedisServer) as master:
        host, port = master.address
        with private_server("redis", lambda: RedisServer(config={"replicaof": f"{host} {port}"})) as replica:
            wait_until(lambda: is_linked(replica), what="the replica is linked")
            yield master, replica


def is_linked(replica: RedisServer) -> bool:
    with replica.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")


def has_all(master: RedisServer, replica: RedisServer) -> bool:
    with master.client() as one, replica.client() as other:
        offsets = [client.info("replication")["master_repl_offset"] for client in (one, other)]
    return bool(offsets[0] == offsets[1])


@dataclass
class Watched:
    store: Store
    sentinel: RedisSentinel

    def provider(self, master: str = "mymaster") -> LockProvider:
        module: Any = redis.asyncio.sentinel if self.store.is_async else redis.sentinel
        made: list[Any] = []

        def client() -> Any:
            made.append(module.Sentinel([self.sentinel.address], socket_timeout=1))
            return made[0].master_for(master, socket_timeout=1)

        provider = self.store.provider_of(client)
        if isinstance(provider, BlockingLockProvider):
            self.store.stack.callback(lambda: provider.run(close(made[0])))
        return provider


async def close(sentinel: Any) -> None:
    for client in sentinel.sentinels:
        await client.aclose()


@through(*KINDS)
def test_a_lock_is_on_the_master_that_a_sentinel_names(kind: str, redis_sentinel: RedisSentinel, name: str) -> None:
    store = Store(redis_sentinel.master, kind)
    with store.stack:
        provider = Watched(store, redis_sentinel).provider()
        assert repr(getattr(provider, "async_provider", provider)).endswith("at the master that Sentinel names>")
        lease = acquired(provider, name)
        with redis_sentinel.master.client() as client:
            assert client.hget(f"shedlock:{{{name}}}", "locked_by") == lease.locked_by.encode()
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.extend(lease, "2m") is lease
        assert [record.name for record in provider.records(name)] == [name]
        assert provider.release(lease) is True
        with pytest.raises(ProviderUnreachable, match="unknown"):
            Watched(store, redis_sentinel).provider("unknown").acquire(LockRequest(name, "1m"))


@pytest.mark.slow("a failover by a Sentinel")
def test_locks_survive_a_failover_by_a_sentinel(master_and_replica: tuple[RedisServer, RedisServer], name: str) -> None:
    master, replica = master_and_replica
    with private_server("redis", lambda: RedisSentinel(master)) as sentinel, ExitStack() as stack:
        with sentinel.client() as client:
            wait_until(lambda: send(client, "SENTINEL REPLICAS mymaster"), timeout=20, what="it knows the replica")
        stores = [Store(master, kind) for kind in KINDS]
        for store in stores:
            stack.enter_context(store.stack)
        providers = [Watched(store, sentinel).provider() for store in stores]
        leases = [acquired(provider, f"{name}-{i}", "2m") for i, provider in enumerate(providers)]
        wait_until(lambda: has_all(master, replica), what="the replica has all")
        master.kill()
        with pytest.raises(ProviderUnreachable):
            providers[0].acquire(LockRequest(name, "1m"))
        wait_until(lambda: sentinel.master_address() == replica.address, timeout=30, what="the failover")
        for provider in providers:
            wait_until(partial(takes_writes, provider), timeout=30, what="a master that takes writes")
        for i, (provider, lease) in enumerate(zip(providers, leases, strict=True)):
            assert provider.acquire(LockRequest(lease.name, "1m")) is None, "the replica had the lock"
            assert provider.extend(lease, "2m") is lease
            assert provider.release(lease) is True
            assert token_of(acquired(provider, lease.name)) > token_of(lease), i


def takes_writes(provider: LockProvider) -> bool:
    try:
        return provider.take_over(LockRequest("probe", "1m")).is_trusted()
    except ProviderUnreachable:
        return False


@pytest.mark.parametrize(
    "kind", ["url", *(pytest.param(kind, marks=pytest.mark.slow("two servers")) for kind in ("async url", *KINDS))]
)
def test_i7_a_stale_replica_is_promoted(
    kind: str, master_and_replica: tuple[RedisServer, RedisServer], name: str
) -> None:
    """Mutual exclusion is lost there, as documented; tokens show the order."""
    master, replica = master_and_replica
    before, after = Store(master, kind), Store(replica, kind)
    with before.stack, after.stack:
        first, second = before.provider(), after.provider()
        known = acquired(first, f"{name}-known")
        wait_until(lambda: has_all(master, replica), what="the replica has all")
        for work in (
            lambda: second.acquire(LockRequest(name, "1m")),
            lambda: second.take_over(LockRequest(name, "1m")),
            lambda: second.extend(known, "2m"),
            lambda: second.release(known),
        ):
            with pytest.raises(ProviderUnreachable, match="read only replica"):
                work()
        assert second.acquire(LockRequest(f"{name}-known", "1m")) is None
        assert first.release(known) is True
        with replica.client() as client:
            send(client, "REPLICAOF NO ONE")  # it no longer receives data
        lost = acquired(first, name)
        master.kill()
        successor = acquired(second, name)
        assert token_of(successor) > token_of(lost)
        assert second.extend(lost, "2m") is None
        assert second.release(lost) is False
        assert second.release(successor) is True
