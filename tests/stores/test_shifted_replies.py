"""A proxy sends the reply to the previous request: replies must name their subject."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shedlock_py import LockRequest, ProviderUnreachable
from tests.support.locks import acquired, record_of
from tests.support.shifted_replies import ShiftingProxy
from tests.support.stores import Store


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("store_name", ["etcd", "kubernetes"])
def test_i2_the_reply_to_an_older_extension_extends_no_lease(
    store_name: str, kind: str, make_store: Callable[..., Store]
) -> None:
    store = make_store(store_name)
    store = store.asynchronous() if kind == "async" else store.sync()
    with (
        ShiftingProxy(store.addresses[0]) as proxy,
        store.provider([proxy.address]) as shifted,
        store.provider() as other,
    ):
        lease = acquired(shifted, "job")
        assert shifted.extend(lease, "1m") is lease
        assert other.force_release("job") is True
        successor = acquired(other, "job")
        proxy.shift()
        with pytest.raises(ProviderUnreachable, match="the reply belongs to another request — a proxy") as caught:
            shifted.extend(lease, "1m")
        assert caught.value.operation == "extend"
        assert shifted.extend(lease, "1m") is None, "on a new connection"
        assert record_of(other, "job").locked_by == successor.locked_by


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("store_name", ["etcd", "kubernetes"])
def test_i1_the_reply_to_an_older_acquire_grants_no_lock(
    store_name: str, kind: str, make_store: Callable[..., Store]
) -> None:
    """The replies contain the names."""
    store = make_store(store_name)
    store = store.asynchronous() if kind == "async" else store.sync()
    with (
        ShiftingProxy(store.addresses[0]) as proxy,
        store.provider([proxy.address]) as shifted,
        store.provider() as other,
    ):
        held = acquired(other, "held")
        lease = acquired(shifted, "job")
        proxy.shift()
        with pytest.raises(ProviderUnreachable, match="the reply belongs to another request"):
            shifted.record("held")
        assert shifted.release(lease) is True, "on a new connection"
        proxy.shift()
        with pytest.raises(ProviderUnreachable, match="the reply belongs to another request"):
            shifted.acquire(LockRequest("held", "1m"))
        assert other.extend(held, "1m") is held
