import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shedlock_py.testing.proxy import TcpProxy
from tests.support import servers
from tests.support.polling import wait_until
from tests.support.ports import bind_free_port
from tests.support.processes import is_running
from tests.support.redis import (
    RedisCluster,
    RedisClusterNode,
    RedisEndpoint,
    RedisProcess,
    RedisSentinel,
    RedisServer,
    RedisTlsServer,
)
from tests.support.servers import ServerError, remove_leftovers

ROOT = Path(__file__).parents[2]
ONCE = Retry(NoBackoff(), 0)  # redis-py tries again for seconds


@pytest.fixture
def private() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def durable() -> Iterator[RedisServer]:
    with RedisServer(appendonly=True) as server:
        yield server


def put(server: RedisServer) -> None:
    with server.client() as client:
        client.set("name", "value")


def names(server: RedisServer) -> list[bytes]:
    with server.client() as client:
        return [*client.scan_iter()]


def test_redis_answers(redis_server: RedisEndpoint) -> None:
    with redis_server.client() as client:
        assert client.ping()


def test_a_url_has_a_database_and_may_lead_through_a_proxy(private: RedisServer) -> None:
    put(private)
    with TcpProxy(private.address) as proxy:
        for db, count in ((0, 1), (1, 0)):
            with redis.Redis.from_url(private.url(db, via=proxy.address)) as client:
                assert client.dbsize() == count
        assert proxy.connections == 2


def test_the_unix_socket_leads_to_the_same_server(private: RedisServer) -> None:
    put(private)
    with redis.Redis.from_url(private.unix_url()) as client:
        assert client.get("name") == b"value"


def test_a_password_is_in_the_urls_and_needed() -> None:
    with RedisServer(config={"requirepass": "a/b@c"}) as server:
        for url in (server.url(), server.unix_url()):
            with redis.Redis.from_url(url) as client:
                assert client.ping()
        host, port = server.address
        with redis.Redis(host, port, retry=ONCE) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_tls_is_verified() -> None:
    with RedisTlsServer() as server:
        with redis.Redis.from_url(server.url()) as client:
            assert client.ping()
        untrusting = redis.Redis.from_url(server.url().partition("?")[0], retry=ONCE)
        with untrusting as client, pytest.raises(redis.ConnectionError, match="certificate verify failed"):
            client.ping()


def test_a_replica_follows_its_master(private: RedisServer) -> None:
    host, port = private.address
    put(private)
    with RedisServer(config={"replicaof": f"{host} {port}"}) as replica:
        wait_until(lambda: names(replica) == [b"name"], what="the replica has the master's data")


def test_a_restart_keeps_the_address_and_no_data(private: RedisServer) -> None:
    address = private.address
    put(private)
    private.restart()
    assert (private.address, names(private)) == (address, [])


def test_a_killed_server_has_forgotten_everything(private: RedisServer) -> None:
    put(private)
    private.kill()
    assert private.pid is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(private.address, timeout=5)
    private.start()
    assert names(private) == []


def test_a_killed_server_with_a_file_has_forgotten_nothing(durable: RedisServer) -> None:
    put(durable)
    durable.kill()
    durable.start()
    assert names(durable) == [b"name"]


def test_a_stopped_server_with_a_file_has_forgotten_nothing(durable: RedisServer) -> None:
    put(durable)
    durable.restart()
    assert names(durable) == [b"name"]


def test_a_paused_server_says_nothing_until_it_is_resumed(private: RedisServer) -> None:
    counted: list[object] = []
    with private.client() as client:
        client.ping()
        private.pause()
        try:
            asking = threading.Thread(target=lambda: counted.append(client.dbsize()))
            asking.start()
            asking.join(0.3)
            assert asking.is_alive()
        finally:
            private.resume()
        asking.join(10)
    assert counted == [0]


def test_a_paused_server_can_be_stopped(private: RedisServer) -> None:
    private.pause()
    private.stop()
    assert private.pid is None


def test_a_closed_server_leaves_nothing(private: RedisServer) -> None:
    private.close()
    assert (private.pid, private.directory.exists()) == (None, False)


