"""Redis for the tests: a server, a cluster of three, a sentinel.

A server without an append-only file forgets everything when it is stopped or killed, like a Redis that is used as a
cache.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any, ClassVar, Self
from urllib.parse import quote, urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.database import Address, ExternalLife, Server
from tests.support.polling import wait_until
from tests.support.ports import LOOPBACK, free_port
from tests.support.releases import Fetched, Installed, Release
from tests.support.server_process import ServerProcess

SLOTS = 16384
CLUSTER_TIMEOUT = 30.0


class RedisEndpoint(Server):
    @property
    @abstractmethod
    def _url(self) -> str: ...

    def url(self, db: int | None = None, *, via: Address | None = None) -> str:
        """Return a URL with password; `via` is the address of a proxy."""
        scheme, netloc, path, query, _ = urlsplit(self._url)
        if via is not None:
            user, at, _ = netloc.rpartition("@")
            netloc = f"{user}{at}{via[0]}:{via[1]}"
        return urlunsplit((scheme, netloc, path if db is None else f"/{db}", query, ""))

    def version(self) -> tuple[str, str]:
        with self.client() as client:
            info = client.info("server")
        if info.get("server_name") == "valkey":  # its `redis_version` is only the Redis that it is compatible with
            return "Valkey", info["valkey_version"]
        return "Redis", info["redis_version"]

    @contextmanager
    def client(self, db: int | None = None) -> Iterator[redis.Redis]:
        """Open an administrator's client, without retries and with a limit of 5 seconds."""
        once = Retry(NoBackoff(), 0)
        with redis.Redis.from_url(self.url(db), socket_timeout=5, socket_connect_timeout=5, retry=once) as client:
            yield client


class RedisProcess(ServerProcess, RedisEndpoint):
    """A process of redis-server. Write the values of `config` as in redis.conf."""

    product = "redis"
    programs: ClassVar[tuple[str, ...]] = ("redis-server",)
    releases: ClassVar[Mapping[str, Release]] = {
        "8": Fetched("redis"),
        "valkey": Fetched("valkey", {"redis-server": "valkey-server"}),
        "installed": Installed(),
    }

    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__()
        self.config: dict[str, str] = {"bind": LOOPBACK, "dir": str(self.data), **config}
        self._config_file = self.directory / "redis.conf"

    @property
    def _url(self) -> str:
        host, port = self.address
        return f"redis://{self._userinfo}{host}:{port}/0"

    @property
    def _userinfo(self) -> str:
        password = self.config.get("requirepass")
        return "" if password is None else f":{quote(password, safe='')}@"

    def create_data(self) -> None:
        self.data.mkdir()
        # A file instead of arguments: failovers and CONFIG REWRITE write their changes there.
        self._config_file.write_text("".join(f"{name} {value}\n" for name, value in self.config.items()))

    def command(self, port: int) -> list[str]:
        return [*self._programs["redis-server"], str(self._config_file), "--port", str(port)]

    def answers(self) -> bool:
        try:
            with self.client() as client:
                info = client.info()
                return info["process_id"] == self.pid and not info.get("loading")
        except redis.RedisError:
            return False


class RedisServer(RedisProcess):
    """A private Redis, as in `RedisServer(appendonly=True, config={"requirepass": "s3cret-pw"})`."""

    def __init__(self, *, appendonly: bool = False, config: Mapping[str, str] | None = None) -> None:
        super().__init__({
            "save": '""',
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": "always",
            "hz": "10",
            "repl-diskless-sync-delay": "0",  # the default waits 5 seconds for other replicas
        })  # fmt: skip
        self.socket = self.directory / "socket"
        self.config |= {"unixsocket": str(self.socket), **(config or {})}

    def unix_url(self, db: int = 0) -> str:
        password = self.config.get("requirepass")
        return f"unix://{self.socket}?db={db}" + ("" if password is None else f"&password={quote(password, safe='')}")


class RedisTlsServer(RedisServer):
    """Speaks TLS only; its URLs name the certificate to trust."""

    tools = ("openssl",)

    @property
    def _url(self) -> str:
        host, port = self.address
        return f"rediss://{self._userinfo}{host}:{port}/0?ssl_ca_certs={self.certificate}"

    @property
    def certificate(self) -> str:
        return f"{self.directory}/certificate.pem"

    def create_data(self) -> None:
        key = f"{self.directory}/key.pem"
        self._run(
            *self._programs["openssl"], "req", "-x509", "-nodes", "-days", "2",
            "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-subj", "/CN=localhost",
            "-addext", f"subjectAltName=IP:{LOOPBACK},DNS:localhost",
            "-addext", "keyUsage=critical,digitalSignature,keyCertSign",  # without it Python 3.13 does not trust the CA
            "-keyout", key, "-out", self.certificate,
        )  # fmt: skip
        self.config |= {"tls-cert-file": self.certificate, "tls-key-file": key, "tls-auth-clients": "no"}
        super().create_data()

    def command(self, port: int) -> list[str]:
        return [*self._programs["redis-server"], str(self._config_file), "--port", "0", "--tls-port", str(port)]


