"""What one operation costs on the wire, in the steady state, and after a pause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shedlock_py import LockRequest
from shedlock_py._process import monotonic
from shedlock_py.providers.dynamodb.programs import RECENT
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import both_clients
from tests.stores.dynamodb.conftest import Open
from tests.support.dynamodb import DynamoDBServer
from tests.support.locks import acquired, record_of

ROUNDS = 3


@pytest.fixture
def proxy(dynamodb_server: DynamoDBServer) -> Iterator[TcpProxy]:
    with TcpProxy(dynamodb_server.address) as proxy:
        yield proxy


def programs_of(provider: Any) -> Any:
    return getattr(provider, "async_provider", provider).programs


@both_clients
def test_each_operation_takes_one_round_trip(open_provider: Open, proxy: TcpProxy, name: str) -> None:
    provider = open_provider(proxy.address)
    counted: list[tuple[str, int]] = []

    def count(operation: str) -> None:
        counted.append((operation, proxy.round_trips))
        proxy.reset()

    acquired(provider, name)
    count("first acquire")
    provider.force_release(name)
    for number in range(ROUNDS):
        proxy.reset()
        lease = acquired(provider, name)  # also right after the release, in the same second
        count("acquire")
        assert provider.acquire(LockRequest(name, "1m")) is None
        count("skip")
        assert provider.extend(lease, "2m") is lease
        count("extend")
        assert provider.release(lease)
        count("release")
        assert provider.record(name)
        count("record")
        acquired(provider, f"{name}-{number}")
        count("new name")
    one = ("acquire", "skip", "extend", "release", "record", "new name")
    assert set(counted) == {("first acquire", 3), *((operation, 1) for operation in one)}


def test_after_a_pause_a_read_comes_first(open_provider: Open, proxy: TcpProxy, name: str) -> None:
    """The time of a reply that is older than RECENT decides no claim; a lease that is there costs one request still."""
    provider = open_provider(proxy.address)
    lease = acquired(provider, name, "1h")

    def pause() -> None:
        passed["seconds"] += RECENT + 1
        proxy.reset()

    passed = {"seconds": 0.0}
    programs_of(provider).clock = lambda: monotonic() + passed["seconds"]
    pause()
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert proxy.round_trips == 1, "the read shows that it is held"
    pause()
    assert provider.extend(lease, "2h") is lease
    assert proxy.round_trips == 1
    pause()
    assert provider.release(lease)
    assert proxy.round_trips == 1
    pause()
    acquired(provider, name)
    assert proxy.round_trips == 2


def test_i7_two_replicas_in_turn_within_a_second(open_provider: Open, name: str) -> None:
    """Their estimates of the time differ, so that one may need a second request for a greater token."""
    replicas, last = (open_provider(), open_provider()), 0
    for number in range(12):
        lease = acquired(replicas[number % 2], name)
        assert lease.fencing_token is not None
        assert lease.fencing_token > last
        last = lease.fencing_token
        assert replicas[number % 2].release(lease)


def test_a_skip_writes_nothing(open_provider: Open, dynamodb_server: DynamoDBServer, table: str, name: str) -> None:
    provider, other = open_provider(), open_provider()
    acquired(provider, name)
    before = dynamodb_server.item(table, name)
    for _ in range(5):
        assert other.acquire(LockRequest(name, "1m")) is None
    assert dynamodb_server.item(table, name) == before
    assert record_of(other, name).is_held
