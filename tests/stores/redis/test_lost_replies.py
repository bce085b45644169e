"""The server did what it was asked, and nobody heard. I12: nothing stays locked that nobody knows to hold."""

from collections.abc import Callable
from typing import Any, Self

import pytest
import redis
import redis.asyncio
from redis.backoff import AbstractBackoff

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.providers.redis.scripts import script
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import TRIES, URL_KINDS, Store, acquired, record_of, token_of
from tests.support.polling import wait_until
from tests.support.silent import SilentProxy

MOST = 1000


@pytest.fixture
def provider(store: Store, proxy: TcpProxy) -> LockProvider:
    # redis-py's default pauses for four seconds in all: here it does not.
    options = {"retry": store.retry(TRIES - 1)} if store.kind.endswith("retries") else {}
    provider = store.provider(proxy.address, **options)
    # The server is to know all scripts: a reply that says it does not is not the one to lose.
    lease = provider.take_over(LockRequest("warm", "1m"))
    provider.extend(lease, "1m")
    provider.release(lease)
    provider.acquire(LockRequest("warm", "1m"))
    provider.force_release("warm")
    return provider


@pytest.fixture
def tries(store: Store) -> int:
    """How often it is asked before somebody gives up: by us, or by the client."""
    return TRIES if store.kind.endswith("retries") else 2


def assert_ours(other: LockProvider, lease: Lease | None) -> Lease:
    assert lease is not None, "the lock is ours"
    assert lease.is_trusted()
    record = record_of(other, lease.name)
    assert (record.locked_by, record.fencing_token, record.is_held) == (lease.locked_by, token_of(lease), True)
    return lease


