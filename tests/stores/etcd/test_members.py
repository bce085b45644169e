"""The choice of a member, and the errors if no member replies, or if something else replies."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from shedlock_py import LockRequest, ProviderUnreachable
from shedlock_py.providers.etcd.wire import EtcdError, reply_of
from shedlock_py.providers.kit import Failure
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import both_clients
from tests.stores.etcd.conftest import Open
from tests.support.availability import private_server
from tests.support.closing import close_before_requests
from tests.support.etcd import CuttableEtcdCluster, EtcdServer, EtcdTlsServer
from tests.support.held_replies import HeldReply
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until
from tests.support.ports import free_port
from tests.support.timing import Stopwatch
from tests.support.tls import Certificates


@both_clients
def test_a_member_that_is_down_costs_nothing_but_a_refused_connection(
    etcd_server: EtcdServer, open_url: Open, name: str
) -> None:
    host, port = etcd_server.address
    provider = open_url(f"etcd://127.0.0.1:{free_port()},{host}:{port}/members")
    with Stopwatch() as stopwatch:
        lease = acquired(provider, name)
        assert provider.extend(lease, "2m") is lease
        assert provider.release(lease) is True
    assert stopwatch.seconds < 4  # the time limit is 5


@both_clients
def test_i13_a_member_that_does_not_reply_leaves_time_for_the_next(
    etcd_server: EtcdServer, open_url: Open, name: str
) -> None:
    with TcpProxy(etcd_server.address) as silent:
        silent.stall()
        places = ",".join(f"{host}:{port}" for host, port in (silent.address, etcd_server.address))
        provider = open_url(f"etcd://{places}/members", timeout="3s")
        assert provider.release(acquired(provider, name)) is True
        silent.reset()
        assert provider.release(acquired(provider, name)) is True
        assert silent.bytes_to_server == 0, "requests go to the member that replied last"


@pytest.fixture(params=[b"<html>404 Not Found</html>", b'{"message": "404 Not Found"}', b'{"error": "404 Not Found"}'])
def web_server(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of an HTTP server other than etcd."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body: bytes = request.param
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_i5_an_http_server_that_is_no_etcd_is_an_outage(web_server: int, open_url: Open, name: str) -> None:
    with pytest.raises(ProviderUnreachable, match=r"HTTP status 404, and no reply of etcd: .*404 Not Found") as caught:
        open_url(f"etcd://127.0.0.1:{web_server}").acquire(LockRequest(name, "1m"))
    assert "JSON gateway" in str(caught.value.hint)


@pytest.mark.slow("starts a server of its own")
def test_i5_an_etcd_without_its_json_gateway(open_url: Open, name: str) -> None:
    class Closed(EtcdServer):
        def answers(self) -> bool:
            return self.pid is not None and self._listens()

        def version(self) -> tuple[str, str]:
            return "etcd", "3.5"  # no client can reach it

    with private_server("etcd", lambda: Closed(options=["--enable-grpc-gateway=false"])) as server:
        with pytest.raises(ProviderUnreachable, match="HTTP status 404, and no reply of etcd") as caught:
            open_url(server.url()).acquire(LockRequest(name, "1m"))
        assert "its JSON gateway must be on" in str(caught.value.hint)


@both_clients
@pytest.mark.slow("starts a server of its own")
def test_tls_with_certificates_of_ones_own(open_url: Open, name: str) -> None:
    with private_server("etcd", EtcdTlsServer) as server:
        files = f"ca={server.certificate}&cert={server.certificate}&key={server.key}"
        provider = open_url(f"{server.url()}?{files}")
        assert provider.release(acquired(provider, name)) is True
        for options, what in (
            ("tls=true", "CERTIFICATE_VERIFY_FAILED"),
            (f"ca={server.certificate}", "certificate required|bad certificate|disconnected|closed|EOF|reset|read"),
            ("tls=false", "disconnected|reset|ReadError|HTTP request to an HTTPS server"),
        ):
            with pytest.raises(ProviderUnreachable, match=f"(?i){what}"):
                open_url(f"{server.url()}?{options}&timeout=2s").acquire(LockRequest(name, "1m"))


@both_clients
@pytest.mark.slow("starts a server of its own")
@pytest.mark.parametrize("options", [("ca",), ("cert", "key")])
def test_certificates_that_are_replaced_are_read_again(
    open_url: Open, name: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The threads end, but a provider lives as long as its process."""
    old = Certificates(tmp_path)
    wrong = {"ca": old.authority, "cert": old.client, "key": old.client_key}
    with private_server("etcd", EtcdTlsServer) as server:
        right = {"ca": server.certificate, "cert": server.certificate, "key": server.key}
        files = {option: tmp_path / option for option in right}
        for option, file in files.items():
            shutil.copy((wrong if option in options else right)[option], file)
        query = "&".join(f"{option}={file}" for option, file in files.items())
        provider = open_url(f"{server.url()}?{query}")
        for _ in range(2):
            with pytest.raises(ProviderUnreachable):
                provider.acquire(LockRequest(name, "1m"))
        for option in options:
            shutil.copy(right[option], files[option])
        assert provider.release(acquired(provider, name)) is True


