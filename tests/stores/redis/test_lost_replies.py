"""The server did what it was asked, and nobody heard. I12: nothing stays locked that nobody knows to hold."""

from collections.abc import Callable
from typing import Any, Self

import pytest
import redis
import redis.asyncio
from redis.backoff import AbstractBackoff

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py._program import run
from shedlock_py.providers.redis import RedisLockProvider
from shedlock_py.providers.redis.clients import open_client
from shedlock_py.providers.redis.scripts import script
from shedlock_py.testing.proxy import TcpProxy, _Link
from tests.stores.redis.stores import TRIES, URL_KINDS, Store, acquired, record_of, token_of
from tests.support.database import Address
from tests.support.polling import wait_until
from tests.support.redis import RedisEndpoint

MOST = 1000


@pytest.fixture
def provider(store: Store, lossy: TcpProxy) -> LockProvider:
    # redis-py's default pauses for four seconds in all: here it does not.
    options = {"retry": store.retry(TRIES - 1)} if store.kind.endswith("retries") else {}
    provider = store.provider(lossy.address, **options)
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


def assert_ours(witness: LockProvider, lease: Lease | None) -> Lease:
    assert lease is not None, "the lock is ours"
    assert lease.is_trusted()
    record = record_of(witness, lease.name)
    assert (record.locked_by, record.fencing_token, record.is_held) == (lease.locked_by, token_of(lease), True)
    return lease