def test_i12_acquire(provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str) -> None:
    tokens = []
    for _ in range(3):  # the first time there is no record
        proxy.drop_replies_to(name)
        lease = assert_ours(other, provider.acquire(LockRequest(name, "1m")))
        assert proxy.drops_left == 0
        tokens.append(token_of(lease))
        assert provider.release(lease)
        assert not record_of(other, name).is_held
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("kind", ["retries", "async retries"])
def test_i12_with_redis_pys_own_default(store: Store, other: LockProvider, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    proxy.drop_replies_to(name, 3)
    lease = assert_ours(other, provider.acquire(LockRequest(name, "1m")))
    assert proxy.drops_left == 0
    proxy.drop_replies_to(name, 3)
    assert provider.extend(lease, "2m") is lease
    proxy.drop_replies_to(name, 3)
    assert provider.release(lease) is True
    assert proxy.drops_left == 0
    assert other.release(acquired(other, name))


def test_a_skip(provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str) -> None:
    lease = acquired(other, name)
    proxy.drop_replies_to(name)
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert proxy.drops_left == 0
    assert_ours(other, lease)


def test_take_over(store: Store, provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str) -> None:
    former = acquired(other, name)
    proxy.drop_replies_to(name)
    with store.server.client() as client:
        before = writes(client)
        lease = assert_ours(other, provider.take_over(LockRequest(name, "1m")))
        assert writes(client) == before + 1, "the second question changes nothing"
    assert token_of(lease) > token_of(former)
    assert proxy.drops_left == 0


def writes(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_hset"]["calls"])


def test_extend(provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str) -> None:
    lease = acquired(provider, name)
    proxy.drop_replies_to(name)
    assert provider.extend(lease, "10m") is lease
    assert proxy.drops_left == 0
    assert record_of(other, name).remaining.total_seconds() > 500
    assert lease.trusted_for().total_seconds() > 500
    assert_ours(other, lease)


def test_extend_of_a_lease_that_is_lost(
    provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str
) -> None:
    lease = acquired(provider, name)
    successor = other.take_over(LockRequest(name, "1m"))
    proxy.drop_replies_to(name)
    assert provider.extend(lease, "10m") is None
    assert not lease.is_trusted()
    proxy.drop_replies_to(name)
    assert provider.release(lease) is False
    assert proxy.drops_left == 0
    assert_ours(other, successor)


@pytest.mark.parametrize("at_least", ["0s", "30s"])
def test_i12_release(provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str, at_least: str) -> None:
    lease = acquired(provider, name, lock_at_least_for=at_least)
    proxy.drop_replies_to(name)
    assert provider.release(lease) is True
    assert proxy.drops_left == 0
    remaining = record_of(other, name).remaining.total_seconds()
    assert remaining == 0 if at_least == "0s" else 20 < remaining <= 30
    assert provider.release(lease) is False


def test_other_questions(provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str) -> None:
    lease = acquired(other, name)
    proxy.drop_replies_to(name)
    assert record_of(provider, name).locked_by == lease.locked_by
    assert proxy.drops_left == 0
    proxy.drop_replies_to(name)
    assert [record.name for record in provider.records(name)] == [name]
    assert proxy.drops_left == 0


def test_i12_acquire_that_is_never_answered(
    provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str, tries: int
) -> None:
    for losses in (tries, MOST):
        proxy.drop_replies_to(name, losses)
        with pytest.raises(ProviderUnreachable) as unreachable:
            provider.acquire(LockRequest(name, "1m"))
        assert (unreachable.value.operation, unreachable.value.lock_name) == ("acquire", name)
        assert unreachable.value.__cause__ is not None
        # It was undone; of that reply nobody needs to hear, though a client that retries by itself goes on.
        assert losses - proxy.drops_left in ((tries,) if losses == tries else (tries + 1, 2 * tries))
        proxy.drop_replies_to(name, 0)
        assert other.release(acquired(other, name))


@pytest.mark.parametrize("kind", ["url", "async url"])
def test_i12_a_server_that_does_not_know_how_to_release(private: Store, name: str) -> None:
    """It was restarted, and has forgotten the scripts but not the records."""
    with TcpProxy(private.server.address) as proxy:
        provider = private.provider(proxy.address)
        acquired(provider, f"{name}-warm")
        proxy.drop_replies_to(name, 2)
        with pytest.raises(ProviderUnreachable):
            provider.acquire(LockRequest(name, "1m"))
        assert proxy.drops_left == 0
        acquired(provider, name)


@pytest.mark.parametrize("kind", ["url", "async url"])
def test_i12_a_reply_that_does_not_come(store: Store, other: LockProvider, name: str) -> None:
    """The caller does not wait for it, and nobody has the lock."""
    with SilentProxy(store.server.address, f"{name}}}", times=1) as silent:
        provider = store.provider(url=f"{store.server.url(via=silent.address)}?timeout=1s")
        acquired(provider, f"{name}-warm")
        with pytest.raises(ProviderUnreachable, match="waited for a reply"):
            provider.acquire(LockRequest(name, "1m"))
        assert silent.silent
        assert record_of(other, name).fencing_token, "it was granted"
        wait_until(lambda: not record_of(other, name).is_held, what="it is undone, in the background")
        assert other.release(acquired(other, name))
        assert provider.release(acquired(provider, name))


class Weather(AbstractBackoff):
    """What happens to the network while a client pauses before it asks again."""

    def __init__(self, *events: Callable[[], object]) -> None:
        self.events = list(events)

    def compute(self, failures: int) -> float:
        if self.events:
            self.events.pop(0)()
        return 0.0

    def __deepcopy__(self, memo: object) -> Self:  # each connection has a copy of the client's retry
        return self


@pytest.mark.parametrize("kind", ["retries", "async retries"])
def test_i12_the_reply_is_lost_and_then_nobody_listens(
    store: Store, other: LockProvider, proxy: TcpProxy, name: str
) -> None:
    """The last failure of a client that retries says nothing of its first try."""
    weather = Weather()
    retry = store.retry(1)
    retry._backoff = weather
    provider = store.provider(proxy.address, retry=retry)
    acquired(provider, f"{name}-warm")
    proxy.drop_replies_to(name)
    weather.events = [proxy.refuse, proxy.accept]  # after the lost reply; when connecting to undo it has failed
    with pytest.raises(ProviderUnreachable, match=r"(?i)refused|connect call failed"):
        provider.acquire(LockRequest(name, "1m"))
    assert (proxy.drops_left, weather.events) == (0, [])
    assert other.release(acquired(other, name))


@pytest.mark.parametrize("kind", ["once", "async once"])
@pytest.mark.parametrize("options", [{"retry_on_timeout": True}, {"retry_on_error": [redis.TimeoutError]}], ids=str)
def test_i12_a_client_from_a_url_that_retries_once(
    store: Store, other: LockProvider, proxy: TcpProxy, name: str, options: dict[str, Any]
) -> None:
    """redis-py's way of yore to ask for it: nobody asks a third time."""
    client_class: Any = redis.asyncio.Redis if store.is_async else redis.Redis
    provider = store.provider_of(lambda: client_class.from_url(store.server.url(via=proxy.address), **options))
    provider.record(name)
    proxy.drop_replies_to(name, 2)
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    assert proxy.drops_left == 0
    assert other.release(acquired(other, name))


def test_take_over_that_is_never_answered(
    provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str, tries: int
) -> None:
    acquired(other, name)
    proxy.drop_replies_to(script("take_over").sha, tries)  # the record is read before
    with pytest.raises(ProviderUnreachable) as unreachable:
        provider.take_over(LockRequest(name, "1m"))
    assert (unreachable.value.operation, unreachable.value.lock_name) == ("take_over", name)
    assert proxy.drops_left == 0
    assert other.release(acquired(other, name))


def test_release_that_is_never_answered(
    provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str, tries: int
) -> None:
    lease = acquired(provider, name)
    proxy.drop_replies_to(name, tries)
    with pytest.raises(ProviderUnreachable) as unreachable:
        provider.release(lease)
    assert (unreachable.value.operation, unreachable.value.lock_name) == ("release", name)
    assert proxy.drops_left == 0, "there is nothing to undo"
    assert not lease.is_trusted()
    assert provider.release(lease) is True, "which it was"
    assert other.release(acquired(other, name))


@pytest.mark.parametrize("kind", ["url", "async url"])
def test_i4_a_release_that_is_never_answered_is_not_taken_back(
    provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str, tries: int
) -> None:
    lease = acquired(provider, name, "10m", lock_at_least_for="30s")
    proxy.drop_replies_to(name, tries)
    with pytest.raises(ProviderUnreachable):
        provider.release(lease)
    assert provider.extend(lease, "10m") is None
    assert 20 < record_of(other, name).remaining.total_seconds() <= 30


def test_extend_that_is_never_answered(
    provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str, tries: int
) -> None:
    lease = acquired(provider, name)
    proxy.drop_replies_to(name, tries)
    with pytest.raises(ProviderUnreachable) as unreachable:
        provider.extend(lease, "10m")
    assert (unreachable.value.operation, unreachable.value.lock_name) == ("extend", name)
    assert proxy.drops_left == 0, "the lease is not undone"
    assert 0 < lease.trusted_for().total_seconds() <= 60, "believes no more than before"
    assert provider.extend(lease, "5m") is lease
    assert_ours(other, lease)
    assert provider.release(lease)


def test_a_reset_of_the_pooled_connections_is_not_noticed(provider: LockProvider, proxy: TcpProxy, name: str) -> None:
    proxy.cut()
    lease = acquired(provider, name)
    proxy.cut()
    assert provider.extend(lease, "2m") is lease
    proxy.cut()
    assert provider.release(lease) is True
    proxy.cut()
    assert record_of(provider, name).locked_by == lease.locked_by


@pytest.mark.parametrize("kind", URL_KINDS)
def test_a_lost_handshake_takes_no_lock(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(url=f"{store.server.url(via=proxy.address)}?protocol=3")  # says HELLO
    proxy.drop_next_reply()
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    assert proxy.replies_dropped == 1
    lease = acquired(provider, name)
    assert provider.release(lease)
    proxy.cut()
    proxy.drop_replies_to("HELLO", MOST)
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(f"{name}-2", "1m"))
    proxy.drop_replies_to("HELLO", 0)
    assert provider.record(f"{name}-2") is None
