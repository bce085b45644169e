"""What the servers of a quorum say of their settings: for ``shedlock doctor``."""

from __future__ import annotations

from typing import Any

import pytest

from shedlock_py.provider import Check
from tests.stores.redis_quorum.quorums import Quorum, acquired

pytestmark = pytest.mark.parametrize("size", [3])


def by_name(provider: Any) -> dict[str, Check]:
    return {check.check: check for check in provider.checks()}


def test_all_is_well(quorum: Quorum, kind: str) -> None:
    """Persistence is not among it: it would change nothing."""
    assert by_name(quorum.provider(kind=kind)) == {
        "servers": Check("servers", "ok", "all 3 reply"),
        "eviction": Check("eviction", "ok", "noeviction: no lock is evicted"),
        "replication": Check("replication", "ok", "no replicas"),
    }


def test_a_server_that_does_not_reply(quorum: Quorum, kind: str) -> None:
    provider = quorum.provider(kind=kind, without=[1])
    acquired(provider)  # a majority is enough
    checks = by_name(provider)
    assert {name: check.status for name, check in checks.items()} == {
        "servers": "warning",
        "eviction": "ok",
        "replication": "ok",
    }
    assert checks["servers"].message.startswith("1 of 3 servers did not reply (")
    assert "before another server is lost" in str(checks["servers"].hint)


def test_one_server_evicts(quorum: Quorum, kind: str) -> None:
    server = quorum.servers[2]
    quorum.send(2, "CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-random")
    try:
        found = by_name(quorum.provider(kind=kind))["eviction"]
    finally:
        quorum.send(2, "CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    host, port = server.address
    assert found.status == "warning"
    assert found.message.startswith(f"{host}:{port}: allkeys-random may evict a lock")


def test_one_server_is_a_replica(quorum: Quorum, kind: str) -> None:
    """And another has it: both are named."""
    host, port = quorum.servers[0].address
    quorum.send(1, "REPLICAOF", host, port)
    try:
        found = by_name(quorum.provider(kind=kind))["replication"]
    finally:
        quorum.send(1, "REPLICAOF", "NO", "ONE")
    assert found.status == "warning"
    assert ":".join(map(str, quorum.servers[1].address)) in found.message
