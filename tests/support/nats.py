"""Private servers of NATS with JetStream: a single server, or the members of a cluster."""

import asyncio
import json
import re
import struct
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Self

import nats
from nats.js import JetStreamContext
from nats.js.errors import NoKeysError

from shedlock_py.testing.proxy import TcpProxy
from tests.support.asking import reply_to
from tests.support.database import Address
from tests.support.polling import wait_until
from tests.support.ports import LOOPBACK, free_port
from tests.support.releases import Fetched, Release
from tests.support.server_process import ServerProcess

_TIME = re.compile(rb'(?<="ts":")[^"]+')
Work = Callable[[JetStreamContext], Awaitable[Any]]


class NatsServer(ServerProcess):
    """A server.

    :param name: the server's name in its cluster.
    :param peers: the port for the other servers, for each server of the cluster; empty for a single server.
    :param settings: more lines of the configuration.
    """

    product = "nats"
    programs = ("nats-server",)
    releases: ClassVar[Mapping[str, Release]] = {"2.15": Fetched("nats")}

    def __init__(
        self, name: str = "alone", peers: Mapping[str, int] | None = None, settings: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.name = name
        self.settings = list(settings)
        self.user = ""
        """The user in URLs: ``user:password@``."""
        self._peers = peers or {}
        self._monitoring = free_port()
        self._front: ClockedNatsProxy | None = None

    def create_data(self) -> None:
        self.data.mkdir(mode=0o700)

    def start(self) -> None:
        super().start()
        clock = self.environment.get("SHEDLOCK_CLOCK")
        if clock and self._front is None:
            self._front = ClockedNatsProxy(super().address, Path(clock))

    def close(self) -> None:
        if self._front is not None:
            self._front.close()
        super().close()

    @property
    def address(self) -> Address:
        """The address of the server, or of the front end that shows another time if the environment names a clock."""
        return super().address if self._front is None else self._front.address

    def command(self, port: int) -> list[str]:
        lines = [
            f'server_name: "{self.name}"',
            f'listen: "{LOOPBACK}:{port}"',
            f'http: "{LOOPBACK}:{self._monitoring}"',
            f'jetstream {{ store_dir: "{self.data}", max_mem: 64MB, max_file: 1GB }}',
            *self.settings,
        ]
        if self._peers:
            routes = ", ".join(f'"nats://{LOOPBACK}:{number}"' for number in self._peers.values())
            own = f'listen: "{LOOPBACK}:{self._peers[self.name]}"'
            lines.append(f'cluster {{ name: "{self.directory.parent.name}-c", {own}, routes: [{routes}] }}')
        configuration = self.directory / "nats.conf"
        configuration.write_text("\n".join(lines) + "\n")
        return [*self._programs["nats-server"], "-c", str(configuration)]

    def answers(self) -> bool:
        # A server of a cluster listens before a leader exists; the cluster waits for the leader.
        return self.pid is not None and (self._is_up("varz") if self._peers else self.is_healthy())

    def is_healthy(self) -> bool:
        """Return whether the server has a leader and all data."""
        return self._is_up("healthz")

    def _is_up(self, page: str) -> bool:
        try:
            return bool(self.ask(page))
        except (OSError, ValueError):
            return False

    def ask(self, page: str) -> dict[str, Any]:
        """Return a page of its monitoring. :raises OSError: the server sends no reply, or an error."""
        reply: dict[str, Any] = json.loads(
            reply_to(urllib.request.Request(f"http://{LOOPBACK}:{self._monitoring}/{page}"))
        )
        return reply

    def version(self) -> tuple[str, str]:
        return "NATS", self.ask("varz")["version"]

    def run(self, work: Work) -> Any:
        """Return the result of ``work``, which gets a client of JetStream."""

        async def connected() -> Any:
            host, port = self.address
            client = await nats.connect(f"nats://{self.user}{host}:{port}", allow_reconnect=False)
            try:
                return await work(client.jetstream(timeout=20))
            finally:
                await client.close()

        return asyncio.run(connected())

    def keys(self, bucket: str) -> list[str]:
        async def work(jetstream: JetStreamContext) -> list[str]:
            try:
                return await (await jetstream.key_value(bucket)).keys()
            except NoKeysError:
                return []

        found: list[str] = self.run(work)
        return found

    def delete(self, bucket: str, *keys: str) -> None:
        """Delete keys as ``nats kv del`` does, which leaves a marker of each."""

        async def work(jetstream: JetStreamContext) -> None:
            store = await jetstream.key_value(bucket)
            for key in keys:
                await store.delete(key, validate_keys=False)

        self.run(work)

    def leads(self) -> bool:
        """Return whether this server leads its first bucket."""
        try:
            (account,) = self.ask("jsz?accounts=1&streams=1")["account_details"]
            return bool(account["stream_detail"][0]["cluster"]["leader"] == self.name)
        except (OSError, ValueError, LookupError):
            return False

    def url(self, bucket: str, *, via: Address | None = None) -> str:
        host, port = via or self.address
        return f"nats://{self.user}{host}:{port}/{bucket}"


class NatsCluster:
    """Three servers that a test stops, kills and starts again; a context manager."""

    def __init__(self, size: int = 3) -> None:
        peers = {f"server-{number}": free_port() for number in range(size)}
        self.members = [NatsServer(name, peers) for name in peers]
        self._running = ExitStack()

    def __enter__(self) -> Self:
        for member in self.members:
            self._running.enter_context(member)
        self.wait_for_leader()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def wait_for_leader(self) -> None:
        """Wait until all servers are up, and their copies of each bucket have all records."""
        wait_until(lambda: all(member.is_healthy() for member in self.members), timeout=60, what="a healthy cluster")

    @property
    def leader(self) -> NatsServer:
        """The server that leads the only bucket, as soon as there is one."""

        def leaders() -> list[NatsServer]:
            """The servers may not agree for a moment. One that is down or stopped says nothing."""
            return [member for member in self.members if member.leads()]

        wait_until(lambda: len(leaders()) == 1, timeout=60, what="a leader")
        return leaders()[0]


class ClockedNatsProxy(TcpProxy):
    """A front end that shows another time: it rewrites the time in replies, which keep their length.

    A file of ``faults/clocks.py`` says how many nanoseconds the clock is ahead. For a server in Go, which does not ask
    libc for the time.
    """

    def __init__(self, upstream: Address, file: Path) -> None:
        self._file = file
        super().__init__(upstream, rewrite=lambda reply: _TIME.sub(self._shifted, reply))

    def _shifted(self, found: re.Match[bytes]) -> bytes:
        nanoseconds: int = struct.unpack("q", self._file.read_bytes())[0]
        moment = datetime.fromtimestamp(time.time(), UTC) + timedelta(microseconds=nanoseconds / 1000)
        size = len(found[0])
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%f000").encode()[: size - 1].ljust(size - 1, b"0") + b"Z"
