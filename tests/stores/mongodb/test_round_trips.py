"""Round trips of one operation in the steady state. DESIGN §5 has the table."""

import time

import pytest

from shedlock_py import LockRequest
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import both_clients
from tests.stores.mongodb.stores import QUIET, SLOW_SERVER, Store
from tests.support.locks import acquired
from tests.support.polling import wait_until

ROUNDS = 3


def wait_for_the_monitor(proxy: TcpProxy) -> None:
    """PyMongo checks the server again after half a second: on a busy machine that would fall into the test."""
    seen, since = proxy.round_trips, time.monotonic()

    def is_quiet() -> bool:
        nonlocal seen, since
        if proxy.round_trips != seen:
            seen, since = proxy.round_trips, time.monotonic()
        return time.monotonic() - since > 1

    wait_until(is_quiet, what="nothing more from PyMongo's monitor")


@both_clients
@pytest.mark.parametrize("place", ["url", "client"])
def test_each_operation_takes_one_round_trip(place: str, store: Store, proxy: TcpProxy, name: str) -> None:
    if place == "url":
        provider = store.provider(proxy.address, **QUIET, **SLOW_SERVER)
    else:
        provider = store.provider_of_client(proxy.address, **QUIET)
    counted: list[tuple[str, int]] = []

    def count(operation: str) -> None:
        counted.append((operation, proxy.round_trips))
        proxy.reset()

    acquired(provider, name)
    provider.force_release(name)
    wait_for_the_monitor(proxy)
    for _ in range(ROUNDS):
        proxy.reset()
        lease = acquired(provider, name)
        count("acquire")
        assert provider.acquire(LockRequest(name, "1m")) is None
        count("skip")
        assert provider.extend(lease, "2m") is lease
        count("extend")
        assert provider.release(lease)
        count("release")
        assert provider.record(name)
        count("record")
    assert set(counted) == {(operation, 1) for operation in ("acquire", "skip", "extend", "release", "record")}


def test_the_first_use_of_a_name_takes_one_round_trip(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address, **QUIET, **SLOW_SERVER)
    provider.record("warm")
    wait_for_the_monitor(proxy)
    for i in range(3):
        proxy.reset()
        acquired(provider, f"{name}-{i}")
        assert proxy.round_trips == 1
