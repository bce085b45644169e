"""Lost replies where PyMongo retries by itself; the contract has those where the provider does."""

import pytest

from shedlock_py import LockRequest
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.mongodb.stores import Store
from tests.stores.sql.stores import acquired, record_of


@pytest.mark.parametrize("losses", [1, 2])  # PyMongo sends each of the provider's two copies twice
def test_i12_a_client_with_retries(store: Store, proxy: TcpProxy, name: str, losses: int) -> None:
    provider = store.provider_of_client(proxy.address, retryWrites=True, retryReads=True)
    provider.record("warm")
    proxy.drop_replies_to(name, losses)
    lease = acquired(provider, name)
    assert proxy.drops_left == 0
    record = record_of(provider, name)
    assert (record.locked_by, record.fencing_token) == (lease.locked_by, lease.fencing_token)
    proxy.drop_replies_to(name, losses)
    assert provider.extend(lease, "10m") is lease
    assert record_of(provider, name).remaining.total_seconds() > 500
    proxy.drop_replies_to(name, losses)
    assert provider.release(lease) is True
    assert proxy.drops_left == 0
    assert provider.release(acquired(provider, name))
    assert provider.acquire(LockRequest(name, "1m")) is not None
