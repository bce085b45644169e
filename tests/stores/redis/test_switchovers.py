"""The host name moves to another server, and the former primary becomes a replica."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.providers.kit import Failure
from shedlock_py.providers.redis.commands import Scan
from shedlock_py.providers.redis.errors import classify
from shedlock_py.providers.redis.redis_clients import AsyncManagedClient
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import Store, send
from tests.support.availability import private_server
from tests.support.locks import acquired
from tests.support.polling import wait_until
from tests.support.redis import RedisServer

SESSIONS = 4
TWO_SERVERS = pytest.mark.slow("two servers for each test")


@pytest.fixture(params=["url", pytest.param("async url", marks=TWO_SERVERS)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def successor() -> Iterator[RedisServer]:
    with private_server("redis", RedisServer) as server:
        yield server


@contextmanager
def with_sessions(store: Store, name: str) -> Iterator[tuple[LockProvider, TcpProxy]]:
    """A provider with several open connections, through an address that can move."""
    with TcpProxy(store.server.address) as proxy:
        provider = store.provider(proxy.address)
        proxy.stall()
        threads = [threading.Thread(target=lambda i=i: acquired(provider, f"{name}-{i}")) for i in range(SESSIONS)]
        for thread in threads:
            thread.start()
        wait_until(lambda: proxy.open_connections == SESSIONS, what="as many connections")
        proxy.resume()
        for thread in threads:
            thread.join(30)
        yield provider, proxy


def replica(server: RedisServer, successor: RedisServer) -> None:
    with server.client() as client:
        send(client, "REPLICAOF", *successor.address)


def cut_off_replica(server: RedisServer, successor: RedisServer) -> None:
    """Make a replica reply MASTERDOWN."""
    with server.client() as client:
        client.config_set("replica-serve-stale-data", "no")
        send(client, "REPLICAOF", "127.0.0.1", 1)


def primary_without_replicas(server: RedisServer, successor: RedisServer) -> None:
    with server.client() as client:
        client.config_set("min-replicas-to-write", 1)


@pytest.mark.parametrize(
    "demote",
    [
        replica,
        *(pytest.param(demote, marks=TWO_SERVERS) for demote in (cut_off_replica, primary_without_replicas)),
    ],
)
def test_i5_after_a_switchover_all_goes_on(
    private: Store, successor: RedisServer, name: str, demote: Callable[[RedisServer, RedisServer], None]
) -> None:
    assert isinstance(private.server, RedisServer)
    with with_sessions(private, name) as (provider, proxy):
        proxy.retarget(successor.address)
        demote(private.server, successor)
        assert proxy.open_connections == SESSIONS, "open sessions stay"
        with pytest.raises(ProviderUnreachable):
            provider.acquire(LockRequest(f"{name}-first", "1m"))
        granted = [provider.acquire(LockRequest(f"{name}-later-{i}", "1m")) for i in range(8)]
        assert all(granted)
        wait_until(lambda: proxy.open_connections <= 2, what="the sessions of the former primary are closed")
        with successor.client() as client:
            assert client.exists(f"shedlock:{{{name}-later-7}}")


def test_a_connection_in_use_meanwhile_is_closed_when_its_reply_is_there(
    private: Store, successor: RedisServer, name: str
) -> None:
    """Another connection was lost, so this connection is outdated."""
    with with_sessions(private, name) as (provider, proxy), private.server.client() as client:
        client.client_pause(60_000, all=False)
        names = [f"{name}-a", f"{name}-b"]
        with ThreadPoolExecutor(len(names)) as threads:
            waiting = [threads.submit(acquired, provider, lock) for lock in names]
            wait_until(lambda: len(scripts_of(client)) == len(names), what="both wait")
            proxy.retarget(successor.address)
            client.client_kill_filter(_id=scripts_of(client)[0])
            wait_until(lambda: any(future.done() for future in waiting), what="a lock from the successor")
            client.client_unpause()
            leases = [future.result(30) for future in waiting]
        on_successor = [lease.name for lease in leases if provider.record(lease.name)]
        assert len(on_successor) == 1, "the other lock is on the former primary, and no request goes there again"
        wait_until(lambda: proxy.open_connections <= 2, what="its connection is closed")


def scripts_of(client: redis.Redis) -> list[str]:
    """The ids of the connections that wait for a script."""
    return [each["id"] for each in client.client_list() if each["cmd"] == "evalsha" and "b" in each["flags"]]


class Reset:
    """A connection on uvloop after the server has reset it: a write to the transport raises."""

    def __init__(self, **_: Any) -> None:
        pass

    async def connect(self) -> None:
        pass

    async def send_command(self, *words: Any) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    async def disconnect(self, *, nowait: bool = False) -> None:
        pass


async def test_a_reset_connection_on_uvloop_counts_as_a_lost_one() -> None:
    """The kit then sends the command again, on a new connection."""
    client = AsyncManagedClient("redis://h", 5)
    client.connection_class = Reset
    with pytest.raises(redis.ConnectionError, match="the handler is closed") as lost:
        await client.execute(Scan(b"*"), 5)
    assert classify(lost.value, has_retries=False) is Failure.CONNECTION_LOST
