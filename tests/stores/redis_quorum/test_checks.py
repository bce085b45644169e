"""Checks of the quorum's server settings, for ``shedlock doctor``."""

from __future__ import annotations

import pytest

from shedlock_py.provider import Check
from tests.stores.redis_quorum.quorums import Quorum, acquired
from tests.support.locks import checks_of, statuses

pytestmark = pytest.mark.parametrize("size", [3])


def test_nothing_is_warned_of_if_all_is_well(quorum: Quorum, kind: str) -> None:
    """Doctor does not ask for persistence: it would change nothing."""
    assert checks_of(quorum.provider(kind=kind)) == {
        "servers": Check("servers", "ok", "all 3 reply"),
        "eviction": Check("eviction", "ok", "noeviction: no lock is evicted"),
        "replication": Check("replication", "ok", "no replica is connected"),
    }


def test_a_server_that_does_not_reply_is_warned_of(quorum: Quorum, kind: str) -> None:
    provider = quorum.provider(kind=kind, without=[1])
    acquired(provider)  # a majority is enough
    checks = checks_of(provider)
    assert statuses(checks) == {
        "servers": "warning",
        "eviction": "ok",
        "replication": "ok",
    }
    assert checks["servers"].message.startswith("1 of 3 servers did not reply (")
    assert "before another server is lost" in str(checks["servers"].hint)


def test_one_server_that_evicts_is_warned_of(quorum: Quorum, kind: str) -> None:
    server = quorum.servers[2]
    quorum.send(2, "CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-random")
    try:
        found = checks_of(quorum.provider(kind=kind))["eviction"]
    finally:
        quorum.send(2, "CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
    host, port = server.address
    assert found.status == "warning"
    assert found.message.startswith(f"{host}:{port}: allkeys-random may evict a lock")


def test_one_server_that_is_a_replica_is_warned_of(quorum: Quorum, kind: str) -> None:
    """Doctor names the replica, which takes no writes, and not the server with a copy."""
    host, port = quorum.servers[0].address
    quorum.send(1, "REPLICAOF", host, port)
    try:
        found = checks_of(quorum.provider(kind=kind))["replication"]
    finally:
        quorum.send(1, "REPLICAOF", "NO", "ONE")
    assert found.status == "warning"
    assert found.message == f"{':'.join(map(str, quorum.servers[1].address))}: this server is a replica"
    assert found.hint == "the URL must lead to the primary"
