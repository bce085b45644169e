"""Users with passwords. A login's token may end at any moment without notice."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator

import httpx
import pytest

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.cas import Read
from shedlock_py.providers.etcd.etcd_clients import Exchange
from shedlock_py.providers.etcd.urls import Place
from tests.cli.harness import run
from tests.stores.clients import both_clients
from tests.stores.etcd.conftest import Open
from tests.support.availability import private_server
from tests.support.etcd import EtcdServer
from tests.support.locks import acquired

PREFIX = "/app/"


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    """A server with a user who may use the page's keys, and no other keys."""
    with private_server("etcd", EtcdServer) as server:
        server.ask("/v3/auth/user/add", name="root", password="root")
        server.ask("/v3/auth/user/add", name="jobs", password="s3cret-pw")
        server.ask("/v3/auth/role/add", name="root")
        server.ask("/v3/auth/role/add", name="locks")
        first, last = (b64encode(key.encode()).decode() for key in (PREFIX, "/app0"))
        permission = {"permType": "READWRITE", "key": first, "range_end": last}
        server.ask("/v3/auth/role/grant", name="locks", perm=permission)
        server.ask("/v3/auth/user/grant", user="root", role="root")
        server.ask("/v3/auth/user/grant", user="jobs", role="locks")
        server.ask("/v3/auth/enable")
        yield server


def place(server: EtcdServer, user: str = "jobs:s3cret-pw@", prefix: str = PREFIX) -> str:
    return server.url(prefix=prefix).replace("://", f"://{user}")


def as_root(server: EtcdServer) -> None:
    server.headers = {}
    server.headers = {"Authorization": server.ask("/v3/auth/authenticate", name="root", password="root")["token"]}


@both_clients
def test_a_login_that_ends_is_repeated(server: EtcdServer, open_url: Open, name: str) -> None:
    provider = open_url(place(server))
    lease = acquired(provider, name)
    server.kill()  # etcd keeps tokens in memory
    server.start()
    assert provider.extend(lease, "2m") is lease
    as_root(server)
    server.ask("/v3/auth/user/add", name=f"new-{name}", password="x")  # this makes all tokens belong to an old revision
    assert provider.extend(lease, "2m") is lease
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert provider.release(lease) is True


def test_a_member_that_does_not_know_a_new_login_yet_is_passed_over() -> None:
    """It lags behind the member that made the token. The test goes step by step: real clusters are seldom so slow."""
    exchange = Exchange(Place.from_url("etcd://jobs:s3cret-pw@one:2379,two:2379/app"))
    program = exchange.of(Read("job"))
    asked = [next(program)]
    old = {"error": "etcdserver: invalid auth token", "code": 16}
    date = {"Date": "Sun, 29 Nov 2026 12:00:00 GMT"}
    new = {"header": {}, "token": "new"}
    for status, reply in ((200, new), (401, old), (200, new), (401, old)):
        asked.append(program.send(httpx.Response(status, json=reply, headers=date)))
    with pytest.raises(StopIteration) as done:
        program.send(httpx.Response(200, json={"header": {"revision": "7"}}, headers=date))
    assert done.value.value.value is None, "there is no such record"
    hosts = [httpx.URL(request.url).host for request in asked]
    assert (hosts, asked[-1].headers) == (["one", "one", "one", "one", "two"], {"Authorization": "new"})


@pytest.mark.parametrize(
    ("user", "what"),
    [
        ("jobs:wrong-pw@", "invalid user ID or password"),
        ("nobody:pw@", "invalid user ID or password"),
        ("", "user name is empty"),
    ],
)
def test_i5_a_wrong_password_is_said(server: EtcdServer, open_url: Open, name: str, user: str, what: str) -> None:
    with pytest.raises(ProviderError, match=what) as caught:
        open_url(place(server, user)).acquire(LockRequest(name, "1m"))
    assert "wrong-pw" not in str(caught.value)


def test_i5_keys_that_the_user_may_not_use(server: EtcdServer, open_url: Open, name: str) -> None:
    with pytest.raises(ProviderError, match="permission denied"):
        open_url(place(server, prefix="/other/")).acquire(LockRequest(name, "1m"))


def test_i5_a_login_where_there_are_no_users_is_refused(etcd_server: EtcdServer, open_url: Open, name: str) -> None:
    with pytest.raises(ProviderError, match="authentication is not enabled"):
        open_url(place(etcd_server)).acquire(LockRequest(name, "1m"))


def test_doctor_works_for_a_user_who_may_use_the_keys_only(server: EtcdServer) -> None:
    done = run("doctor", store=place(server))
    assert done.exit_code == 0, done.stdout
    assert "✓ members: 1: " in done.stdout
    assert "s3cret-pw" not in done.stdout
