"""I13: one ``timeout`` covers every wait of an operation, and the error names the wait."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

from shedlock_py import ConfigurationError, LockProvider, LockRequest, ProviderUnreachable, async_provider_from_url
from shedlock_py.providers.redis import AsyncRedisLockProvider, RedisLockProvider
from shedlock_py.providers.redis.commands import script
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import URL_KINDS, Store, through
from tests.support.database import Address
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until
from tests.support.ports import black_hole, free_port
from tests.support.redis import RedisEndpoint
from tests.support.timing import BUSY, BUSY_HERD, Stopwatch

TIMEOUT = 2.0
HERD = 50

pytestmark = through(*URL_KINDS)
WAITS = pytest.mark.slow("waits for several time limits")


def limited(store: Store, via: Address | None = None, **options: str) -> LockProvider:
    query = "&".join(f"{name}={value}" for name, value in {"timeout": f"{TIMEOUT}s", **options}.items())
    return store.provider(url=f"{store.server.url(via=via)}?{query}")


def unreachable_in_time(work: Callable[[], object], words: str, timeout: float = TIMEOUT) -> float:
    """Return the seconds until ``work`` has failed, within the limit."""
    with Stopwatch() as watch, pytest.raises(ProviderUnreachable, match=words):
        work()
    assert watch.seconds <= timeout * 1.1 + BUSY
    return watch.elapsed


def each_operation(provider: LockProvider, lease: Any, name: str) -> list[Callable[[], object]]:
    return [
        lambda: provider.acquire(LockRequest(f"{name}-new", "1m")),
        lambda: provider.take_over(LockRequest(f"{name}-new", "1m")),
        lambda: provider.extend(lease, "1m"),
        provider.records,
        lambda: provider.release(lease),
    ]


def test_i13_a_refused_connection_is_reported_at_once(store: Store, name: str) -> None:
    provider = limited(store, ("127.0.0.1", free_port()), timeout="0.5")  # a bare number is seconds
    assert unreachable_in_time(lambda: provider.record(name), r"(?i)refused|connect call failed") < TIMEOUT


@pytest.fixture
def swallowing() -> Iterator[Address]:
    with black_hole() as address:
        yield address


def test_i13_a_black_hole_is_left_in_time(store: Store, swallowing: Address, name: str) -> None:
    provider = limited(store, swallowing, timeout="1s")
    for _ in range(2):
        unreachable_in_time(
            lambda: provider.acquire(LockRequest(name, "1m")), r"limit of 1 s .*waited for a connection$", 1.0
        )


@WAITS
def test_i13_a_look_up_of_the_host_name_counts(store: Store, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver can limit the operating system's resolver."""
    is_over = threading.Event()
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        if host == "redis.example":
            is_over.wait(60)
            host = "127.0.0.1"
        return look_up(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    provider = limited(store, ("redis.example", store.server.address[1]))
    for _ in range(2):
        unreachable_in_time(lambda: provider.record(name), "waited for a connection$")
    is_over.set()
    assert provider.release(acquired(provider, name))


@WAITS
def test_i13_a_server_that_stands_still_is_left_in_time(private: Store, name: str) -> None:
    provider, cold = limited(private), limited(private)
    lease = acquired(provider, name)
    private.server.pause()
    try:
        unreachable_in_time(lambda: cold.record(name), "waited for a connection$")
        unreachable_in_time(lambda: provider.extend(lease, "1m"), r"limit of 2 s \(timeout\): waited for a reply$")
        unreachable_in_time(lambda: provider.acquire(LockRequest(f"{name}-new", "1m")), "waited for a connection$")
    finally:
        private.server.resume()
    wait_until(lambda: not provider.record(f"{name}-new") or not record_of(provider, f"{name}-new").is_held, timeout=60)


@WAITS
def test_i13_each_operation_of_a_silent_server_ends_in_time(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = limited(store, proxy.address)
    lease = acquired(provider, name)
    for work in each_operation(provider, lease, name):
        proxy.stall()
        unreachable_in_time(work, "waited for a reply$")
        proxy.resume()
        provider.record(name)  # its connection works: the next operation waits for its reply


def test_i13_fifty_at_once_leave_a_silent_server_in_time(store: Store, proxy: TcpProxy, name: str) -> None:
    """Twenty operations wait for a reply, and thirty for a connection; some connect in the last moment."""
    provider = limited(store, proxy.address)
    acquired(provider, name)
    proxy.stall()
    waited_for: list[str] = []

    def work(_: int) -> None:
        with pytest.raises(ProviderUnreachable) as unreachable:
            provider.acquire(LockRequest(name, "1m"))
        waited_for.append(str(unreachable.value).rpartition(" for ")[2])

    with Stopwatch() as watch, ThreadPoolExecutor(HERD) as pool:
        list(pool.map(work, range(HERD)))
    assert len(waited_for) == HERD
    assert watch.seconds <= TIMEOUT * 1.1 + BUSY_HERD
    assert {"a reply"} < set(waited_for) <= {"a reply", "a free connection", "a connection"}
    proxy.resume()
    wait_until(lambda: provider.acquire(LockRequest(name, "1m")) is None, what="all is well")


def test_a_heartbeat_waits_for_no_acquire(store: Store, name: str) -> None:
    """Two connections are reserved for heartbeats and for releases."""
    acquired(store.provider(), f"{name}-known")  # so the server knows the script's hash
    with TcpProxy(store.server.address) as proxy, ThreadPoolExecutor(12) as pool:
        proxy.silence(script("acquire").sha)
        provider: Any = limited(store, proxy.address, max_connections="6", timeout="60s")
        lease = provider.take_over(LockRequest(name, "1m"))
        unused = provider.take_over(LockRequest(f"{name}-unused", "1m"))
        herd = [pool.submit(provider.acquire, LockRequest(f"{name}-{number}", "1m")) for number in range(12)]
        wait_until(lambda: proxy.silent_connections >= 4, what="acquires have all connections that they may have")
        extended = provider.extend(lease, "2m")
        assert extended is not None
        assert provider.undo(unused)
        assert provider.release(extended)
        assert not any(acquire.done() for acquire in herd), "it waited behind acquires"
        assert proxy.silent_connections == 4
        proxy.refuse()
        proxy.cut()
        assert all(isinstance(acquire.exception(), ProviderUnreachable) for acquire in herd)


def test_limits_of_the_driver_count_too(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = limited(store, proxy.address, socket_timeout="0.2")
    acquired(provider, name)
    proxy.stall()
    assert unreachable_in_time(lambda: provider.record(name), "Timeout reading from") < TIMEOUT


def test_limits_of_the_driver_count_while_connecting(store: Store, swallowing: Address, name: str) -> None:
    provider = limited(store, swallowing, socket_connect_timeout="0.2")
    assert unreachable_in_time(lambda: provider.record(name), "Timeout connecting") < TIMEOUT


@WAITS
def test_i13_the_limit_is_five_seconds_by_default(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    acquired(provider, name)
    proxy.stall()
    unreachable_in_time(lambda: provider.acquire(LockRequest(f"{name}-2", "1m")), "limit of 5 s", 5)


def test_i13_the_timeout_can_be_in_the_url_and_an_option(store: Store, redis_server: RedisEndpoint) -> None:
    kinds: tuple[Any, Any] = (
        (AsyncRedisLockProvider, redis.asyncio.Redis) if store.is_async else (RedisLockProvider, redis.Redis)
    )
    provider_class, client_class = kinds
    url = redis_server.url()
    assert provider_class(url).programs.timeout == 5
    assert provider_class(f"{url}?timeout=3s&fire_time_tolerance=10m").programs.timeout == 3
    assert provider_class(f"{url}?timeout=3s", timeout="7s").programs.timeout == 7
    if store.is_async:
        through: Any = async_provider_from_url(f"{url}?timeout=3s")
        assert through.programs.timeout == 3
    for wrong in ("soon", "0", "-1s", "nan"):
        with pytest.raises(ConfigurationError, match="timeout="):
            provider_class(f"{url}?timeout={wrong}")
    client = client_class.from_url(url)
    with pytest.raises(ConfigurationError, match="timeout= is for providers that are made from a URL"):
        provider_class(client, timeout="3s")
    assert provider_class(client).programs.timeout is None
