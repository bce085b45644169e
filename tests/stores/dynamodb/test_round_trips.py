"""Round trips of one operation, in the steady state and after a pause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shedlock_py import LockRequest
from shedlock_py.providers.aws import aws_clients as clients
from shedlock_py.providers.dynamodb.dynamodb_programs import RECENT
from shedlock_py.runtime.process import monotonic
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import both_clients
from tests.stores.dynamodb.conftest import Open
from tests.support.dates import DateProxy
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


def test_after_a_pause_two_reads_come_first(
    open_provider: Open, dynamodb_server: DynamoDBServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time older than RECENT decides no claim, and confirms no other time."""
    passed = 0.0
    with DateProxy(dynamodb_server.address) as proxy:
        provider = open_provider(proxy.address)
        for patched, attribute in ((clients, "monotonic"), (programs_of(provider), "clock")):
            monkeypatch.setattr(patched, attribute, lambda: monotonic() + passed)
        lease = acquired(provider, name, "1h")
        costs = []
        for operation in (
            lambda: provider.acquire(LockRequest(name, "1m")),
            lambda: provider.extend(lease, "2h"),
            lambda: provider.release(lease),
            lambda: provider.acquire(LockRequest(name, "1m")),
        ):
            passed += RECENT + 1
            proxy.offset = passed
            proxy.reset()
            operation()
            costs.append(proxy.round_trips)
        assert costs == [2, 1, 1, 3]
        assert record_of(provider, name).is_held


def test_i1_after_a_long_pause_one_reply_of_a_wrong_clock(
    open_provider: Open, dynamodb_server: DynamoDBServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a day, each reply seems to agree with the last reply before the pause."""
    passed = 0.0
    with DateProxy(dynamodb_server.address) as proxy:
        holder, other = open_provider(proxy.address), open_provider(proxy.address)
        for patched, attribute in (
            (clients, "monotonic"),
            (programs_of(holder), "clock"),
            (programs_of(other), "clock"),
        ):
            monkeypatch.setattr(patched, attribute, lambda: monotonic() + passed)
        acquired(other, f"{name}-before")
        passed = proxy.offset = 86400.0
        lease = acquired(holder, name, "30s")
        proxy.next_offset = 86460.0
        assert other.acquire(LockRequest(name, "30s")) is None
        assert holder.extend(lease, "30s") is lease


def test_i7_two_replicas_in_turn_within_a_second(open_provider: Open, name: str) -> None:
    """Their estimates of the time differ, so a replica may need a second request for a greater token."""
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
