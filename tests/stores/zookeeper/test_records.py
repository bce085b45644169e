"""The znodes, their versions and their time, and znodes that somebody else has written."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import pytest

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.cas import Read, Write
from shedlock_py.providers.zookeeper import ZooKeeperLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.zookeeper.conftest import Open
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of
from tests.support.zookeeper import ZooKeeperServer

PATH = "/records"


def test_a_record_is_a_persistent_znode_with_one_child(
    zookeeper_server: ZooKeeperServer, open_url: Open, name: str
) -> None:
    provider = open_url(zookeeper_server.url(path=PATH))
    lease = acquired(provider, f".{name}")
    with zookeeper_server.client() as client:
        data, stat = client.get(f"{PATH}/%2E{name}")
        fields = json.loads(data)
        assert (fields["locked_by"], fields["fencing_token"]) == (lease.locked_by, lease.fencing_token)
        assert client.get_children(f"{PATH}/%2E{name}") == [fields["made"]]
        assert stat.owner_session_id is None, "no session's end deletes it"
        provider.release(lease)
        assert json.loads(client.get(f"{PATH}/%2E{name}")[0])["free"] is True
    assert provider.records(".job")[0].name == f".{name}"


def test_round_trips_of_a_job(zookeeper_server: ZooKeeperServer, open_url: Open, name: str) -> None:
    """An acquire takes two (a read and a write), and one more for a name's first record. Each other operation takes
    one round trip. A read is two requests, which kazoo sends together."""
    with TcpProxy(zookeeper_server.address) as proxy:
        provider = open_url(zookeeper_server.url(via=proxy.address, path=PATH))
        provider.record("warm")
        with zookeeper_server.client() as client:
            before = client.get(f"{PATH}/.clock")[1].version
            lease = acquired(provider, name)
            assert provider.acquire(LockRequest(name, "1m")) is None
            assert provider.extend(lease, "2m") is lease
            assert provider.release(lease) is True
            assert client.get(f"{PATH}/.clock")[1].version == before, "the clock is read now and then"
            requests, zxid = client.get(f"{PATH}/{name}")[1].version, client.last_zxid
            assert requests == 4, "make, acquire, extend, release"
            for _ in range(3):
                provider.record(name)
            assert client.get(f"{PATH}/{name}")[1].version == 4
            client.sync(PATH)
            assert client.last_zxid == zxid, "a read writes nothing"


def test_i1_a_write_never_hits_a_znode_that_was_created_again(
    zookeeper_server: ZooKeeperServer, open_url: Open, name: str
) -> None:
    """ZooKeeper's own version is the same again: only the child tells the znodes apart."""
    provider, other = (open_url(zookeeper_server.url(path=PATH)) for _ in range(2))
    provider.release(acquired(provider, name))
    entry = provider._client.execute(Read(name), 5).value  # a replica reads the free record, and then is paused
    with zookeeper_server.client() as client:
        version = client.get(f"{PATH}/{name}")[1].version
        client.delete(f"{PATH}/{name}", recursive=True)
        lease = acquired(other, name)
        while client.get(f"{PATH}/{name}")[1].version < version:
            other.extend(lease, "1m")
        assert client.get(f"{PATH}/{name}")[1].version == version
    late = replace(entry.record, locked_by="the replica")
    assert provider._client.execute(Write(late, entry.version), 5).value is None
    assert record_of(provider, name).locked_by == lease.locked_by


def test_i10_a_lease_is_exact_to_milliseconds(zookeeper_server: ZooKeeperServer, open_url: Open, name: str) -> None:
    """An acquire may use the time of an earlier command. That adds its drift, 1 % of clock_error at most."""
    provider = open_url(zookeeper_server.url(path=PATH), clock_error="1s")
    longer: list[float] = []
    with zookeeper_server.client() as client:
        for number in range(20):
            acquired(provider, f"{name}-{number}", "1m")
            until = record_of(provider, f"{name}-{number}").lock_until.timestamp()
            longer.append(until - client.get(f"{PATH}/{name}-{number}")[1].mtime / 1000 - 61)
    # The lease counts from before the request, and mtime is when the leader had it.
    assert min(map(abs, longer)) < 0.03, "a busy machine delays some of the requests, but not all"


def test_a_znode_that_is_no_record_is_an_error_and_hides_no_other(
    zookeeper_server: ZooKeeperServer, open_url: Open, caplog: pytest.LogCaptureFixture
) -> None:
    provider = open_url(zookeeper_server.url(path="/odd"))
    acquired(provider, "good")
    with zookeeper_server.client() as client:
        client.create("/odd/text", b"someone else's")
        client.create("/odd/json", b'{"locked_by": "x"}')
    with pytest.raises(ProviderError, match="not a lock record"):
        provider.acquire(LockRequest("text", "1m"))
    assert [record.name for record in provider.records()] == ["good"]
    assert len(warnings_of(caplog)) == 2


def test_a_fork_and_a_close_need_a_new_session(zookeeper_server: ZooKeeperServer, name: str) -> None:
    """A release sends a write without a read. In a new session, even a refused write must learn the time."""
    provider = ZooKeeperLockProvider(zookeeper_server.url(path=PATH))
    with closing(provider):
        lease = acquired(provider, name)
        provider.force_release(name)
        provider.close()
        assert provider.release(lease) is False


def test_a_path_that_was_deleted_by_hand_stops_no_job(zookeeper_server: ZooKeeperServer, open_url: Open) -> None:
    provider = open_url(zookeeper_server.url(path="/deleted"))
    first = acquired(provider, "job")
    with zookeeper_server.client() as client:
        client.delete("/deleted", recursive=True)
    assert provider.release(first) is False
    assert (acquired(provider, "job").fencing_token or 0) > (first.fencing_token or 0)
    with zookeeper_server.client() as client:
        client.delete("/deleted", recursive=True)
    assert provider.records() == []
    acquired(provider, "another job")
