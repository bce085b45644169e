"""Connections: users, TLS, servers that are away, event loops that end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.nats import AsyncNatsLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import both_clients, both_clients_in_full
from tests.stores.nats.conftest import Open
from tests.support.availability import private_server
from tests.support.locks import acquired
from tests.support.nats import NatsServer
from tests.support.ports import LOOPBACK, free_port
from tests.support.tls import Certificates

USERS = """authorization { users: [
  {user: jobs, password: "s3cret-pw"},
  {user: reader, password: pw, permissions: {publish: ["$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*"]}},
  {user: worker, password: pw, permissions: {
    publish: ["$KV.jobs.>", "$JS.API.STREAM.*.KV_jobs", "$JS.API.STREAM.MSG.GET.KV_jobs"], subscribe: ["_INBOX.>"]}},
  {user: deaf, password: pw, permissions: {subscribe: "nothing"}},
  {user: documented, password: pw, permissions: {
    publish: ["$KV.jobs.>", "$JS.API.STREAM.*.KV_jobs", "$JS.API.STREAM.MSG.GET.KV_jobs"], subscribe: "_INBOX.>"}},
] }"""


@both_clients_in_full
def test_one_connection_for_all_tasks_or_threads(
    nats_server: NatsServer, bucket: str, open_url: Open, name: str
) -> None:
    with TcpProxy(nats_server.address) as proxy:
        provider = open_url(nats_server.url(bucket, via=proxy.address))
        for _ in range(3):
            assert provider.release(acquired(provider, name))
        assert proxy.connections == 1


def test_a_server_that_is_down_or_silent_leaves_time_for_the_next(
    nats_server: NatsServer, bucket: str, open_url: Open, name: str
) -> None:
    host, port = nats_server.address
    with TcpProxy(nats_server.address) as silent:
        silent.stall()
        places = f"{LOOPBACK}:{free_port()},{LOOPBACK}:{silent.address[1]},{host}:{port}"
        provider = open_url(f"nats://{places}/{bucket}", timeout="3s")
        assert provider.release(acquired(provider, name))


def test_the_error_names_the_wait_for_a_silent_server(nats_server: NatsServer, open_url: Open) -> None:
    """The exception of nats-py has no text."""
    with TcpProxy(nats_server.address) as silent:
        silent.stall()
        provider = open_url(nats_server.url("jobs", via=silent.address), timeout="1s")
        what = f":{silent.address[1]}: no reply in time: waited for a connection"
        with pytest.raises(ProviderUnreachable, match=what):
            provider.acquire(LockRequest("job", "1m"))


def test_i13_a_request_that_the_server_drops_is_sent_again_in_time(
    nats_server: NatsServer, bucket: str, open_url: Open, name: str
) -> None:
    """With one server in the URL, too."""
    with TcpProxy(nats_server.address) as proxy:
        provider = open_url(nats_server.url(bucket, via=proxy.address), timeout="2s")
        provider.record(name)
        proxy.silence(f'.{name}"', times=1)
        assert provider.record(name) is None


def test_the_error_names_the_servers_and_no_password(open_url: Open) -> None:
    provider = open_url(f"nats://me:s3cret-pw@{LOOPBACK}:{free_port()}", timeout="1s")
    with pytest.raises(ProviderUnreachable, match=f"{LOOPBACK}.*Connect call failed") as caught:
        provider.acquire(LockRequest("job", "1m"))
    assert "s3cret-pw" not in str(caught.value) + repr(provider)


@pytest.fixture(scope="module")
def with_users() -> Iterator[NatsServer]:
    with private_server("nats", lambda: NatsServer(settings=[USERS])) as server:
        yield server


@pytest.mark.slow("starts a server of its own")
def test_users_and_their_rights(with_users: NatsServer, open_url: Open, name: str) -> None:
    host, port = with_users.address

    def opened(user: str) -> str:
        return f"nats://{user}@{host}:{port}/jobs"

    provider = open_url(opened("jobs:s3cret-pw"))
    provider.create_schema()
    lease = acquired(provider, name)
    for user, what in (
        ("jobs:wrong-pw-1", "authorization violation"),
        ("wrong-token-1", "authorization violation"),
        ("reader:pw", "permissions violation for publish"),
        ("deaf:pw", "permissions violation for subscription"),
    ):
        other = open_url(opened(user))
        with pytest.raises(ProviderError, match=f"(?i){what}") as refused:
            other.acquire(LockRequest(f"{name}-2", "1m"))
        assert not isinstance(refused.value, ProviderUnreachable)
        assert "wrong-" not in str(refused.value) + repr(other)
    reader = open_url(opened("reader:pw"))
    assert reader.acquire(LockRequest(name, "1m")) is None, "a skip only reads"
    assert provider.release(lease)
    documented = open_url(opened("documented:pw"))
    assert documented.release(acquired(documented, name))
    assert [record.name for record in documented.records()] == [name]
    assert documented.prune(0) == 0, "its token is too young"


@pytest.mark.slow("starts a server of its own")
def test_the_rights_that_the_documentation_names_are_enough(with_users: NatsServer, open_url: Open, name: str) -> None:
    host, port = with_users.address
    provider = open_url(f"nats://worker:pw@{host}:{port}/jobs")
    provider.create_schema()
    assert provider.release(acquired(provider, name))
    assert name in [record.name for record in provider.records()]


@pytest.mark.slow("starts a server of its own")
def test_a_token_logs_in(open_url: Open, name: str) -> None:
    with private_server("nats", lambda: NatsServer(settings=['authorization { token: "t0ken/1" }'])) as server:
        host, port = server.address
        provider = open_url(f"nats://t0ken%2F1@{host}:{port}/jobs")
        provider.create_schema()
        assert provider.release(acquired(provider, name))


@both_clients
@pytest.mark.slow("starts a server of its own")
def test_tls_with_certificates_of_ones_own(open_url: Open, name: str, tmp_path: Path) -> None:
    own = Certificates(tmp_path)
    files = f'cert_file: "{own.server}", key_file: "{own.server_key}", ca_file: "{own.authority}", verify: true'
    with private_server("nats", lambda: NatsServer(settings=[f"tls {{ {files} }}"])) as server:
        options = f"ca={own.authority}&cert={own.client}&key={own.client_key}"
        provider = open_url(f"{server.url('jobs')}?{options}")
        provider.create_schema()
        assert provider.release(acquired(provider, name))
        for option, what in (
            ("tls=true", "CERTIFICATE_VERIFY_FAILED"),
            (f"ca={own.authority}", "(?i)certificate required|bad certificate|closed|EOF|lost|reset|pipe"),
        ):
            with pytest.raises(ProviderUnreachable, match=what):
                open_url(f"{server.url('jobs')}?{option}&timeout=2s").acquire(LockRequest(name, "1m"))


def test_a_url_with_tls_sends_no_password_to_a_server_without(nats_server: NatsServer, open_url: Open) -> None:
    with TcpProxy(nats_server.address) as proxy:
        proxy.hold("s3cret-pw")
        host, port = proxy.address
        with pytest.raises(ProviderUnreachable, match="the URL has TLS, and the server does not"):
            open_url(f"nats://me:s3cret-pw@{host}:{port}?tls=true").acquire(LockRequest("job", "1m"))
        assert proxy.bytes_to_server == 0


def test_a_loop_that_ends_closes_its_connections(nats_server: NatsServer, bucket: str, name: str) -> None:
    """asyncio warns of a transport that is not closed, and a warning is an error here."""
    provider = AsyncNatsLockProvider(nats_server.url(bucket))

    async def work() -> None:
        lease = await provider.acquire(LockRequest(name, "1m"))
        assert lease is not None
        assert await provider.release(lease)

    for _ in range(3):
        asyncio.run(work())
    gc.collect()
