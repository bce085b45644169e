"""A host name's look-up exceeds the time limit. A late request would hold a lock for nobody."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.testing.proxy import TcpProxy
from tests.support.locks import record_of
from tests.support.polling import wait_until
from tests.support.stores import Store


@pytest.mark.parametrize("store_name", ["etcd", "kubernetes"])
def test_i12_no_request_leaves_after_its_caller_has_given_up(
    store_name: str, make_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is an extension on a new connection: it would add an hour to the lease."""
    store = make_store(store_name).sync()
    may_go_on, look_up = threading.Event(), socket.getaddrinfo
    ended: list[threading.Thread] = []

    def slow(*args: Any, **options: Any) -> Any:
        may_go_on.wait(30)
        try:
            return look_up(*args, **options)
        finally:
            ended.append(threading.current_thread())

    with (
        TcpProxy(store.addresses[0]) as proxy,
        store.provider() as other,
        store.provider([proxy.address], timeout="300ms") as late,
    ):
        lease = eventually_acquired(late)
        before = record_of(other, "job")
        proxy.cut()
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        with pytest.raises(ProviderUnreachable):
            late.extend(lease, "1h")
        may_go_on.set()
        monkeypatch.undo()
        wait_until(lambda: ended, what="the host name was found")
        assert eventually_acquired(late, "later"), "by then, a request that left would have been carried out"
        assert record_of(other, "job").lock_until == before.lock_until


def eventually_acquired(provider: LockProvider, name: str = "job") -> Lease:
    """Retry: the time limit is short for a busy machine."""
    leases: list[Lease | None] = []

    def is_granted() -> bool:
        with suppress(ProviderUnreachable):
            leases.append(provider.acquire(LockRequest(name, "1h")))
        return bool(leases and leases[-1])

    wait_until(is_granted, what="a lease")
    assert leases[-1] is not None
    return leases[-1]
