"""Lost replies and broken connections beyond the contract: transactions, pools, opening."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import DRIVERS, KINDS, Store, drivers_of, on
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until


@pytest.fixture
def provider(kind: str, store: Store, proxy: TcpProxy) -> LockProvider:
    provider = store.provider_of(kind, proxy.address)
    provider.record("warm")
    return provider


@on(drivers_of("mariadb", "mysql"))
@pytest.mark.parametrize("reply", [0, 1, 2])  # of the statement, the COMMIT, and the pool's ROLLBACK
def test_i12_a_lost_reply_within_a_transaction_is_not_noticed(
    driver: str, reply: int, store: Store, proxy: TcpProxy, name: str
) -> None:
    provider, other = store.provider_of_engine(proxy.address), store.provider()
    provider.record("warm")
    proxy.drop_next_reply(skip=reply)
    lease = provider.acquire(LockRequest(name, "1m"))
    assert lease is not None
    record = record_of(other, name)
    assert (record.locked_by, record.fencing_token, record.is_held) == (lease.locked_by, lease.fencing_token, True)
    assert proxy.replies_dropped == 1
    provider.record("a new connection")
    proxy.drop_next_reply(skip=reply)
    assert provider.extend(lease, "2m") is lease
    provider.record("a new connection")
    proxy.drop_next_reply(skip=reply)
    assert provider.release(lease) is True
    assert not record_of(other, name).is_held
    assert proxy.replies_dropped == 3


@on(DRIVERS, kinds=KINDS)
def test_a_reset_of_all_pooled_connections_is_not_noticed(provider: LockProvider, proxy: TcpProxy, name: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        proxy.stall()
        acquiring = [pool.submit(acquired, provider, f"{name}-{number}") for number in range(4)]
        wait_until(lambda: proxy.open_connections >= 4, what="four connections")
        proxy.resume()
    leases = [future.result() for future in acquiring]
    proxy.cut()
    wait_until(lambda: proxy.open_connections == 0)
    assert [provider.release(lease) for lease in leases] == [True] * 4


@on(DRIVERS, kinds=KINDS)
def test_i5_a_refused_connection_is_unreachable(provider: LockProvider, proxy: TcpProxy, name: str) -> None:
    proxy.refuse()
    proxy.cut()
    for _ in range(2):
        with pytest.raises(ProviderUnreachable) as unreachable:
            provider.acquire(LockRequest(name, "1m"))
        assert unreachable.value.__cause__ is not None
    proxy.accept()
    assert provider.release(acquired(provider, name))


def test_a_lost_handshake_takes_no_lock(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    proxy.drop_next_reply()
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    assert provider.record(name) is None
    assert provider.release(acquired(provider, name))
