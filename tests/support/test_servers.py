"""The test servers can be stopped, killed and paused, leave nothing behind, and say why they are missing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest
from pymongo import WriteConcern
from sqlalchemy import text

from tests.support import server_process
from tests.support.availability import database_server, private_server, redis_endpoint
from tests.support.consul import ConsulServer
from tests.support.database import ExternalServer
from tests.support.fake_kubernetes import LEASES
from tests.support.kubernetes import ApiServer, FakeApiServer, KubernetesServer, kubernetes_server
from tests.support.mongodb import PrivateMongoServer
from tests.support.polling import wait_until
from tests.support.ports import reserve_port
from tests.support.processes import is_running
from tests.support.redis import ExternalRedis, RedisCluster, RedisProcess, RedisServer, RedisTlsServer
from tests.support.server_process import ServerError, remove_leftovers
from tests.support.servers import MariaDbServer, PostgresServer, PrivateServer

ROOT = Path(__file__).parents[2]
ROUNDS = 3
"""Rounds of writes and kill -9. A server that forgets data forgets some in nearly every round."""


class Data:
    """A row or a key on a server, and a check for it."""

    def __init__(self, server: Any) -> None:
        self.server = server
        if isinstance(server, PrivateServer):
            server.drop_database("scratch")
            server.create_database("scratch")
            with server.connect("scratch") as connection:
                connection.execute(text("CREATE TABLE t (n INTEGER)"))
                connection.execute(text("INSERT INTO t VALUES (1)"))
        elif isinstance(server, KubernetesServer):
            server.delete("scratch")
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "name"}}
            server.ask("POST", LEASES.format("scratch"), lease)
        else:
            with server.client() as client:
                client.set("name", "value")

    def count(self) -> int:
        if isinstance(self.server, KubernetesServer):
            return len(self.server.ask("GET", LEASES.format("scratch"))["items"])
        if isinstance(self.server, PrivateServer):
            with self.server.connect("scratch") as connection:
                return int(connection.execute(text("SELECT count(*) FROM t")).scalar_one())
        with self.server.client() as client:
            return int(client.exists("name"))


# Tests of SQL servers stop and start the session's servers: a private server for each test would take long.
@pytest.fixture(
    params=[
        *(
            pytest.param(name, marks=pytest.mark.not_quick("stops a server"))
            for name in ("postgres", "redis", "kubernetes")
        ),
        *(pytest.param(name, marks=pytest.mark.slow("as on PostgreSQL")) for name in ("mariadb", "mysql")),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "redis":
        with RedisServer(appendonly=True) as server:
            yield server
        return
    found = request.getfixturevalue(f"{request.param}_server")
    if not isinstance(found, PrivateServer | KubernetesServer):
        pytest.skip("the environment names a server that the tests do not run")
    yield found
    found.start()


@pytest.fixture
def data(server: Any) -> Data:
    return Data(server)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_it_leaves_no_process_and_comes_back_with_its_data(server: Any, data: Data, how: str) -> None:
    address = server.address
    getattr(server, how)()
    assert server.pid is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
    server.start()
    assert (server.address, data.count()) == (address, 1)


@pytest.mark.slow("kills a server three times")
def test_mongodb_keeps_what_it_has_confirmed_for_a_majority() -> None:
    """The faults rely on it: a server that forgets a lease grants another lease, which MongoDB would not do."""
    with private_server("mongodb", PrivateMongoServer) as server, server.connect() as client:
        confirmed = client["scratch"].get_collection("t", write_concern=WriteConcern("majority"))
        for number in range(1, ROUNDS + 1):
            confirmed.find_one_and_update({"_id": number}, {"$set": {"n": 1}}, upsert=True)
            confirmed.update_one({"_id": number}, {"$set": {"n": 2}})
            server.kill()
            server.start()
            assert [document["n"] for document in confirmed.find()] == [2] * number


def test_a_paused_server_is_silent_until_it_is_resumed(server: Any, data: Data) -> None:
    counted: list[int] = []
    server.pause()
    try:
        counting = threading.Thread(target=lambda: counted.append(data.count()))
        counting.start()
        counting.join(0.3)
        assert counting.is_alive()
    finally:
        server.resume()
    counting.join(10)
    assert counted == [1]


def test_a_paused_server_can_be_stopped(server: Any) -> None:
    server.pause()
    server.stop()
    assert server.pid is None


# Starts and ends


def test_a_stopped_server_keeps_its_port(server: Any) -> None:
    """Otherwise another test process could take the port and reply to the clients of this server."""
    server.stop()
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(server.address)
    server.start()
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(server.address)


def test_a_server_that_does_not_start_says_why(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "free_port", lambda: server.address[1])
    with closing(type(server)()) as second, pytest.raises(ServerError, match=r"(?i)address already in use"):
        second.start()


@pytest.mark.parametrize("kind", [RedisServer, RedisTlsServer, RedisCluster])
def test_a_missing_program_is_named(kind: type[RedisServer | RedisCluster], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEDLOCK_TEST_REDIS", "installed")
    monkeypatch.setattr(RedisProcess, "programs", ("no-such-program",))
    with pytest.raises(ServerError, match="not installed: no-such-program"):
        kind()


@pytest.mark.not_quick("kills a server")
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("servers", "PostgresServer"),
        *(
            pytest.param("servers", name, marks=pytest.mark.slow("as on PostgreSQL"))
            for name in ("MariaDbServer", "MySqlServer")
        ),
        ("redis", "RedisServer"),
    ],
)
def test_no_server_outlives_a_killed_test_run(module: str, name: str) -> None:
    script = f"""
