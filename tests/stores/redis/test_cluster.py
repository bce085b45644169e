"""A cluster of three masters: each lock is on one master, and some operations use all masters."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable
from tests.stores.redis.stores import Store, send
from tests.support.locks import acquired
from tests.support.redis import RedisCluster

NAMES = ["plain", "{braced}", "a}b", "}", "{}", "a{b", "{{{", "größe 🐑", "*", "x y"]


@pytest.fixture(params=["sync", "async"])
def store(request: pytest.FixtureRequest, redis_cluster: RedisCluster) -> Iterator[Store]:
    store = Store(redis_cluster.nodes[0], "once" if request.param == "sync" else "async once")
    with store.stack:
        yield store


@pytest.fixture
def prefix(name: str, redis_cluster: RedisCluster) -> Iterator[str]:
    yield name
    with redis_cluster.client() as client:
        for key in client.scan_iter(match=f"{name}:*", count=1000):
            client.delete(key)


@pytest.fixture
def provider(store: Store, redis_cluster: RedisCluster, prefix: str) -> LockProvider:
    return provider_of(store, redis_cluster, prefix)


def provider_of(store: Store, cluster: RedisCluster, prefix: str, **options: Any) -> LockProvider:
    client_class: Any = redis.asyncio.RedisCluster if store.is_async else redis.RedisCluster
    return store.provider_of(lambda: client_class.from_url(cluster.url(), **options), key_prefix=prefix)


def test_names_with_braces_work_on_a_cluster(store: Store, redis_cluster: RedisCluster, prefix: str) -> None:
    provider = provider_of(store, redis_cluster, prefix, decode_responses=True, protocol=2)
    assert repr(getattr(provider, "async_provider", provider)).endswith("LockProvider at a cluster>")
    leases = {name: acquired(provider, name) for name in NAMES}
    for name, lease in leases.items():
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.extend(lease, "2m") is lease
    assert {record.name for record in provider.records()} == set(NAMES)
    assert {record.name for record in provider.records("{")} == {"{braced}", "{}", "{{{"}
    for lease in leases.values():
        assert provider.release(lease) is True
    assert provider.prune("1h") == 0
    assert provider.prune(0) == len(NAMES)
    assert provider.records() == []


@pytest.mark.parametrize("key_prefix", ["{}", "{}:{{one}}"], ids=["spread", "on one server"])
def test_the_prefix_decides_which_servers_have_the_locks(
    store: Store, redis_cluster: RedisCluster, prefix: str, key_prefix: str
) -> None:
    provider = provider_of(store, redis_cluster, key_prefix.format(prefix))
    names = {f"job-{i}" for i in range(60)}
    leases = [acquired(provider, name) for name in sorted(names)]
    counts = []
    for node in redis_cluster.nodes:
        with node.client() as client:
            counts.append(len(list(client.scan_iter(match=f"{prefix}:*", count=1000))))
    assert sum(counts) == len(names)
    assert counts.count(0) == (0 if key_prefix == "{}" else 2), counts
    assert {record.name for record in provider.records("job-")} == names
    for lease in leases:
        assert provider.release(lease)
    assert provider.prune(0) == len(names)


def test_a_cluster_that_forgot_the_scripts_loads_them_again(
    provider: LockProvider, redis_cluster: RedisCluster
) -> None:
    for name in NAMES:
        acquired(provider, name)
    for node in redis_cluster.nodes:
        with node.client() as client:
            send(client, "SCRIPT FLUSH")
    for name in NAMES:
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.force_release(name) is True


@pytest.mark.slow("starts a cluster")
# redis-py abandons connections to lost nodes; the garbage collector closes them.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_i5_the_locks_of_a_server_that_is_gone_are_unreachable(store: Store) -> None:
    """The locks of other servers stay reachable."""
    with RedisCluster() as cluster:
        provider = provider_of(store, cluster, "shedlock", socket_timeout=1)
        names = [f"job-{i}" for i in range(12)]
        for name in names:
            assert provider.release(acquired(provider, name))
        # The other masters go on if the cluster does not need all slots.
        for node in cluster.nodes:
            with node.client() as client:
                client.config_set("cluster-require-full-coverage", "no")
        cluster.nodes[2].kill()
        outcomes = Counter[str]()
        for name in names:
            try:
                lease = provider.acquire(LockRequest(name, "1m"))
                outcomes["granted" if lease else "skipped"] += 1
            except ProviderUnreachable:
                outcomes["unreachable"] += 1
        assert set(outcomes) == {"granted", "unreachable"}
        with pytest.raises(ProviderUnreachable):
            provider.records()
        store.stack.close()
    del provider
    gc.collect()  # here, not in another test


def test_the_checks_are_of_one_node(provider: Any) -> None:
    """One key selects the node."""
    found = {check.check: check.message for check in provider.checks()}
    assert found["replication"] == "one node: no replica is connected"
    assert set(found) == {"eviction", "persistence", "replication"}
