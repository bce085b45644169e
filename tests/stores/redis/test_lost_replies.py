"""Lost replies specific to Redis: clients that retry, unknown scripts, handshakes.

``NetworkContract`` has the tests for all stores.
"""

from collections.abc import Callable
from typing import Any, Self

import pytest
import redis
import redis.asyncio
from redis.backoff import AbstractBackoff

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import URL_KINDS, Store, through
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until

MANY = 1000
RETRIES = through("retries", "async retries")


class Events(AbstractBackoff):
    """Change the network while a client pauses before a retry."""

    def __init__(self) -> None:
        self.events: list[Callable[[], object]] = []

    def compute(self, failures: int) -> float:
        if self.events:
            self.events.pop(0)()
        return 0.0

    def __deepcopy__(self, memo: object) -> Self:  # each connection has a copy of the client's retry
        return self


@RETRIES
def test_i12_the_reply_is_lost_and_then_connections_are_refused(
    store: Store, other: LockProvider, proxy: TcpProxy, name: str
) -> None:
    """A retrying client's last failure does not show the result of its first try."""
    events = Events()
    provider = store.provider(proxy.address, retry=store.retry(1, events))
    acquired(provider, f"{name}-warm")
    proxy.drop_replies_to(name)
    events.events = [proxy.refuse, proxy.accept]  # after the lost reply; after the undo could not connect
    with pytest.raises(ProviderUnreachable, match=r"(?i)refused|connect call failed"):
        provider.acquire(LockRequest(name, "1m"))
    assert (proxy.drops_left, events.events) == (0, [])
    assert other.release(acquired(other, name))


@through("once", "async once")
@pytest.mark.parametrize("options", [{"retry_on_timeout": True}, {"retry_on_error": [redis.TimeoutError]}], ids=str)
def test_i12_a_client_from_a_url_that_retries_once(
    store: Store, other: LockProvider, proxy: TcpProxy, name: str, options: dict[str, Any]
) -> None:
    """redis-py's old retry options: a third try does not happen."""
    client_class: Any = redis.asyncio.Redis if store.is_async else redis.Redis
    provider = store.provider_of(lambda: client_class.from_url(store.server.url(via=proxy.address), **options))
    provider.record(name)
    proxy.drop_replies_to(name, 2)
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    assert proxy.drops_left == 0
    assert other.release(acquired(other, name))


@through(*URL_KINDS)
def test_i12_a_server_that_does_not_know_the_script_of_the_undo(private: Store, name: str) -> None:
    with TcpProxy(private.server.address) as proxy:
        provider = private.provider(proxy.address)
        acquired(provider, f"{name}-warm")
        proxy.drop_replies_to(name, 2)
        with pytest.raises(ProviderUnreachable):
            provider.acquire(LockRequest(name, "1m"))
        assert proxy.drops_left == 0
        acquired(provider, name)


@through(*URL_KINDS)
def test_i12_a_reply_that_does_not_come(store: Store, other: LockProvider, name: str) -> None:
    """The caller does not wait for the undo."""
    with TcpProxy(store.server.address) as silent:
        silent.silence(f"{name}}}", times=1)
        provider = store.provider(url=f"{store.server.url(via=silent.address)}?timeout=1s")
        acquired(provider, f"{name}-warm")
        with pytest.raises(ProviderUnreachable, match="waited for a reply"):
            provider.acquire(LockRequest(name, "1m"))
        assert silent.silent_connections == 1
        assert record_of(other, name).fencing_token, "it was granted"
        wait_until(lambda: not record_of(other, name).is_held, what="the undo, in the background")
        assert provider.release(acquired(provider, name))


@through(*URL_KINDS)
def test_i4_a_release_without_a_reply_is_not_taken_back(
    store: Store, other: LockProvider, proxy: TcpProxy, name: str
) -> None:
    provider = store.provider(proxy.address)
    assert provider.release(acquired(provider, f"{name}-warm"))
    lease = acquired(provider, name, "10m", lock_at_least_for="30s")
    proxy.drop_replies_to(name, 2)
    with pytest.raises(ProviderUnreachable):
        provider.release(lease)
    assert provider.extend(lease, "10m") is None
    assert 20 < record_of(other, name).remaining.total_seconds() <= 30


@through(*URL_KINDS)
def test_a_lost_handshake_takes_no_lock(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(url=f"{store.server.url(via=proxy.address)}?protocol=3")  # sends HELLO
    proxy.drop_replies_to("HELLO", MANY)
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    proxy.drop_replies_to("HELLO", 0)
    assert provider.record(name) is None
    assert provider.release(acquired(provider, name))
