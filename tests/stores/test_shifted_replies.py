"""A proxy that replies with the reply to the request before: replies must say what they are about."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from shedlock_py import LockRequest, ProviderUnreachable
from shedlock_py.testing.proxy import Address, TcpProxy
from tests.support.locks import acquired, record_of
from tests.support.stores import Store

_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


class ShiftingProxy(TcpProxy):
    """For one client, which sends one request at a time."""

    def __init__(self, upstream: Address) -> None:
        self._shifted_connection = -1
        self._part = self._former = b""
        super().__init__(upstream, rewrite=self._reply)

    def shift(self) -> None:
        """From now on, until the client opens another connection, a reply is the one to the request before."""
        self._shifted_connection = self.connections

    def _reply(self, chunk: bytes) -> bytes:
        self._part += chunk
        head, separator, body = self._part.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        assert length or not separator, "each reply of these servers has its length"
        if length is None or len(body) < int(length[1]):
            return b""
        former, self._former, self._part = self._former, self._part, b""
        return former if self.connections == self._shifted_connection else self._former


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
    """The names are in the replies."""
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
