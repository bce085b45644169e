"""Servers that are away, silent, read-only or have another leader, and sessions that end."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.zookeeper.conftest import Open
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until
from tests.support.ports import LOOPBACK, free_port
from tests.support.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

THREE_SERVERS = pytest.mark.slow("starts three servers")


@contextmanager
def dropping_packets() -> Iterator[str]:
    """A place that replies to no connect: its queue is full, so Linux drops the packets."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind((LOOPBACK, 0))
        listener.listen(0)
        for _ in range(3):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"{LOOPBACK}:{listener.getsockname()[1]}"


def test_a_server_that_is_down_is_an_error_at_once(open_url: Open, name: str) -> None:
    provider = open_url(f"zookeeper://user:s3cret-pw@127.0.0.1:{free_port()}", timeout="60s")
    began = time.monotonic()
    with pytest.raises(ProviderUnreachable, match="Connection refused — name the client addresses") as raised:
        provider.acquire(LockRequest(name, "1m"))
    assert time.monotonic() - began < 50
    assert "s3cret-pw" not in str(raised.value)


def test_i13_a_silent_server_leaves_time_for_another(
    zookeeper_server: ZooKeeperServer, open_url: Open, name: str
) -> None:
    """A connection breaks in silence. Kazoo notices it, and connects to another server in the same session."""
    with TcpProxy(zookeeper_server.address) as first, TcpProxy(zookeeper_server.address) as second:
        provider = open_url(f"zookeeper://127.0.0.1:{first.address[1]},127.0.0.1:{second.address[1]}/silent")
        lease = acquired(provider, name, "1h")
        (first if first.open_connections else second).stall()
        extended: list[Lease] = []

        def is_extended() -> bool:
            with suppress(ProviderUnreachable):
                extended.append(lease) if provider.extend(lease, "2h") else None
            return bool(extended)

        wait_until(is_extended, timeout=60, what="an extension through the other proxy")


@pytest.mark.slow("kazoo waits four seconds for a server that drops packets")
def test_i13_a_server_that_drops_packets_leaves_time_for_another(
    zookeeper_server: ZooKeeperServer, open_url: Open, name: str
) -> None:
    host, port = zookeeper_server.address
    with dropping_packets() as dropping:
        for number in range(8):  # kazoo begins with one of the three by chance
            provider = open_url(f"zookeeper://{dropping},{host}:{port},{host}:{port}", timeout="15s")
            acquired(provider, f"{name}-{number}")


def test_i12_an_acquire_that_is_stuck_is_undone_after_its_request(
    zookeeper_server: ZooKeeperServer, open_url: Open, name: str
) -> None:
    """The undo is sent in the same session, so it cannot overtake the request."""
    with TcpProxy(zookeeper_server.address) as proxy:
        other = open_url(zookeeper_server.url(path="/stuck"))
        other.release(acquired(other, name))
        late = open_url(zookeeper_server.url(via=proxy.address, path="/stuck"), timeout="1s")
        late.record(name)
        proxy.stall()
        with pytest.raises(ProviderUnreachable):
            late.acquire(LockRequest(name, "1h"))
        proxy.resume()
        wait_until(lambda: is_free(other, name), what="a free lock")


def is_free(provider: LockProvider, name: str) -> bool:
    return not record_of(provider, name).is_held


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble


@THREE_SERVERS
def test_i1_leases_outlive_the_leader(ensemble: ZooKeeperEnsemble, open_url: Open, name: str) -> None:
    provider, other = (open_url(ensemble.url("/failover"), timeout="30s") for _ in range(2))
    lease = acquired(provider, name)
    leader = ensemble.leader
    leader.kill()
    assert other.acquire(LockRequest(name, "1m")) is None
    assert provider.extend(lease, "2m") is lease
    assert provider.release(lease) is True
    assert acquired(other, name).fencing_token > (lease.fencing_token or 0)  # type: ignore[operator]  # an int
    leader.start()
    ensemble.wait_for_leader()


@THREE_SERVERS
def test_i5_a_server_without_a_majority_grants_nothing(ensemble: ZooKeeperEnsemble, open_url: Open, name: str) -> None:
    """It may serve readers, but only those that accept old data."""
    rest = [server for server in ensemble.members if server is not ensemble.leader]
    provider = open_url(rest[0].url(path="/failover"), timeout="2s")
    lease = acquired(provider, name)
    for server in ensemble.members:
        if server is not rest[0]:
            server.kill()
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    with pytest.raises(ProviderUnreachable):
        provider.release(lease)
    for server in ensemble.members:
        server.start()
    ensemble.wait_for_leader()
    wait_until(lambda: released(provider, lease), timeout=60, what="a release")


def released(provider: LockProvider, lease: Lease) -> bool:
    with suppress(ProviderUnreachable):
        return provider.release(lease)
    return False


@pytest.mark.slow("waits for the end of a session")
def test_a_session_that_ended_takes_no_lease_with_it(
    zookeeper_server: ZooKeeperServer, open_url: Open, name: str
) -> None:
    with TcpProxy(zookeeper_server.address) as proxy:
        provider = open_url(zookeeper_server.url(via=proxy.address, path="/expired"))
        lease = acquired(provider, name, "1h")
        sessions = zookeeper_server.sessions()
        proxy.refuse()
        proxy.cut()
        wait_until(lambda: zookeeper_server.sessions() < sessions, what="the end of the session")
        proxy.accept()
        wait_until(lambda: provider.extend(lease, "2h") is lease, what="an extension in a new session")
