"""The server restarts, is killed, or closes connections: an error, then recovery.

For time limits see test_time_limit.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import redis

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import KINDS, Store, through
from tests.support.availability import private_server
from tests.support.database import Address
from tests.support.locks import acquired, token_of
from tests.support.ports import free_port
from tests.support.redis import RedisServer


def assert_unreachable(provider: LockProvider, name: str, words: str | None = None) -> None:
    with pytest.raises(ProviderUnreachable, match=words) as unreachable:
        provider.acquire(LockRequest(name, "2s"))
    assert (unreachable.value.operation, unreachable.value.lock_name) == ("acquire", name)
    assert unreachable.value.__cause__ is not None


@through(*KINDS)
@pytest.mark.parametrize("appendonly", [True, False])
def test_i1_i5_i7_a_server_killed_between_acquire_and_release(kind: str, appendonly: bool, name: str) -> None:
    with private_server("redis", lambda: RedisServer(appendonly=appendonly)) as server:
        store = Store(server, kind)
        with store.stack:
            provider = store.provider()
            lease, released = acquired(provider, name), acquired(provider, f"{name}-released")
            server.kill()
            if not kind.endswith("retries"):  # redis-py retries for seconds
                assert_unreachable(provider, f"{name}-2")
            with pytest.raises(ProviderUnreachable):
                provider.release(released)
            assert not released.is_trusted()
            server.start()
            # With an append-only file the server remembers the lock, and a repeated release still returns True.
            assert provider.release(released) is appendonly
            assert provider.extend(lease, "2m") is (lease if appendonly else None)
            if appendonly:
                assert provider.acquire(LockRequest(name, "1m")) is None
                assert provider.release(lease)
            following = acquired(provider, name)
            assert token_of(following) > token_of(lease)  # I7
            assert provider.release(following) is True


class Eventful(redis.Connection):
    """Run something before each attempt to connect."""

    events: ClassVar[list[Callable[[], object]]] = []
    is_open = False

    def connect(self) -> None:
        if not self.is_open and self.events:
            self.events.pop(0)()
        super().connect()  # type: ignore[no-untyped-call]  # redis-py gives it no types
        self.is_open = True

    def disconnect(self, *args: Any) -> None:
        self.is_open = False
        super().disconnect(*args)  # type: ignore[no-untyped-call]  # redis-py gives it no types


def of_eventful(store: Store, address: Address, events: list[Callable[[], object]]) -> LockProvider:
    host, port = address

    def client() -> redis.Redis:
        connection_class = type("Connection", (Eventful,), {"events": events})
        return redis.Redis.from_pool(redis.ConnectionPool(connection_class, host=host, port=port))

    return store.provider_of(client)


@through("once")
def test_what_was_never_sent_is_neither_repeated_nor_undone(store: Store, name: str) -> None:
    attempts = ["first", "second", "third"]
    provider = of_eventful(store, ("127.0.0.1", free_port()), [lambda: attempts.pop()] * 3)
    assert_unreachable(provider, name, "refused")
    assert attempts == ["first", "second"]


@through("once")
def test_i12_the_reply_is_lost_and_then_a_connection_is_refused(
    store: Store, other: LockProvider, proxy: TcpProxy, name: str
) -> None:
    """The last command was never sent, but the command before it is undone."""
    events: list[Callable[[], object]] = [lambda: None, proxy.refuse, proxy.accept]
    provider = of_eventful(store, proxy.address, events)
    acquired(provider, f"{name}-warm")
    proxy.drop_replies_to(name)
    assert_unreachable(provider, name, "refused")
    assert (proxy.drops_left, events) == (0, [])
    assert other.release(acquired(other, name))
