"""Private servers of ZooKeeper: a single server, or the servers of an ensemble."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import ClassVar, Self

from kazoo.client import KazooClient

from tests.support.database import Address
from tests.support.polling import wait_until
from tests.support.ports import LOOPBACK, free_port
from tests.support.releases import Fetched, Release
from tests.support.server_process import ServerProcess


class ZooKeeperServer(ServerProcess):
    """A server. A single server is its own ensemble.

    :param number: its number in ``peers``.
    :param peers: the two ports for its peers of each server of the ensemble.
    :param options: lines of its configuration.
    """

    product = "zookeeper"
    programs = ("QuorumPeerMain",)
    tools = ("java",)
    releases: ClassVar[Mapping[str, Release]] = {"3.8": Fetched("zookeeper")}

    def __init__(
        self, number: int = 0, peers: Mapping[int, tuple[int, int]] | None = None, options: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.number = number
        self.peers = peers or {}
        self.options = list(options)

    def create_data(self) -> None:
        self.data.mkdir(mode=0o700)
        (self.data / "myid").write_text(str(self.number))

    def command(self, port: int) -> list[str]:
        lines = [
            f"dataDir={self.data}",
            f"clientPortAddress={LOOPBACK}",
            f"clientPort={port}",
            "tickTime=500",
            "initLimit=20",
            "syncLimit=4",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,mntr",
            *(f"server.{number}={LOOPBACK}:{data}:{vote}" for number, (data, vote) in self.peers.items()),
            *self.options,
        ]
        (self.directory / "zoo.cfg").write_text("\n".join(lines))
        java, *words = self._programs["QuorumPeerMain"]
        return [java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *words, f"{self.directory}/zoo.cfg"]

    def answers(self) -> bool:
        # A server of an ensemble listens before a leader exists; the ensemble waits for the leader.
        return self.pid is not None and bool(self.status() or (self.peers and self._listens()))

    def _listens(self) -> bool:
        try:
            with socket.create_connection(self.address, timeout=1):
                return True
        except OSError:
            return False

    def status(self) -> dict[str, str]:
        """Return the reply to ``srvr``. Empty if the server does not serve clients."""
        return dict(line.split(": ", 1) for line in self._reply("srvr").splitlines() if ": " in line)

    def sessions(self) -> int:
        """Return the number of sessions that have not ended, with or without a connection."""
        figures = dict(line.split("\t", 1) for line in self._reply("mntr").splitlines() if "\t" in line)
        return int(figures["zk_global_sessions"])

    def _reply(self, command: str) -> str:
        reply = b""
        with suppress(OSError), socket.create_connection(self.address, timeout=2) as connection:
            connection.sendall(command.encode())
            while chunk := connection.recv(4096):  # in the end, the server resets the connection
                reply += chunk
        return reply.decode()

    @contextmanager
    def client(self, *auth: tuple[str, str]) -> Iterator[KazooClient]:
        host, port = self.address
        client = KazooClient(f"{host}:{port}", auth_data=list(auth))
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def version(self) -> tuple[str, str]:
        # A server of an ensemble replies only after it has met the others.
        return "ZooKeeper", self.status().get("Zookeeper version", "3.8").partition("-")[0]

    def url(self, *, via: Address | None = None, path: str = "") -> str:
        host, port = via or self.address
        return f"zookeeper://{host}:{port}{path}"


class ZooKeeperEnsemble:
    """Three servers that a test stops, kills and starts again; a context manager.

    :raises MissingServerError: ZooKeeper is not fetched.
    """

    def __init__(self, size: int = 3) -> None:
        peers = {number: (free_port(), free_port()) for number in range(1, size + 1)}
        self.members = [ZooKeeperServer(number, peers) for number in peers]
        self._running = ExitStack()

    def __enter__(self) -> Self:
        for server in self.members:
            self._running.enter_context(server)
        self.wait_for_leader()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def leader(self) -> ZooKeeperServer:
        wait_until(lambda: any(server.status().get("Mode") == "leader" for server in self.members), what="a leader")
        return next(server for server in self.members if server.status().get("Mode") == "leader")

    def wait_for_leader(self) -> None:
        wait_until(lambda: all(server.status() for server in self.members), timeout=60, what="all follow a leader")

    def url(self, path: str = "") -> str:
        return f"zookeeper://{','.join(f'{host}:{port}' for host, port in (s.address for s in self.members))}{path}"
