"""A request was repeated because the connection broke, and the server carries the first copy out much later.

The kit repeats it, or a client that retries by itself.
"""

from datetime import timedelta
from time import monotonic

import pytest

from shedlock_py import LockProvider, LockRequest
from shedlock_py.providers.redis import RedisLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import TRIES, Store, acquired, record_of, token_of
from tests.support.late_copies import ENDS, asked_twice
from tests.support.redis import RedisEndpoint

pytestmark = pytest.mark.parametrize("kind", ["url", "retries", "async url", "async retries"])


@pytest.fixture
def provider(store: Store, proxy: TcpProxy) -> LockProvider:
    options = {} if store.is_managed else {"retry": store.retry(TRIES - 1)}
    provider = store.provider(proxy.address, **options)
    # The server is to know the scripts: a request that it cannot carry out is not the one to keep back.
    for claim in (provider.acquire, provider.take_over):
        lease = claim(LockRequest("warm", "1m"))
        assert lease is not None
        assert provider.extend(lease, "1m")
        assert provider.release(lease)
    return provider


def test_i2_a_claim_that_is_granted_again_is_not_its_lease(
    provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str
) -> None:
    lease = asked_twice(provider, proxy, name)
    other.force_release(name)
    successor = acquired(other, name)
    assert other.release(successor)
    proxy.deliver()
    again = record_of(other, name)
    assert again.locked_by == lease.locked_by
    assert again.is_held
    assert (again.fencing_token or 0) > token_of(successor)
    assert provider.extend(lease, "10h") is None
    assert not lease.is_trusted()
    assert record_of(other, name).lock_until == again.lock_until
    assert provider.release(lease) is True, "no caller knows of this grant, so the lock is better free"
    assert not record_of(other, name).is_held


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
@pytest.mark.parametrize("end", ENDS)
def test_i12_a_lock_that_was_freed_stays_free(
    provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str, operation: str, end: str
) -> None:
    lease = asked_twice(provider, proxy, name, operation)
    ENDS[end](provider, lease)
    before = record_of(other, name)
    proxy.deliver()
    after = record_of(other, name)
    assert not after.is_held
    assert after == before


def test_i1_a_late_copy_of_a_take_over_takes_nothing_from_a_later_holder(
    provider: LockProvider, other: LockProvider, proxy: TcpProxy, name: str
) -> None:
    acquired(other, name)
    lease = asked_twice(provider, proxy, name, "take_over")
    assert provider.release(lease)
    later = acquired(other, name, "1h")
    before = record_of(other, name)
    proxy.deliver()
    after = record_of(other, name)
    assert (after.locked_by, after.fencing_token, after.lock_until) == (
        before.locked_by,
        before.fencing_token,
        before.lock_until,
    )
    assert other.extend(later, "2h") is later


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
    assert provider.extend(lease, "3m") is lease, "a later one that is shorter is done"
    assert record_of(other, name).remaining <= timedelta(minutes=3)


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
def test_i6_another_holder_has_another_clock(
    provider: LockProvider, redis_server: RedisEndpoint, operation: str, name: str
) -> None:
    """The one before was on a machine that runs for a hundred years."""
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
