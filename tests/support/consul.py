"""A private Consul server, which keeps everything in memory and requires a token."""

import json
import urllib.request
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import quote

from tests.support.asking import reply_to
from tests.support.database import Address
from tests.support.ports import LOOPBACK, free_port
from tests.support.releases import Fetched, Release
from tests.support.server_process import ServerProcess

TOKEN = "s3cret-token"
"""A token for everything. A request without a token is refused."""
_ACL = f'acl {{ enabled = true, default_policy = "deny", tokens {{ master = "{TOKEN}" }} }}'


class ConsulServer(ServerProcess):
    """For the example of a compare-and-swap store: ``examples/providers/consul.py``."""

    product = "consul"
    programs = ("consul",)
    releases: ClassVar[Mapping[str, Release]] = {"1.8": Fetched("consul")}
    is_required = False  # only an old release of Debian has it
    brought_by = "make servers-all"

    def create_data(self) -> None:
        self.data.mkdir(mode=0o700)

    def command(self, port: int) -> list[str]:
        return [
            *self._programs["consul"], "agent", "-dev", "-log-level=warn", f"-bind={LOOPBACK}", f"-client={LOOPBACK}",
            f"-http-port={port}", f"-server-port={free_port()}", f"-serf-lan-port={free_port()}",
            "-serf-wan-port=-1", "-grpc-port=-1", "-dns-port=-1", f"-hcl={_ACL}",
        ]  # fmt: skip

    def answers(self) -> bool:
        """A leader may exist a moment before it knows the token."""
        try:
            return self.pid is not None and bool(json.loads(self.ask("GET", "/v1/status/leader")) and self.version())
        except OSError:
            return False

    def version(self) -> tuple[str, str]:
        return "Consul", json.loads(self.ask("GET", "/v1/agent/self"))["Config"]["Version"]

    def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """:raises OSError: the server sends no reply, or an error."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            "http://{}:{}{}".format(*self.address, path), data, {"X-Consul-Token": TOKEN}, method=method
        )
        return reply_to(request)

    def delete(self, key: str) -> None:
        self.ask("DELETE", f"/v1/kv/{quote(key)}")

    def token_that_reads(self) -> str:
        """Return a token that may read all keys, but not write."""
        self.ask("PUT", "/v1/acl/policy", {"Name": "reads", "Rules": 'key_prefix "" { policy = "read" }'})
        token: str = json.loads(self.ask("PUT", "/v1/acl/token", {"Policies": [{"Name": "reads"}]}))["SecretID"]
        return token

    def url(self, prefix: str, *, via: Address | None = None, token: str = TOKEN) -> str:
        return "consul://:{}@{}:{}/{}".format(token, *(via or self.address), prefix)
