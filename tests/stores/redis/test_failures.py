"""A server replies, but cannot do the work now: unreachable, nothing granted, and recovery afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest
import redis

from shedlock_py import LockRequest, ProviderUnreachable
from tests.stores.redis.stores import URL_KINDS, Store, send, through
from tests.support.availability import private_server
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until
from tests.support.redis import RedisServer

of_all = through(*URL_KINDS, "once", "async once")

Fault = Callable[[redis.Redis, RedisServer], Iterator[None]]


def no_replicas(client: redis.Redis, server: RedisServer) -> Iterator[None]:
    client.config_set("min-replicas-to-write", 1)
    yield
    client.config_set("min-replicas-to-write", 0)


def no_snapshot(client: redis.Redis, server: RedisServer) -> Iterator[None]:
    """The server cannot write its snapshot: a directory has that name. Redis then rejects writes."""
    (server.data / "dump.rdb").mkdir()
    client.config_set("save", "3600 100000")
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="the snapshot failed")
    yield
    client.config_set("save", "")


def read_only(client: redis.Redis, server: RedisServer) -> Iterator[None]:
    send(client, "REPLICAOF", *server.address)  # a replica of itself, so that it keeps its data
    yield
    send(client, "REPLICAOF NO ONE")


def busy(client: redis.Redis, server: RedisServer) -> Iterator[None]:
    client.config_set("lua-time-limit", 20)

    def loop() -> None:
        with suppress(redis.RedisError), server.client() as other:
            send(other, "EVAL", "while true do end", 0)

    looping = threading.Thread(target=loop)
    looping.start()
    wait_until(partial(is_busy, client), what="busy")
    yield
    send(client, "SCRIPT KILL")
    looping.join(20)


def is_busy(client: redis.Redis) -> bool:
    try:
        return not client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)


FAULTS = {
    "NOREPLICAS": no_replicas,
    "MISCONF": no_snapshot,
    "READONLY": read_only,
    "BUSY": busy,
}
WORDS = {"READONLY": "read only replica"}  # redis-py removes some codes


@of_all
@pytest.mark.parametrize("fault", FAULTS)
def test_i5_a_server_that_refuses_commands_is_unreachable(private: Store, fault: str, name: str) -> None:
    server = private.server
    assert isinstance(server, RedisServer)
    provider = private.provider()
    held = acquired(provider, f"{name}-held", lock_at_least_for="1s")
    with server.client() as client:
        before = client.dbsize()
        with contextmanager(FAULTS[fault])(client, server):
            for work in (
                lambda: provider.acquire(LockRequest(name, "1m")),
                lambda: provider.take_over(LockRequest(f"{name}-held", "1m")),
                lambda: provider.extend(held, "2m"),
                lambda: provider.release(held),
                lambda: provider.force_release(f"{name}-held"),
            ):
                with pytest.raises(ProviderUnreachable, match=WORDS.get(fault, fault)) as unreachable:
                    work()
                assert isinstance(unreachable.value.__cause__, redis.RedisError)
        assert client.dbsize() == before, "nothing was granted"
    assert record_of(provider, f"{name}-held").locked_by == held.locked_by
    assert provider.release(held) is True
    assert provider.release(acquired(provider, name)) is True


class LoadingServer(RedisServer):
    is_slow = False

    def answers(self) -> bool:
        if not self.is_slow:
            return super().answers()
        with suppress(redis.RedisError), self.client() as client:
            return bool(client.info("persistence")["loading"])
        return False


@of_all
@pytest.mark.slow("a server that loads its file")
def test_i5_a_server_that_is_loading_is_unreachable(kind: str, name: str) -> None:
    """Before it has read its file, the server knows no lock."""
    with private_server("redis", LoadingServer) as server, ExitStack() as stack:
        store = Store(server, kind)
        stack.enter_context(store.stack)
        provider = store.provider()
        held = acquired(provider, name)
        for i in range(300):
            acquired(provider, f"{name}-{i}")
        with server.client() as client:
            client.save()
        server.stop()
        with (server.directory / "redis.conf").open("a") as config:
            # A pause of 20 ms after each key; the server reads requests after some of the keys.
            config.write("key-load-delay 20000\nloading-process-events-interval-bytes 1024\n")
        server.is_slow = True
        server.start()
        for lock in (name, f"{name}-new"):
            with pytest.raises(ProviderUnreachable, match=r"(?i)loading"):
                provider.acquire(LockRequest(lock, "1m"))
        with server.client() as client:
            client.config_set("key-load-delay", 0)
            wait_until(lambda: not client.info("persistence")["loading"], timeout=30, what="loaded")
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.release(held) is True


@of_all
def test_i5_a_server_without_a_free_connection_is_unreachable(private: Store, name: str) -> None:
    provider = private.provider()
    with private.server.client() as client, ExitStack() as others:
        client.config_set("maxclients", 2)
        send(client, "PING")
        other = others.enter_context(private.server.client())
        send(other, "PING")
        with pytest.raises(ProviderUnreachable, match=r"max number of clients reached|Connection lost"):
            provider.acquire(LockRequest(name, "1m"))
        client.config_set("maxclients", 100)
    assert provider.record(name) is None
    assert provider.release(acquired(provider, name))


@through("once", "async once")
def test_i5_the_pool_of_a_user_supplied_client_is_empty(private: Store, name: str) -> None:
    """Nothing was sent, so nothing is undone. For managed clients see test_time_limit."""
    provider = private.provider(max_connections=1)
    lease = acquired(provider, name)
    with private.server.client() as client, ThreadPoolExecutor(1) as pool:
        client.client_pause(60_000, all=False)
        waiting = pool.submit(provider.acquire, LockRequest("waits", "1m"))
        wait_until(lambda: any(each["cmd"] == "evalsha" for each in client.client_list()), what="one waits")
        for work in (partial(provider.acquire, LockRequest(f"{name}-2", "1m")), partial(provider.extend, lease, "2m")):
            with pytest.raises(ProviderUnreachable, match=r"(?i)connection"):
                work()
        client.client_unpause()
        assert waiting.result(20)
    assert provider.extend(lease, "2m") is lease
    assert provider.release(lease) is True
    assert provider.record(f"{name}-2") is None
