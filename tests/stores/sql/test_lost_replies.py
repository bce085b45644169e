"""The server did what it was asked, and nobody heard. I12: nothing stays locked that nobody knows to hold."""

import threading
from collections.abc import Callable, Iterator

import pytest

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import Store, acquired, record_of
from tests.support.polling import wait_until

MOST = 1000


@pytest.fixture
def lossy(store: Store) -> Iterator[TcpProxy]:
    with TcpProxy(store.server.address) as proxy:
        yield proxy


@pytest.fixture(params=["url", "engine"])
def provider(request: pytest.FixtureRequest, store: Store, lossy: TcpProxy) -> LockProvider:
    provider = store.provider(lossy.address) if request.param == "url" else store.provider_of_engine(lossy.address)
    provider.record("warm")
    return provider


@pytest.fixture
def witness(store: Store) -> LockProvider:
    """Another replica, with a better line."""
    return store.provider()


def assert_ours(witness: LockProvider, lease: Lease | None) -> Lease:
    assert lease is not None, "the lock is ours"
    assert lease.is_trusted()
    record = record_of(witness, lease.name)
    assert (record.locked_by, record.fencing_token, record.is_held) == (lease.locked_by, lease.fencing_token, True)
    return lease


def test_i12_acquire(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    tokens = []
    for _ in range(3):  # the first time there is no record
        lossy.drop_replies_to(name)
        lease = assert_ours(witness, provider.acquire(LockRequest(name, "1m")))
        assert lossy.drops_left == 0
        tokens.append(lease.fencing_token or 0)
        assert provider.release(lease)
        assert not record_of(witness, name).is_held
    assert tokens == sorted(set(tokens))


def test_a_skip(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    lease = acquired(witness, name)
    lossy.drop_replies_to(name)
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert lossy.drops_left == 0
    assert_ours(witness, lease)


def test_take_over(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    acquired(witness, name)
    lossy.drop_replies_to(name)
    assert_ours(witness, provider.take_over(LockRequest(name, "1m")))
    assert lossy.drops_left == 0


def test_extend(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    lease = acquired(provider, name)
    lossy.drop_replies_to(name)
    assert provider.extend(lease, "10m") is lease
    assert lossy.drops_left == 0
    assert record_of(witness, name).remaining.total_seconds() > 500
    assert lease.trusted_for().total_seconds() > 500
    assert_ours(witness, lease)


def test_i12_release(provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str) -> None:
    lease = acquired(provider, name)
    lossy.drop_replies_to(name)
    assert provider.release(lease) is True
    assert lossy.drops_left == 0
    assert not record_of(witness, name).is_held
    assert provider.release(lease) is False


@pytest.mark.parametrize("losses", [2, 3, MOST])
def test_i12_acquire_that_is_never_answered(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str, losses: int
) -> None:
    lossy.drop_replies_to(name, losses)
    with pytest.raises(ProviderUnreachable) as unreachable:
        provider.acquire(LockRequest(name, "1m"))
    assert (unreachable.value.operation, unreachable.value.lock_name) == ("acquire", name)
    assert unreachable.value.__cause__ is not None
    # The claim was sent twice, and so was its undo, whose reply matters to no one.
    assert lossy.drops_left == max(0, losses - 4)
    lossy.drop_replies_to(name, 0)
    assert_free(witness, name)


def assert_free(witness: LockProvider, name: str) -> None:
    """Soon: MySQL rolls back a transaction of a broken connection when it notices."""
    taken: list[Lease] = []

    def take() -> bool:
        lease = witness.acquire(LockRequest(name, "1m"))
        taken.extend([lease] if lease else [])
        return bool(taken)

    wait_until(take, what=f"{name} free again")
    assert witness.release(taken[0])


def test_release_that_is_never_answered(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str
) -> None:
    lease = acquired(provider, name)
    lossy.drop_replies_to(name, MOST)
    with pytest.raises(ProviderUnreachable):
        provider.release(lease)
    assert not lease.is_trusted()
    lossy.drop_replies_to(name, 0)
    provider.release(lease)
    assert_free(witness, name)


def test_extend_that_is_never_answered(
    provider: LockProvider, witness: LockProvider, lossy: TcpProxy, name: str
) -> None:
    lease = acquired(provider, name)
    lossy.drop_replies_to(name, MOST)
    with pytest.raises(ProviderUnreachable):
        provider.extend(lease, "10m")
    assert 0 < lease.trusted_for().total_seconds() <= 60, "believes no more than before"
    lossy.drop_replies_to(name, 0)
    assert provider.extend(lease, "5m") is lease
    assert_ours(witness, lease)
    assert provider.release(lease)


@pytest.mark.parametrize("driver", ["mysql+pymysql", "mysql+mysqldb", "mysql+aiomysql", "mysql+asyncmy"])
@pytest.mark.parametrize("reply", [0, 1, 2])  # of the statement, the COMMIT, and the pool's ROLLBACK
def test_i12_acquire_in_a_transaction(driver: str, reply: int, store: Store, lossy: TcpProxy, name: str) -> None:
    provider, witness = store.provider_of_engine(lossy.address), store.provider()
    provider.record("warm")
    lossy.drop_next_reply(skip=reply)
    lease = assert_ours(witness, provider.acquire(LockRequest(name, "1m")))
    assert lossy.replies_dropped == 1
    provider.record("a new connection")
    lossy.drop_next_reply(skip=reply)
    assert provider.extend(lease, "2m") is lease
    provider.record("a new connection")
    lossy.drop_next_reply(skip=reply)
    assert provider.release(lease) is True
    assert not record_of(witness, name).is_held
    assert lossy.replies_dropped == 3


def in_threads(count: int, work: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_a_reset_of_all_pooled_connections_is_not_noticed(provider: LockProvider, lossy: TcpProxy, name: str) -> None:
    lossy.stall()
    threads = in_threads(4, lambda: acquired(provider, f"{name}-{threading.get_ident()}"))
    wait_until(lambda: lossy.open_connections >= 4, what="four connections")
    lossy.resume()
    for thread in threads:
        thread.join(20)
    lossy.cut()
    wait_until(lambda: lossy.open_connections == 0)
    lease = acquired(provider, name)
    lossy.cut()
    assert provider.extend(lease, "2m") is lease
    lossy.cut()
    assert provider.release(lease) is True
    lossy.cut()
    assert record_of(provider, name).locked_by == lease.locked_by


def test_a_refused_connection(provider: LockProvider, lossy: TcpProxy, name: str) -> None:
    lossy.refuse()
    lossy.cut()
    for _ in range(2):
        with pytest.raises(ProviderUnreachable) as unreachable:
            provider.acquire(LockRequest(name, "1m"))
        assert unreachable.value.__cause__ is not None
    lossy.accept()
    assert provider.release(acquired(provider, name))


def test_a_lost_handshake_takes_no_lock(store: Store, lossy: TcpProxy, name: str) -> None:
    provider = store.provider(lossy.address)
    lossy.drop_next_reply()
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    assert provider.record(name) is None
    assert provider.release(acquired(provider, name))
