"""Private servers of etcd: one alone, or the members of a cluster."""

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.support.database import Address
from tests.support.dates import ClockedProxy
from tests.support.ports import LOOPBACK, free_port
from tests.support.releases import Fetched, Release
from tests.support.server_process import ServerProcess


class EtcdServer(ServerProcess):
    """One member. Alone, it is its own cluster.

    :param name: of the member.
    :param peers: the name and the port for its peers of each member, this one included.
    """

    product = "etcd"
    programs = ("etcd",)
    releases: ClassVar[Mapping[str, Release]] = {"3.5": Fetched("etcd")}

    def __init__(self, name: str = "alone", peers: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.name = name
        self.peers = peers or {name: free_port()}
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
        """Of the front end that shows another time, if the environment names a clock."""
        return super().address if self._front is None else self._front.address

    def command(self, port: int) -> list[str]:
        client, peer = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{self.peers[self.name]}"
        members = ",".join(f"{name}=http://{LOOPBACK}:{number}" for name, number in self.peers.items())
        return [
            *self._programs["etcd"],
            f"--name={self.name}", f"--data-dir={self.data}", "--log-level=warn", "--logger=zap",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={members}", f"--initial-cluster-token={self.directory.parent.name}",
            "--heartbeat-interval=50", "--election-timeout=500",  # of a cluster on one machine
        ]  # fmt: skip

    def answers(self) -> bool:
        if self.pid is None:
            return False
        # A member of a cluster listens before there is a leader. Whoever starts the cluster waits for that.
        return len(self.peers) > 1 or self.has_leader()

    def has_leader(self) -> bool:
        """Whether it knows the leader, and so can carry commands out."""
        try:
            return "leader" in self.ask("/v3/maintenance/status")
        except (OSError, ValueError):
            return False

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """The reply of the JSON gateway. :raises OSError: there is none, or it is an error."""
        host, port = self.address
        request = urllib.request.Request(f"http://{host}:{port}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=5) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer

    def version(self) -> tuple[str, str]:
        return "etcd", self.ask("/v3/maintenance/status")["version"]

    def url(self, *, via: Address | None = None, prefix: str = "") -> str:
        host, port = via or self.address
        return f"etcd://{host}:{port}{prefix}"