@both_clients
@pytest.mark.slow("starts a server of its own")
def test_certificates_that_are_replaced_disturb_no_request_that_is_under_way(
    open_url: Open, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = count_requests(monkeypatch, "/v3/kv/txn")
    held = HeldReply()
    with private_server("etcd", EtcdTlsServer) as server:
        ca = tmp_path / "ca.pem"
        shutil.copy(server.certificate, ca)
        query = f"ca={ca}&cert={server.certificate}&key={server.key}&timeout=20s"
        with TcpProxy(server.address, rewrite=held) as proxy, ThreadPoolExecutor(1) as other:
            provider = open_url(f"etcd://127.0.0.1:{proxy.address[1]}?{query}")
            lease = acquired(provider, name)
            held.hold_next()
            writes.clear()
            extending = other.submit(provider.extend, lease, "2m")
            assert held.has_come.wait(20)
            proxy.refuse()
            with pytest.raises(ProviderUnreachable):
                provider.record(name)
            proxy.accept()
            ca.write_text(ca.read_text() + "\n")
            assert record_of(provider, name).is_held  # on connections of another client
            held.let_go()
            assert extending.result() is lease
    assert len(writes) == 1, "the extension was sent once"


def count_requests(monkeypatch: pytest.MonkeyPatch, path: str) -> list[str]:
    """Return a list that collects the URLs of httpx's requests to ``path``."""
    found: list[str] = []
    send, async_send = httpx.Client.send, httpx.AsyncClient.send

    def noted(request: httpx.Request) -> httpx.Request:
        if request.url.path == path:
            found.append(str(request.url))
        return request

    monkeypatch.setattr(httpx.Client, "send", lambda self, request, **options: send(self, noted(request), **options))
    monkeypatch.setattr(
        httpx.AsyncClient, "send", lambda self, request, **options: async_send(self, noted(request), **options)
    )
    return found


@both_clients
def test_i5_a_provider_that_another_thread_closes(
    etcd_server: EtcdServer, open_url: Open, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_before_requests(monkeypatch)
    with pytest.raises(ProviderUnreachable, match="the client has been closed"):
        open_url(etcd_server.url()).acquire(LockRequest(name, "1m"))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("etcdserver: too many requests", Failure.NOT_DONE),
        ("etcdserver: mvcc: database space exceeded", Failure.REFUSED),
    ],
)
def test_throttling_has_the_code_of_a_store_without_space(message: str, expected: Failure) -> None:
    with pytest.raises(EtcdError) as caught:
        reply_of(429, json.dumps({"error": message, "code": 8, "message": message}))
    assert caught.value.failure is expected


@pytest.mark.slow("starts two servers of its own")
def test_a_learner_is_left_for_a_member_that_votes(open_url: Open, name: str) -> None:
    """A learner replies at once, but with an error."""
    ports = free_port(), free_port()
    first = {"first": ports[0]}
    with private_server("etcd", lambda: EtcdServer("first", first)) as voter:
        voter.ask("/v3/cluster/member/add", peerURLs=[f"http://127.0.0.1:{ports[1]}"], isLearner=True)
        peers, joins = {**first, "learner": ports[1]}, ["--initial-cluster-state=existing"]
        with private_server("etcd", lambda: EtcdServer("learner", peers, joins)) as learner:
            places = ",".join(f"127.0.0.1:{member.address[1]}" for member in (learner, voter))
            provider = open_url(f"etcd://{places}")
            with pytest.raises(ProviderUnreachable, match="learner"):
                provider.acquire(LockRequest(name, "1m"))
            assert provider.release(acquired(provider, name)) is True


@pytest.mark.slow("starts a server of its own")
def test_i5_a_command_that_no_quorum_confirms_is_no_skip(open_url: Open, name: str) -> None:
    """A single member of three has no leader, and neither reads nor writes."""
    peers = {"here": free_port(), "gone": free_port(), "gone-too": free_port()}
    with private_server("etcd", lambda: EtcdServer("here", peers)) as server, pytest.raises(ProviderUnreachable):
        open_url(server.url(), timeout="1s").acquire(LockRequest(name, "1m"))


@pytest.mark.slow("starts three servers of its own")
def test_i5_a_leader_that_is_cut_off_tells_nothing_old_and_the_others_go_on(open_url: Open, name: str) -> None:
    """Its clients can still reach it. Its last knowledge of the lock does not count."""
    with private_server("etcd", CuttableEtcdCluster) as cluster:
        leader = cluster.leader
        rest = [member for member in cluster.members if member is not leader]
        places = ",".join(f"127.0.0.1:{member.address[1]}" for member in (leader, *rest))
        only, every = open_url(leader.url(), timeout="1s"), open_url(f"etcd://{places}", timeout="3s")
        held = reached(only.take_over, LockRequest(name, "1m"))
        cluster.cut_off(leader)
        later = reached(every.take_over, LockRequest(name, "1m"))
        for ask in (partial(only.record, name), partial(only.acquire, LockRequest(name, "1m")), only.records):
            with pytest.raises(ProviderUnreachable):
                ask()
        wait_until(lambda: not leader.has_leader(), what="it does not lead, and hears of no other leader")
        cluster.heal()
        assert reached(only.record, name).locked_by == later.locked_by != held.locked_by
        assert later.fencing_token > held.fencing_token


def reached(operation: Callable[..., Any], *arguments: object) -> Any:
    """Return the operation's result once a majority carries it out."""
    results: list[Any] = []

    def is_carried_out() -> bool:
        with suppress(ProviderUnreachable):
            results.append(operation(*arguments))
        return bool(results)

    wait_until(is_carried_out, timeout=60, what="a majority")
    return results[0]


@both_clients
def test_i5_the_message_names_each_member_that_cannot_be_reached_and_no_password(open_url: Open, name: str) -> None:
    ports = free_port(), free_port()
    provider = open_url(f"etcd://me:s3cret-pw@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
    with pytest.raises(ProviderUnreachable) as caught:
        provider.acquire(LockRequest(name, "1m"))
    for port in ports:
        assert re.search(rf"http://127\.0\.0\.1:{port}: .*(refused|failed)", str(caught.value)), caught.value
    assert "members that run" in str(caught.value.hint)
    assert "s3cret-pw" not in f"{caught.value} {caught.value!r} {provider!r}"