def test_a_server_has_no_address_before_it_has_a_port() -> None:
    with closing(RedisServer()) as server, pytest.raises(ServerError, match="no address"):
        server.url()


def test_a_taken_port_is_left_for_another_one(private: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with bind_free_port() as reserved:
        free = reserved.getsockname()[1]
    ports = iter([private.address[1], free])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    with RedisServer() as second:
        assert second.address[1] == free


def test_a_taken_bus_port_is_left_for_another_one(private: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with bind_free_port() as reserved:
        free = reserved.getsockname()[1]
    bus_ports = iter([private.address[1], free])
    monkeypatch.setattr("tests.support.redis.free_port", lambda: next(bus_ports))
    with RedisClusterNode() as node:
        assert node.bus_port(node.address[1]) == free


def test_a_server_that_does_not_start_says_why(private: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "PORT_ATTEMPTS", 1)
    monkeypatch.setattr(servers, "free_port", lambda: private.address[1])
    with closing(RedisServer()) as second, pytest.raises(ServerError, match=r"(?i)address already in use"):
        second.start()


def test_a_setting_that_redis_does_not_know_is_named() -> None:
    server = RedisServer(config={"no-such-setting": "1"})
    with closing(server), pytest.raises(ServerError, match="no-such-setting"):
        server.start()


@pytest.mark.parametrize("kind", [RedisServer, RedisTlsServer, RedisCluster])
def test_a_missing_program_is_named(kind: type[RedisServer | RedisCluster], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedisProcess, "programs", ("no-such-program",))
    monkeypatch.setattr(RedisTlsServer, "programs", ("no-such-program",))
    with pytest.raises(ServerError, match="not installed: no-such-program"):
        kind()


def test_no_server_outlives_a_killed_test_run() -> None:
    script = """
import time
from tests.support.redis import RedisServer
server = RedisServer()
server.start()
print(server.directory, server.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        directory, pid = run.stdout.readline().split()
        assert is_running(int(pid))
        run.kill()
    wait_until(lambda: not is_running(int(pid)), what="the server gone with the run that started it")
    remove_leftovers(Path(directory))


def test_nodes_know_nothing_of_each_other(redis_nodes: list[RedisServer]) -> None:
    assert len({node.address for node in redis_nodes}) == 5
    before = [names(node) for node in redis_nodes[1:]]
    put(redis_nodes[0])
    assert [names(node) for node in redis_nodes[1:]] == before
    redis_nodes[0].restart()


def test_a_cluster_answers_on_every_node(redis_cluster: RedisCluster) -> None:
    keys = [f"services-{n}" for n in range(20)]
    with redis_cluster.client() as client:
        for key in keys:
            client.set(key, "value")
    assert all(names(node) for node in redis_cluster.nodes)
    with redis_cluster.client() as client:
        assert [client.delete(key) for key in keys] == [1] * 20


def test_a_cluster_takes_a_killed_node_back(redis_cluster: RedisCluster) -> None:
    node = redis_cluster.nodes[0]
    node.kill()
    node.start()
    redis_cluster.wait()
    with redis_cluster.client() as client:
        for n in range(20):
            assert client.get(f"services-{n}") is None


def test_a_sentinel_finds_the_master(redis_sentinel: RedisSentinel) -> None:
    assert redis_sentinel.master_address() == redis_sentinel.master.address


def test_a_sentinel_puts_a_replica_in_the_place_of_a_dead_master(private: RedisServer) -> None:
    host, port = private.address
    with RedisServer(config={"replicaof": f"{host} {port}"}) as replica:
        with replica.client() as client:
            wait_until(lambda: client.info()["master_link_status"] == "up", what="the replica in step")
        with RedisSentinel(private) as sentinel:
            with sentinel.client() as client:
                wait_until(lambda: client.sentinel_slaves(sentinel.master_name), what="the replica known")
            private.kill()
            wait_until(lambda: sentinel.master_address() == replica.address, timeout=30, what="the failover")
