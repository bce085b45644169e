"""The server restarts, is killed, or stands still: an error within a bounded time, and all is well afterwards."""

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest
import redis

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable, attempt
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import KINDS, URL_KINDS, Store, acquired, ask, record_of, token_of
from tests.support.availability import private_server
from tests.support.database import Address
from tests.support.polling import wait_until
from tests.support.ports import bind_free_port, free_port
from tests.support.redis import RedisServer

LONGEST = 10.0
"""Seconds. A test's limit on a busy machine; 5 s are promised (I13)."""
SILENT = r"(?i)timed? ?out|timeout|refused|connection closed|connection reset|connect call failed"


def assert_unreachable(provider: LockProvider, name: str, words: str = SILENT) -> None:
    """Nothing is granted, soon."""
    started = time.monotonic()
    with pytest.raises(ProviderUnreachable) as unreachable:
        attempt(name, pytest.fail, lock_at_most_for="2s", provider=provider)
    assert time.monotonic() - started < LONGEST
    error = unreachable.value
    assert (error.operation, error.lock_name) == ("acquire", name)
    assert error.__cause__ is not None
    assert re.search(words, str(error))


@pytest.mark.parametrize("kind", [*URL_KINDS, "once", "async once"])
def test_i5_nobody_listens(store: Store, name: str) -> None:
    provider = store.provider(("127.0.0.1", free_port()))
    for _ in range(2):
        assert_unreachable(provider, name, r"(?i)refused|connect call failed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("appendonly", [True, False])
def test_i5_killed_between_acquire_and_release(kind: str, appendonly: bool, name: str) -> None:
    with private_server("redis", lambda: RedisServer(appendonly=appendonly)) as server:
        store = Store(server, kind)
        with store.stack:
            provider = store.provider()
            lease = acquired(provider, name)
            server.kill()
            if not kind.endswith("retries"):  # as patient as a user has made it
                assert_unreachable(provider, f"{name}-2")
            with pytest.raises(ProviderUnreachable):
                provider.release(lease)
            assert not lease.is_trusted()
            server.start()
            # With a file it remembers, and an idempotent release still counts.
            assert provider.release(lease) is appendonly
            following = acquired(provider, name)
            assert token_of(following) > token_of(lease)  # I7
            assert provider.release(following) is True


@pytest.mark.parametrize("kind", URL_KINDS)
def test_i5_a_server_that_stands_still(private: Store, name: str) -> None:
    warm, cold = private.provider(), private.provider()
    lease = acquired(warm, name)
    private.server.pause()
    try:
        assert_unreachable(warm, f"{name}-warm")
        assert_unreachable(cold, f"{name}-cold")
        with pytest.raises(ProviderUnreachable):
            warm.extend(lease, "2m")
        assert lease.is_trusted(), "it is still ours"
    finally:
        private.server.resume()
    # What the server does of it later, it does for nobody; it ends by itself (I3, I12).
    for lock in (f"{name}-warm", f"{name}-cold"):
        wait_until(lambda lock=lock: warm.acquire(LockRequest(lock, "1m")), timeout=LONGEST)  # type: ignore[misc]  # its default
    assert warm.release(lease) is True


@pytest.mark.parametrize("kind", URL_KINDS)
def test_i5_an_address_that_swallows_everything(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    proxy.stall()
    assert_unreachable(provider, name)
    proxy.cut()
    proxy.resume()
    assert provider.record(name) is None
    assert provider.release(acquired(provider, name))


@pytest.fixture
def swallowing() -> Iterator[Address]:
    """Where connections are never accepted nor refused: the queue of those that wait for it is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(bind_free_port())
        listener.listen(0)
        while True:
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.5)
            try:
                waiting.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()


@pytest.mark.parametrize("kind", URL_KINDS)
def test_i5_an_address_that_nobody_answers_from(store: Store, swallowing: Address, name: str) -> None:
    assert_unreachable(store.provider(swallowing), name, "waited for a connection")


class Eventful(redis.Connection):
    """Something happens before each attempt to connect."""

    events: ClassVar[list[Callable[[], object]]] = []

    def _connect(self) -> Any:
        if self.events:
            self.events.pop(0)()
        return super()._connect()  # type: ignore[no-untyped-call]  # redis-py gives it no types


def of_eventful(store: Store, address: Address, events: list[Callable[[], object]]) -> LockProvider:
    host, port = address

    def client() -> redis.Redis:
        connection_class = type("Connection", (Eventful,), {"events": events})
        return redis.Redis.from_pool(redis.ConnectionPool(connection_class, host=host, port=port))

    return store.provider_of(client)


@pytest.mark.parametrize("kind", ["once"])
def test_what_was_never_sent_is_neither_asked_again_nor_undone(store: Store, name: str) -> None:
    attempts = ["first", "second", "third"]
    provider = of_eventful(store, ("127.0.0.1", free_port()), [lambda: attempts.pop()] * 3)
    assert_unreachable(provider, name, "refused")
    assert attempts == ["first", "second"]


@pytest.mark.parametrize("kind", ["once"])
def test_i12_the_reply_is_lost_and_then_a_connection_is_refused(
    store: Store, witness: LockProvider, lossy: TcpProxy, name: str
) -> None:
    """What failed last was never sent; what was sent before is undone nevertheless."""
    events: list[Callable[[], object]] = [lambda: None, lossy.refuse, lossy.accept]
    provider = of_eventful(store, lossy.address, events)
    acquired(provider, f"{name}-warm")
    lossy.drop_replies_to(name)
    assert_unreachable(provider, name, "refused")
    assert (lossy.drops_left, events) == (0, [])
    assert witness.release(acquired(witness, name))


@pytest.mark.parametrize("kind", [*URL_KINDS, "once", "async once"])
def test_i5_a_refused_connection(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    provider.record("warm")
    proxy.refuse()
    proxy.cut()
    for _ in range(2):
        assert_unreachable(provider, name)
    proxy.accept()
    assert provider.release(acquired(provider, name))


def in_threads(count: int, work: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_idle_connections_that_the_server_closed(private: Store, name: str) -> None:
    with TcpProxy(private.server.address) as proxy, private.server.client() as client:
        provider = private.provider(proxy.address)
        proxy.stall()
        threads = in_threads(4, lambda: acquired(provider, f"{name}-{threading.get_ident()}"))
        wait_until(lambda: proxy.open_connections >= 4, what="four connections")
        proxy.resume()
        for thread in threads:
            thread.join(20)
        for _ in range(2):
            assert ask(client, "CLIENT KILL TYPE normal SKIPME yes") > 0
            lease = acquired(provider, name)
            assert ask(client, "CLIENT KILL TYPE normal SKIPME yes") > 0
            assert provider.acquire(LockRequest(name, "1m")) is None
            assert ask(client, "CLIENT KILL TYPE normal SKIPME yes") > 0
            assert provider.extend(lease, "2m") is lease
            assert ask(client, "CLIENT KILL TYPE normal SKIPME yes") > 0
            assert provider.release(lease) is True
        assert not record_of(provider, name).is_held
