"""Private servers of etcd: a single server, or the members of a cluster."""

import json
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar, Self

from shedlock_py.testing.proxy import TcpProxy
from tests.support.asking import reply_to
from tests.support.connections import process_of
from tests.support.database import Address
from tests.support.dates import ClockedProxy
from tests.support.polling import wait_until
from tests.support.ports import LOOPBACK, free_port
from tests.support.releases import Fetched, Release
from tests.support.server_process import ServerProcess


class EtcdServer(ServerProcess):
    """A member. A single server is its own cluster.

    :param name: the member's name.
    :param peers: the name and the peer port of each member, including this member.
    """

    product = "etcd"
    programs = ("etcd",)
    releases: ClassVar[Mapping[str, Release]] = {"3.5": Fetched("etcd")}
    scheme = "http"

    def __init__(
        self, name: str = "alone", peers: Mapping[str, int] | None = None, options: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.name = name
        self.options = list(options)
        self.peers = peers or {name: free_port()}
        self.peer_port = self.peers[name]
        """The port where it listens to its peers. It differs from the port in :attr:`peers` if a proxy listens there.
        """
        self.headers: dict[str, str] = {}
        """Headers of each request of :meth:`ask`, such as a token."""
        self._front: ClockedProxy | None = None

    def create_data(self) -> None:
        self.data.mkdir(mode=0o700)

    def start(self) -> None:
        super().start()
        clock = self.environment.get("SHEDLOCK_CLOCK")
        if clock and self._front is None:
            self._front = ClockedProxy(super().address, Path(clock))

    def close(self) -> None:
        if self._front is not None:
            self._front.close()
        super().close()

    @property
    def address(self) -> Address:
        """The address of the server, or of the front end that shows another time if the environment names a clock."""
        return super().address if self._front is None else self._front.address

    def command(self, port: int) -> list[str]:
        client, peer = f"{self.scheme}://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{self.peers[self.name]}"
        listens_at = f"http://{LOOPBACK}:{self.peer_port}"
        members = ",".join(f"{name}=http://{LOOPBACK}:{number}" for name, number in self.peers.items())
        return [
            *self._programs["etcd"],
            f"--name={self.name}", f"--data-dir={self.data}", "--log-level=warn", "--logger=zap",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={listens_at}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={members}", f"--initial-cluster-token={self.directory.parent.name}",
            "--heartbeat-interval=50", "--election-timeout=500",  # for a cluster on one machine
            *self.options,
        ]  # fmt: skip

    def answers(self) -> bool:
        if self.pid is None:
            return False
        # A member of a cluster listens before a leader exists; the cluster waits for the leader.
        return self._listens() if len(self.peers) > 1 else self.has_leader()

    def _listens(self) -> bool:
        try:
            with socket.create_connection(super().address, timeout=1):
                return True
        except OSError:
            return False

    def has_leader(self) -> bool:
        """Return whether the member knows the leader, and so can execute commands."""
        try:
            return "leader" in self.ask("/v3/maintenance/status")
        except (OSError, ValueError):
            return False

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the reply of the JSON gateway. :raises OSError: the server sends no reply, or an error."""
        host, port = self.address
        request = urllib.request.Request(
            f"{self.scheme}://{host}:{port}{path}", json.dumps(body).encode(), self.headers
        )
        answer: dict[str, Any] = json.loads(reply_to(request, self.tls_context()))
        return answer

    def tls_context(self) -> ssl.SSLContext | None:
        return None

    def is_leader(self) -> bool:
        """Return whether this member leads. False also if it does not reply."""
        try:
            status = self.ask("/v3/maintenance/status")
        except (OSError, ValueError):
            return False
        return bool(status.get("leader") == status["header"]["member_id"])

    def version(self) -> tuple[str, str]:
        """Return product and version. A cluster's member replies only after it has met the others, so its program is
        run."""
        if len(self.peers) == 1:
            return "etcd", self.ask("/v3/maintenance/status")["version"]
        shown = subprocess.run([*self._programs["etcd"], "--version"], capture_output=True, text=True, check=True)
        return "etcd", shown.stdout.split()[2]

    def url(self, *, via: Address | None = None, prefix: str = "") -> str:
        host, port = via or self.address
        return f"etcd://{host}:{port}{prefix}"


class EtcdTlsServer(EtcdServer):
    """Speaks TLS only, to clients with :attr:`certificate`, which also identifies the server."""

    tools = ("openssl",)
    scheme = "https"

    @property
    def certificate(self) -> str:
        return f"{self.directory}/certificate.pem"

    @property
    def key(self) -> str:
        return f"{self.directory}/key.pem"

    def create_data(self) -> None:
        super().create_data()
        self._run(
            *self._programs["openssl"], "req", "-x509", "-nodes", "-days", "2",
            "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-subj", "/CN=localhost",
            "-addext", f"subjectAltName=IP:{LOOPBACK},DNS:localhost",
            "-addext", "keyUsage=critical,digitalSignature,keyCertSign",  # without it Python 3.13 does not trust the CA
            "-keyout", self.key, "-out", self.certificate,
        )  # fmt: skip
        certificates = [f"--cert-file={self.certificate}", f"--key-file={self.key}"]
        self.options += [*certificates, f"--trusted-ca-file={self.certificate}", "--client-cert-auth"]

    def tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.certificate)
        context.load_cert_chain(self.certificate, self.key)
        return context


class EtcdCluster:
    """Three members that a test stops, kills and starts again; a context manager.

    :raises MissingServerError: etcd is not installed.
    """

    def __init__(self, size: int = 3) -> None:
        peers = {f"member-{number}": free_port() for number in range(size)}
        self.members = [EtcdServer(name, peers) for name in peers]
        self._running = ExitStack()

    def __enter__(self) -> Self:
        for member in self.members:
            self._running.enter_context(member)
        self.wait_for_leader()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def leader(self) -> EtcdServer:
        """Return the leader as soon as the cluster has one."""
        wait_until(lambda: any(member.is_leader() for member in self.members), what="a leader")
        return next((member for member in self.members if member.is_leader()), self.members[0])

    def wait_for_leader(self) -> None:
        wait_until(lambda: all(member.has_leader() for member in self.members), timeout=60, what="all follow a leader")


class CuttableEtcdCluster(EtcdCluster):
    """Members that reach each other through proxies only, so that :meth:`cut_off` cuts all the traffic of a member.

    Members dial each other: raft's messages to a member arrive on connections that it dialed, and on connections that
    it accepted. All members must know the same addresses, so each has one proxy that all its peers dial. That proxy
    learns from the kernel which member has dialed, and leads the connection to the proxy of this pair, which cuts.
    """

    def __enter__(self) -> Self:
        names = [member.name for member in self.members]
        self._of_pair = {
            (dialing, dialed): self._running.enter_context(TcpProxy((LOOPBACK, self.members[0].peers[dialed])))
            for dialing, dialed in permutations(names, 2)
        }
        doors = {name: self._running.enter_context(TcpProxy(partial(self._proxy_of_pair, name))) for name in names}
        self._peers = {name: door.address[1] for name, door in doors.items()}
        for member in self.members:
            member.peers = self._peers
        return super().__enter__()

    def _proxy_of_pair(self, dialed: str, client: Address) -> Address:
        by_pid = {pid: member.name for member in self.members if (pid := member.pid) is not None}
        pid = process_of(client, (LOOPBACK, self._peers[dialed]), by_pid)
        if pid is None:
            raise ConnectionRefusedError("its client has ended meanwhile")
        return self._of_pair[by_pid[pid], dialed].address

    def cut_off(self, member: EtcdServer, *, hears: bool = False, speaks: bool = False) -> None:
        """Hold back messages to the member, unless it ``hears``, and messages from the member, unless it ``speaks``.

        As in a network that loses packets, connections stay open, and more can be opened.
        """
        for (dialing, dialed), proxy in self._of_pair.items():
            if dialing == member.name:
                proxy.stall(to_server=not speaks, to_client=not hears)
            elif dialed == member.name:
                proxy.stall(to_server=not hears, to_client=not speaks)

    def heal(self, *, arrives: bool = True) -> None:
        """Reconnect the members. With ``arrives``, messages that were held back arrive; otherwise their connections
        break."""
        for proxy in self._of_pair.values():
            if not arrives:
                proxy.cut()
            proxy.resume()