import time
from tests.support.{module} import {name}
server = {name}()
server.start()
print(server.directory, server.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        directory, pid = run.stdout.readline().split()
        assert is_running(int(pid))
        run.kill()
    wait_until(lambda: not is_running(int(pid)), what=f"{name} gone with the run that started it")
    remove_leftovers(Path(directory))


# Missing servers


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    for product in ("POSTGRES", "MARIADB", "MYSQL", "REDIS"):
        monkeypatch.delenv(f"SHEDLOCK_TEST_{product}_URL", raising=False)
        monkeypatch.delenv(f"SHEDLOCK_TEST_{product}", raising=False)


def endpoint(product: Any) -> AbstractContextManager[Any]:
    return redis_endpoint() if product == "redis" else database_server(product)


@pytest.mark.usefixtures("no_environment")
class TestAvailability:
    @pytest.mark.parametrize("in_ci", [False, True])
    @pytest.mark.parametrize("product", ["postgres", "mysql", "redis"])
    def test_a_missing_server_skips_here_and_fails_in_ci(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, product: str, in_ci: bool
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        if in_ci:
            monkeypatch.setenv("CI", "true")
        outcome = pytest.fail.Exception if in_ci else pytest.skip.Exception
        with pytest.raises(outcome, match=rf"{product}: \w+ \d+ is not fetched yet; run: make servers$"):
            endpoint(product).__enter__()

    @pytest.mark.parametrize(
        ("product", "kind", "outcome", "target"),
        [
            ("consul", ConsulServer, pytest.skip.Exception, "servers-all"),
            ("kubernetes", ApiServer, pytest.fail.Exception, "servers-full"),
        ],
    )
    def test_ci_does_without_what_only_servers_all_brings(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, product: str, kind: Any, outcome: Any, target: str
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setenv("CI", "true")
        with pytest.raises(outcome, match=rf"{product}: .* is not fetched yet; run: make {target}$"):
            private_server(product, kind).__enter__()

    def test_the_environment_chooses_the_fake_or_the_real_api_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SHEDLOCK_TEST_KUBERNETES", raising=False)
        with closing(kubernetes_server()) as server:
            assert isinstance(server, FakeApiServer)
        monkeypatch.setenv("SHEDLOCK_TEST_KUBERNETES", "1")
        monkeypatch.setattr(ApiServer, "programs", ("no-such-program",))
        with pytest.raises(ServerError, match="Kubernetes API server 1"):
            kubernetes_server()

    def test_an_installed_release_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHEDLOCK_TEST_REDIS", "installed")
        monkeypatch.setattr(RedisServer, "programs", ("no-such-program",))
        message = "redis: not installed: no-such-program; run: make servers-all"
        with pytest.raises(pytest.skip.Exception, match=message):
            endpoint("redis").__enter__()

    def test_a_release_that_nobody_knows_is_a_mistake(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHEDLOCK_TEST_REDIS", "6")
        with pytest.raises(ValueError, match="SHEDLOCK_TEST_REDIS=6: choose one of 8, valkey, installed"):
            endpoint("redis").__enter__()

    @pytest.mark.parametrize("product", ["postgres", "mysql", "redis"])
    def test_a_url_without_a_server_is_missing_too(self, monkeypatch: pytest.MonkeyPatch, product: str) -> None:
        with reserve_port() as nobody:
            dialect = "postgresql" if product == "postgres" else product
            url = f"{dialect}://u:s3cret-pw@127.0.0.1:{nobody.getsockname()[1]}/0"
            monkeypatch.setenv(f"SHEDLOCK_TEST_{product.upper()}_URL", url)
            with pytest.raises(pytest.skip.Exception, match="docker compose") as raised, endpoint(product):
                pass
        assert "s3cret-pw" not in str(raised.value)

    @pytest.mark.not_quick("starts two servers")
    def test_a_url_names_the_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with PostgresServer() as server, RedisServer(config={"requirepass": "s3cret-pw"}) as other:
            monkeypatch.setenv("SHEDLOCK_TEST_POSTGRES_URL", server.url("postgresql"))
            monkeypatch.setenv("SHEDLOCK_TEST_REDIS_URL", other.url(2))
            with database_server("postgres") as external, redis_endpoint() as external_redis:
                assert isinstance(external, ExternalServer)
                assert isinstance(external_redis, ExternalRedis)
                assert (external.address, external_redis.address) == (server.address, other.address)
                via = ("localhost", 1)
                url = external.url("postgresql+asyncpg", "other", via=via)
                assert url == "postgresql+asyncpg://shedlock:s3cret-pw@localhost:1/other"
                assert external_redis.url(3, via=via) == "redis://:s3cret-pw@localhost:1/3"
                for found in (external, external_redis):
                    with pytest.raises(pytest.skip.Exception, match="SHEDLOCK_TEST_"):
                        found.pause()


@pytest.mark.slow("starts pytest with two processes")
@pytest.mark.not_quick("starts pytest")
def test_the_summary_has_one_line_for_each_missing_server(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom tests.support import availability\n\n\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(availability)\n\n\n"
        "@pytest.fixture(scope='session', params=['a', 'b'])\n"
        "def server(request):\n    availability.missing(request.param, 'make servers')\n"
    )
    for name in ("test_one", "test_two"):
        (tmp_path / f"{name}.py").write_text("def test_it(server): ...\n\n\ndef test_more(server): ...\n")
    command = [sys.executable, "-m", "pytest", "-n2", "-ra", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CI": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("SKIPPED"))
    assert [(line.split()[1], line.partition(": ")[2]) for line in lines] == [
        ("[4]", "a; run: make servers"),
        ("[4]", "b; run: make servers"),
    ]


@pytest.mark.slow("starts a server three times")
@pytest.mark.parametrize("cache", ["only_root_can_enter", "cannot_be_written"])
def test_a_server_starts_without_the_cache_of_data_directories(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / cache
    place.mkdir(mode=0o700) if cache == "only_root_can_enter" else place.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    for _ in range(2):  # the first run fills the cache if it can
        with private_server("mariadb", MariaDbServer) as server:
            assert server.version()[0] == "MariaDB"