class RedisSentinel(RedisProcess):
    """A sentinel that watches `master`, which must have been started. It finds the replicas itself.

    It reads them from the master every ten seconds: start the replicas first.
    """

    def __init__(self, master: RedisServer, *, name: str = "mymaster") -> None:
        super().__init__({})
        self.master = master
        self.master_name = name

    def master_address(self) -> Address:
        """The master's address according to the sentinel. It changes after a failover."""
        with self.client() as client:
            host, port = _ask(client, "SENTINEL GET-MASTER-ADDR-BY-NAME", self.master_name)
        return host.decode(), int(port)

    def create_data(self) -> None:
        super().create_data()
        host, port = self.master.address
        lines = [
            f"sentinel monitor {self.master_name} {host} {port} 1",
            f"sentinel down-after-milliseconds {self.master_name} 1000",
            f"sentinel failover-timeout {self.master_name} 5000",
        ]
        if password := self.master.config.get("requirepass"):
            lines.append(f"sentinel auth-pass {self.master_name} {password}")
        with self._config_file.open("a") as config:
            config.writelines(f"{line}\n" for line in lines)

    def command(self, port: int) -> list[str]:
        return [*super().command(port), "--sentinel"]


class RedisClusterNode(RedisServer):
    def __init__(self) -> None:
        timeout = "5000"  # milliseconds without a reply until other nodes call a node failed
        super().__init__(
            config={"cluster-enabled": "yes", "cluster-node-timeout": timeout, "cluster-announce-ip": LOOPBACK}
        )
        self._bus_ports: dict[int, int] = {}

    def bus_port(self, port: int) -> int:
        """Redis's default, 10000 above the port, is among the ports of outgoing connections."""
        # The other nodes remember it, so it must be the same after a restart.
        if port not in self._bus_ports:
            self._bus_ports[port] = free_port()
        return self._bus_ports[port]

    def command(self, port: int) -> list[str]:
        return [*super().command(port), "--cluster-port", str(self.bus_port(port))]


class RedisCluster:
    """Three masters without replicas that share the slots evenly."""

    def __init__(self) -> None:
        self._nodes = [RedisClusterNode() for _ in range(3)]
        self._started = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nodes(self) -> list[RedisServer]:
        return [*self._nodes]

    def url(self) -> str:
        """The URL of the first node; a client learns the other nodes from it."""
        return self._nodes[0].url()

    @contextmanager
    def client(self) -> Iterator[redis.RedisCluster]:
        with closing(redis.RedisCluster.from_url(self.url(), socket_timeout=5)) as client:
            yield client

    def start(self) -> None:
        for number, node in enumerate(self._nodes):
            self._started.callback(node.close)
            node.start()
            first, last = (SLOTS * n // len(self._nodes) for n in (number, number + 1))
            with node.client() as client:
                _ask(client, "CLUSTER ADDSLOTSRANGE", first, last - 1)
                _ask(client, "CLUSTER SET-CONFIG-EPOCH", number + 1)
        with self._nodes[0].client() as client:
            for node in self._nodes[1:]:
                host, port = node.address
                _ask(client, "CLUSTER MEET", host, port, node.bus_port(port))
        self.wait()

    def wait(self) -> None:
        """Wait until every node knows all nodes and serves. Redis takes two seconds in any case."""
        wait_until(lambda: all(map(self._is_ready, self._nodes)), timeout=CLUSTER_TIMEOUT, what="the cluster ready")

    def close(self) -> None:
        self._started.close()

    def _is_ready(self, node: RedisServer) -> bool:
        with node.client() as client:
            info = _ask(client, "CLUSTER INFO")
        return (info["cluster_state"], info["cluster_known_nodes"]) == ("ok", str(len(self._nodes)))


class ExternalRedis(ExternalLife, RedisEndpoint):
    def __init__(self, url: str, *, variable: str) -> None:
        self._given = url
        self._variable = variable

    @property
    def _url(self) -> str:
        return self._given

    @property
    def address(self) -> Address:
        parts = urlsplit(self._given)
        return parts.hostname or "localhost", parts.port or 6379


def _ask(client: redis.Redis, *words: str | int) -> Any:
    return client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py gives it no types
