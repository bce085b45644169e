"""The stored keys, round trips, and keys that somebody else has written."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from shedlock_py import LockRequest, ProviderError
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import both_clients
from tests.stores.etcd.conftest import Open
from tests.support.availability import private_server
from tests.support.etcd import EtcdServer
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of

PREFIX = "/records/"


def put(server: EtcdServer, key: str, value: bytes) -> None:
    server.ask("/v3/kv/put", key=b64encode(f"{PREFIX}{key}".encode()).decode(), value=b64encode(value).decode())


def pair_of(server: EtcdServer, key: str) -> dict[str, Any]:
    reply = server.ask("/v3/kv/range", key=b64encode(f"{PREFIX}{key}".encode()).decode())
    pair: dict[str, Any] = reply["kvs"][0]
    return pair


def get(server: EtcdServer, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b64decode(pair_of(server, key)["value"]))
    return found


def test_a_key_has_the_fields_of_the_documentation(etcd_server: EtcdServer, open_url: Open, name: str) -> None:
    provider = open_url(etcd_server.url(prefix=PREFIX))
    lease = acquired(provider, name)
    record = get(etcd_server, name)
    assert list(record) == ["locked_by", "locked_at", "lock_until", "fencing_token", "last_fire_time", "is_released"]
    assert (record["locked_by"], record["fencing_token"]) == (lease.locked_by, lease.fencing_token)
    provider.release(lease)
    assert get(etcd_server, name)["free"] is True


@both_clients
def test_round_trips_of_a_job(etcd_server: EtcdServer, open_url: Open, name: str) -> None:
    """An acquire takes two (a read and a write), and one more for a name's first record. Each other operation takes
    one."""
    with TcpProxy(etcd_server.address) as proxy:
        provider = open_url(etcd_server.url(via=proxy.address, prefix=PREFIX))
        provider.record("warm")
        counted: list[tuple[str, int]] = []

        def count(operation: str) -> None:
            counted.append((operation, proxy.round_trips))
            proxy.reset()

        proxy.reset()
        assert provider.release(acquired(provider, name))
        assert proxy.round_trips == 3 + 1
        for _ in range(6):
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
        assert set(counted) == {("acquire", 2), ("skip", 1), ("extend", 1), ("release", 1), ("record", 1)}


def test_round_trips_of_operations_that_go_by_what_they_read(
    etcd_server: EtcdServer, open_url: Open, name: str
) -> None:
    """The keys are the ones in the page's table."""
    with TcpProxy(etcd_server.address) as proxy:
        provider: Any = open_url(etcd_server.url(via=proxy.address, prefix=PREFIX))
        lease = acquired(provider, name, fire_time=datetime.now(UTC))
        counted: dict[str, int] = {}

        def count(operation: str, call: Callable[[], object]) -> None:
            proxy.reset()
            assert call()
            counted[operation] = proxy.round_trips

        count("forget fire time", lambda: provider.forget_fire_time(name))
        count("extend a record that another operation has changed", lambda: provider.extend(lease, "2m"))
        count("take over", lambda: provider.take_over(LockRequest(name, "1m")))
        count("force release", lambda: provider.force_release(name))
    assert counted == {
        "forget fire time": 2,
        "extend a record that another operation has changed": 3,
        "take over": 3,
        "force release": 3,
    }


def test_a_skip_writes_nothing(etcd_server: EtcdServer, open_url: Open, name: str) -> None:
    provider = open_url(etcd_server.url(prefix=PREFIX))
    acquired(provider, name)

    def revision() -> str:
        found: str = etcd_server.ask("/v3/kv/range", key="AA==")["header"]["revision"]
        return found

    before = revision()
    for _ in range(5):
        assert provider.acquire(LockRequest(name, "1m")) is None
    assert revision() == before


ODD = [
    b"", b"hello", b"\xff\x00", b"[]", b"null", b"{}", b"7", b'{"locked_by": 7}',
    b"[" * 9999,
    b'{"locked_by": "a#b", "locked_at": "yesterday", "lock_until": "x", "fencing_token": 1}',
    b'{"locked_by": "a#b", "locked_at": "2026-01-01T00:00:00", "lock_until": "2026-01-01T00:00:00", '
    b'"fencing_token": 1, "last_fire_time": null}',
    b'{"locked_by": "a#b", "locked_at": "2026-01-01T00:00:00+00:00", "lock_until": "2026-01-01T00:00:00+00:00", '
    b'"fencing_token": "x", "last_fire_time": null}',
    b'{"locked_by": "a#b", "locked_at": "2026-01-01T00:00:00+00:00", "lock_until": "9999-12-31T23:59:59-14:00", '
    b'"fencing_token": 1, "last_fire_time": null}',
]  # fmt: skip


def test_i5_a_key_that_is_no_record_is_refused_and_hides_no_other(
    etcd_server: EtcdServer, open_url: Open, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = open_url(etcd_server.url(prefix=PREFIX))
    acquired(provider, f"{name}-good")
    for value in ODD:
        caplog.clear()
        put(etcd_server, name, value)
        with pytest.raises(ProviderError, match="not a lock record"):
            provider.acquire(LockRequest(name, "1m"))
        assert [record.name for record in provider.records(name)] == [f"{name}-good"]
        assert warnings_of(caplog, name)
        provider.prune("1h")
        assert record_of(provider, f"{name}-good").is_held


def test_i2_a_lease_of_another_cluster_ends_nothing_here(open_url: Open, name: str, etcd_server: EtcdServer) -> None:
    """Two stores may have equal versions by chance. Here two prefixes get equal versions by hand."""
    here, there = (open_url(etcd_server.url(prefix=f"{PREFIX}{where}/")) for where in ("here", "there"))
    foreign = acquired(there, name)
    lease = acquired(here, name)
    foreign._note, note = lease._note, foreign._note
    assert foreign._note != note
    assert there.release(foreign) is True, "the programs do not trust a note of another store"
    assert record_of(here, name).locked_by == lease.locked_by
    assert here.extend(lease, "2m") is lease


@pytest.mark.slow("starts a server of its own, twice")
def test_i2_an_emptied_cluster_that_counts_revisions_anew(open_url: Open, name: str) -> None:
    """The former holder's revision equals the new record's by chance. The former holder still writes nothing."""
    with private_server("etcd", EtcdServer) as server:
        former = open_url(server.url(prefix=PREFIX))
        lease = acquired(former, name)
        revision = pair_of(server, name)["mod_revision"]
        server.stop()
        shutil.rmtree(server.data)
        server.create_data()
        server.start()
        successor = open_url(server.url(prefix=PREFIX))
        new = acquired(successor, name)
        assert pair_of(server, name)["mod_revision"] == revision
        record = get(server, name)
        assert former.extend(lease, "2h") is None
        assert former.release(lease) is False
        assert get(server, name) == record
        assert successor.release(new) is True
