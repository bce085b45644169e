"""Late copies of an extension: Redis compares the holder's clock. ``NetworkContract`` has late copies of claims."""

from datetime import timedelta
from time import monotonic

import pytest

from shedlock_py import LockProvider, LockRequest
from shedlock_py.providers.redis import RedisLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import TRIES, Store, through
from tests.support.locks import acquired, record_of
from tests.support.redis import RedisEndpoint

pytestmark = through("url", "retries", "async url", "async retries", programs=True)


@pytest.fixture
def provider(store: Store, proxy: TcpProxy) -> LockProvider:
    options = {} if store.is_managed else {"retry": store.retry(TRIES - 1)}
    provider = store.provider(proxy.address, **options)
    # The server must know the scripts; otherwise the proxy would hold a request that fails.
    lease = acquired(provider, "warm")
    assert provider.extend(lease, "1m")
    assert provider.release(lease)
    return provider


def test_i6_an_extension_that_was_overtaken_changes_nothing(
    provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str
) -> None:
    lease = acquired(provider, name)
    proxy.hold(name)
    assert provider.extend(lease, "2m") is lease
    assert proxy.holds
    assert provider.extend(lease, "1h") is lease
    before = record_of(other, name)
    proxy.deliver()
    assert record_of(other, name) == before
    assert timedelta(minutes=58) < lease.trusted_for() < record_of(other, name).remaining
    assert provider.extend(lease, "3m") is lease, "a later, shorter extension is carried out"
    assert record_of(other, name).remaining <= timedelta(minutes=3)


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
def test_i6_another_holder_has_another_clock(
    provider: LockProvider, redis_server: RedisEndpoint, operation: str, name: str
) -> None:
    """The former holder's machine had been up for a hundred years."""
    old = RedisLockProvider(redis_server.url())
    old.programs.clock = lambda: monotonic() + 100 * 365 * 86400
    before = acquired(old, name)
    assert old.extend(before, "1m") is before
    if operation == "acquire":
        assert old.release(before)
    lease = getattr(provider, operation)(LockRequest(name, "1m"))
    assert provider.extend(lease, "10m") is lease
    assert record_of(old, name).remaining > timedelta(minutes=9)
    old.close()
