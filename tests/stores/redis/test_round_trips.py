"""What one operation costs on the wire, in the steady state. DESIGN §5 has the table."""

import pytest

from shedlock_py import LockProvider, LockRequest
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import KINDS, Store, acquired, ask, record_of, token_of
from tests.support.availability import private_server
from tests.support.redis import RedisServer

ROUNDS = 12
OPERATIONS = ("acquire", "skip", "extend", "release")


def costs(provider: LockProvider, proxy: TcpProxy, name: str) -> dict[str, list[int]]:
    """The round trips of each operation, round by round: the first learns the scripts."""
    counted: dict[str, list[int]] = {operation: [] for operation in OPERATIONS}

    def count(operation: str) -> None:
        counted[operation].append(proxy.round_trips)
        proxy.reset()

    for i in range(ROUNDS):
        lock = name if i % 2 else f"{name}-{i}"  # a record that exists, and one that does not
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


def test_one(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    costs(provider, proxy, f"{name}-warm")
    assert costs(provider, proxy, name) == {operation: [1] * ROUNDS for operation in OPERATIONS}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", ["once", "async once"])
def test_one_with_other_options(store: Store, proxy: TcpProxy, name: str, protocol: int) -> None:
    provider = store.provider(proxy.address, protocol=protocol, decode_responses=True)
    costs(provider, proxy, f"{name}-warm")
    assert costs(provider, proxy, name) == {operation: [1] * ROUNDS for operation in OPERATIONS}


def test_a_server_that_forgot_the_scripts_learns_them_again(private: Store, name: str) -> None:
    with TcpProxy(private.server.address) as proxy, private.server.client() as client:
        provider = private.provider(proxy.address)
        first = costs(provider, proxy, name)
        assert all(trips[1:] == [1] * (ROUNDS - 1) for trips in first.values())
        assert (first["skip"][0], first["extend"][0], first["release"][0]) == (1, 2, 2)
        ask(client, "SCRIPT FLUSH")
        again = costs(provider, proxy, f"{name}-2")
        assert again == {
            "acquire": [2, *[1] * (ROUNDS - 1)],
            "skip": [1] * ROUNDS,
            "extend": [2, *[1] * (ROUNDS - 1)],
            "release": [2, *[1] * (ROUNDS - 1)],
        }
        for work in (
            lambda: provider.take_over(LockRequest(name, "1m")),
            lambda: record_of(provider, name),
            lambda: provider.records(name),
            lambda: provider.force_release(name),
            lambda: provider.prune("1h"),
        ):
            ask(client, "SCRIPT FLUSH")
            assert work() is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("appendonly", [True, False])
def test_a_restart_of_the_server(kind: str, appendonly: bool, name: str) -> None:
    with private_server("redis", lambda: RedisServer(appendonly=appendonly)) as server:
        store = Store(server, kind)
        with store.stack:
            provider = store.provider()
            lease = acquired(provider, name)
            assert provider.release(acquired(provider, f"{name}-2"))
            server.restart()
            if appendonly:
                assert provider.acquire(LockRequest(name, "1m")) is None
                assert provider.extend(lease, "2m") is lease
                assert provider.release(lease) is True
            else:
                assert provider.extend(lease, "2m") is None
                assert not lease.is_trusted()
            assert token_of(acquired(provider, name)) > token_of(lease)  # I7
