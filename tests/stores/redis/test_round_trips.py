"""Round trips of one operation in the steady state. DESIGN §5 has the table."""

from typing import Any

import pytest

from shedlock_py import LockProvider, LockRequest
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import KINDS, Store, marks_of, send
from tests.support.locks import acquired, record_of

ROUNDS = 6
COSTS = {operation: [1] * ROUNDS for operation in ("acquire", "skip", "extend", "release")}


def costs(provider: LockProvider, proxy: TcpProxy, name: str) -> dict[str, list[int]]:
    """The round trips of each operation. The first operations load the scripts."""
    counted: dict[str, list[int]] = {operation: [] for operation in COSTS}

    def count(operation: str) -> None:
        counted[operation].append(proxy.round_trips)
        proxy.reset()

    for i in range(ROUNDS):
        lock = name if i % 2 else f"{name}-{i}"  # a record that exists, and a missing record
        proxy.reset()
        lease = acquired(provider, lock)
        count("acquire")
        assert provider.acquire(LockRequest(lock, "1m")) is None
        count("skip")
        assert provider.extend(lease, "2m") is lease
        count("extend")
        assert provider.release(lease)
        count("release")
    return counted


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(
            pytest.param(kind, {"history": history}, marks=marks_of(kind, KINDS))
            for kind in KINDS
            for history in (0, 50)
        ),
        *(
            pytest.param(kind, {"protocol": protocol, "decode_responses": True}, marks=marks_of(kind, KINDS))
            for kind in ("once", "async once")
            for protocol in (2, 3)
        ),
    ],
    ids=str,
)
def test_an_operation_costs_one_round_trip(store: Store, proxy: TcpProxy, name: str, options: dict[str, Any]) -> None:
    provider = store.provider(proxy.address, **options)
    costs(provider, proxy, f"{name}-warm")
    assert costs(provider, proxy, name) == COSTS


def test_a_server_that_forgot_the_scripts_loads_them_again(private: Store, name: str) -> None:
    with TcpProxy(private.server.address) as proxy, private.server.client() as client:
        provider = private.provider(proxy.address)
        costs(provider, proxy, name)
        send(client, "SCRIPT FLUSH")
        again = costs(provider, proxy, f"{name}-2")
        assert again == {operation: [1 if operation == "skip" else 2, *[1] * (ROUNDS - 1)] for operation in COSTS}
        for work in (
            lambda: provider.take_over(LockRequest(name, "1m")),
            lambda: record_of(provider, name),
            lambda: provider.records(name),
            lambda: provider.force_release(name),
            lambda: provider.prune("1h"),
        ):
            send(client, "SCRIPT FLUSH")
            assert work() is not None