def test_i12_acquire(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    tokens = []
    for _ in range(3):  # the first time there is no record
        lossy.drop_replies_to(name)
        lease = assert_ours(witness, provider.acquire(LockRequest(name, "1m")))
        assert lossy.drops_left == 0
        tokens.append(token_of(lease))
        assert provider.release(lease)
        assert not record_of(witness, name).is_held
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("kind", ["retries", "async retries"])
def test_i12_with_redis_pys_own_default(store: Store, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    provider = store.provider(lossy.address)
    lossy.drop_replies_to(name, 3)
    lease = assert_ours(witness, provider.acquire(LockRequest(name, "1m")))
    assert lossy.drops_left == 0
    lossy.drop_replies_to(name, 3)
    assert provider.extend(lease, "2m") is lease
    lossy.drop_replies_to(name, 3)
    assert provider.release(lease) is True
    assert lossy.drops_left == 0
    assert witness.release(acquired(witness, name))


def test_a_skip(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    lease = acquired(witness, name)
    lossy.drop_replies_to(name)
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert lossy.drops_left == 0
    assert_ours(witness, lease)


def test_take_over(store: Store, provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    former = acquired(witness, name)
    lossy.drop_replies_to(name)
    with store.server.client() as client:
        before = writes(client)
        lease = assert_ours(witness, provider.take_over(LockRequest(name, "1m")))
        assert writes(client) == before + 1, "the second question changes nothing"
    assert token_of(lease) > token_of(former)
    assert lossy.drops_left == 0


def writes(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_hset"]["calls"])


def test_extend(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    lease = acquired(provider, name)
    lossy.drop_replies_to(name)
    assert provider.extend(lease, "10m") is lease
    assert lossy.drops_left == 0
    assert record_of(witness, name).remaining.total_seconds() > 500
    assert lease.trusted_for().total_seconds() > 500
    assert_ours(witness, lease)


def test_extend_of_a_lease_that_is_lost(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str
) -> None:
    lease = acquired(provider, name)
    successor = witness.take_over(LockRequest(name, "1m"))
    lossy.drop_replies_to(name)
    assert provider.extend(lease, "10m") is None
    assert not lease.is_trusted()
    lossy.drop_replies_to(name)
    assert provider.release(lease) is False
    assert lossy.drops_left == 0
    assert_ours(witness, successor)


@pytest.mark.parametrize("at_least", ["0s", "30s"])
def test_i12_release(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str, at_least: str) -> None:
    lease = acquired(provider, name, lock_at_least_for=at_least)
    lossy.drop_replies_to(name)
    assert provider.release(lease) is True
    assert lossy.drops_left == 0
    remaining = record_of(witness, name).remaining.total_seconds()
    assert remaining == 0 if at_least == "0s" else 20 < remaining <= 30
    assert provider.release(lease) is False


def test_other_questions(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    lease = acquired(witness, name)
    lossy.drop_replies_to(name)
    assert record_of(provider, name).locked_by == lease.locked_by
    assert lossy.drops_left == 0
    lossy.drop_replies_to(name)
    assert [record.name for record in provider.records(name)] == [name]
    assert lossy.drops_left == 0


def test_i12_acquire_that_is_never_answered(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str, tries: int
) -> None:
    for losses in (tries, MOST):
        lossy.drop_replies_to(name, losses)
        with pytest.raises(ProviderUnreachable) as unreachable:
            provider.acquire(LockRequest(name, "1m"))
        assert (unreachable.value.operation, unreachable.value.lock_name) == ("acquire", name)
        assert unreachable.value.__cause__ is not None
        # It was undone; of that reply nobody needs to hear, though a client that retries by itself goes on.
        assert losses - lossy.drops_left in ((tries,) if losses == tries else (tries + 1, 2 * tries))
        lossy.drop_replies_to(name, 0)
        assert witness.release(acquired(witness, name))


@pytest.mark.parametrize("kind", ["url", "async url"])
def test_i12_a_server_that_does_not_know_how_to_release(private: Store, name: str) -> None:
    """It was restarted, and has forgotten the scripts but not the records."""
    with TcpProxy(private.server.address) as lossy:
        provider = private.provider(lossy.address)
        acquired(provider, f"{name}-warm")
        lossy.drop_replies_to(name, 2)
        with pytest.raises(ProviderUnreachable):
            provider.acquire(LockRequest(name, "1m"))
        assert lossy.drops_left == 0
        acquired(provider, name)


class SilentProxy(TcpProxy):
    """Loses the reply to one request, and leaves the connection as it is."""

    def __init__(self, upstream: Address) -> None:
        self.marker = b""
        self._silent: set[_Link] = set()
        super().__init__(upstream)

    def _may_pass(self, link: _Link, chunk: bytes, *, to_server: bool) -> bool:
        if to_server and self.marker and self.marker in chunk:
            self.marker = b""
            self._silent.add(link)
        if not to_server and link in self._silent:
            return False
        return super()._may_pass(link, chunk, to_server=to_server)


@pytest.mark.parametrize("kind", ["url", "async url"])
def test_i12_an_answer_that_does_not_come(store: Store, witness: LockProvider, name: str) -> None:
    """The caller does not wait for it, and nobody has the lock."""
    with SilentProxy(store.server.address) as silent:
        provider = store.provider(url=f"{store.server.url(via=silent.address)}?timeout=1s")
        acquired(provider, f"{name}-warm")
        silent.marker = name.encode()
        with pytest.raises(ProviderUnreachable, match="waited for a reply"):
            provider.acquire(LockRequest(name, "1m"))
        assert not silent.marker
        assert record_of(witness, name).fencing_token, "it was granted"
        wait_until(lambda: not record_of(witness, name).is_held, what="it is undone, in the background")
        assert witness.release(acquired(witness, name))
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
    store: Store, witness: LockProvider, lossy: TcpProxy, name: str
) -> None:
    """The last failure of a client that retries says nothing of its first try."""
    weather = Weather()
    retry = store.retry(1)
    retry._backoff = weather
    provider = store.provider(lossy.address, retry=retry)
    acquired(provider, f"{name}-warm")
    lossy.drop_replies_to(name)
    weather.events = [lossy.refuse, lossy.accept]  # after the lost reply; when connecting to undo it has failed
    with pytest.raises(ProviderUnreachable, match=r"(?i)refused|connect call failed"):
        provider.acquire(LockRequest(name, "1m"))
    assert (lossy.drops_left, weather.events) == (0, [])
    assert witness.release(acquired(witness, name))


@pytest.mark.parametrize("kind", ["once", "async once"])
@pytest.mark.parametrize("options", [{"retry_on_timeout": True}, {"retry_on_error": [redis.TimeoutError]}], ids=str)
def test_i12_a_client_from_a_url_that_retries_once(
    store: Store, witness: LockProvider, lossy: TcpProxy, name: str, options: dict[str, Any]
) -> None:
    """redis-py's way of yore to ask for it: nobody asks a third time."""
    client_class: Any = redis.asyncio.Redis if store.is_async else redis.Redis
    provider = store.provider_of(lambda: client_class.from_url(store.server.url(via=lossy.address), **options))
    provider.record(name)
    lossy.drop_replies_to(name, 2)
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    assert lossy.drops_left == 0
    assert witness.release(acquired(witness, name))


def test_take_over_that_is_never_answered(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str, tries: int
) -> None:
    acquired(witness, name)
    lossy.drop_replies_to(script("take_over").sha, tries)  # the record is read before
    with pytest.raises(ProviderUnreachable) as unreachable:
        provider.take_over(LockRequest(name, "1m"))
    assert (unreachable.value.operation, unreachable.value.lock_name) == ("take_over", name)
    assert lossy.drops_left == 0
    assert witness.release(acquired(witness, name))


def test_release_that_is_never_answered(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str, tries: int
) -> None:
    lease = acquired(provider, name)
    lossy.drop_replies_to(name, tries)
    with pytest.raises(ProviderUnreachable) as unreachable:
        provider.release(lease)
    assert (unreachable.value.operation, unreachable.value.lock_name) == ("release", name)
    assert lossy.drops_left == 0, "there is nothing to undo"
    assert not lease.is_trusted()
    assert provider.release(lease) is True, "which it was"
    assert witness.release(acquired(witness, name))


@pytest.mark.parametrize("kind", ["url", "async url"])
def test_i4_a_release_that_is_never_answered_is_not_taken_back(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str, tries: int
) -> None:
    lease = acquired(provider, name, "10m", lock_at_least_for="30s")
    lossy.drop_replies_to(name, tries)
    with pytest.raises(ProviderUnreachable):
        provider.release(lease)
    assert provider.extend(lease, "10m") is None
    assert 20 < record_of(witness, name).remaining.total_seconds() <= 30


def test_extend_that_is_never_answered(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str, tries: int
) -> None:
    lease = acquired(provider, name)
    lossy.drop_replies_to(name, tries)
    with pytest.raises(ProviderUnreachable) as unreachable:
        provider.extend(lease, "10m")
    assert (unreachable.value.operation, unreachable.value.lock_name) == ("extend", name)
    assert lossy.drops_left == 0, "the lease is not undone"
    assert 0 < lease.trusted_for().total_seconds() <= 60, "believes no more than before"
    assert provider.extend(lease, "5m") is lease
    assert_ours(witness, lease)
    assert provider.release(lease)


def test_a_reset_of_the_pooled_connections_is_not_noticed(provider: LockProvider, lossy: TcpProxy, name: str) -> None:
    lossy.cut()
    lease = acquired(provider, name)
    lossy.cut()
    assert provider.extend(lease, "2m") is lease
    lossy.cut()
    assert provider.release(lease) is True
    lossy.cut()
    assert record_of(provider, name).locked_by == lease.locked_by


@pytest.mark.parametrize("kind", URL_KINDS)
def test_a_lost_handshake_takes_no_lock(store: Store, lossy: TcpProxy, name: str) -> None:
    provider = store.provider(url=f"{store.server.url(via=lossy.address)}?protocol=3")  # says HELLO
    lossy.drop_next_reply()
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    assert lossy.replies_dropped == 1
    lease = acquired(provider, name)
    assert provider.release(lease)
    lossy.cut()
    lossy.drop_replies_to("HELLO", MOST)
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(f"{name}-2", "1m"))
    lossy.drop_replies_to("HELLO", 0)
    assert provider.record(f"{name}-2") is None


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
def test_i12_a_claim_that_comes_late_finds_itself_released(
    redis_server: RedisEndpoint, name: str, operation: str
) -> None:
    """The same question once more, after all was over, as from a connection that was stalled."""
    provider = RedisLockProvider(redis_server.url())
    commands: list[Any] = []

    def execute(command: Any) -> Any:
        commands.append(command)
        return client.execute(command, None)

    client = open_client(redis_server.url(), 5.0)
    lease = run(getattr(provider.programs, operation)(LockRequest(name, "1h")), execute)
    assert provider.release(lease)
    before = provider.record(name)
    assert client.execute(commands[-1], None) == (0 if operation == "acquire" else lease.fencing_token)
    client.close()
    assert provider.record(name) == before
    assert provider.release(acquired(provider, name))
    provider.close()
