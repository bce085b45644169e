"""A private Kubernetes API server that serves Leases: the fake of `fake_kubernetes`, or the real server.

Both accept any namespace. `Reviewer` decides who may do what, as other parts of a Kubernetes cluster do.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import yaml

from tests.support import fake_kubernetes
from tests.support.asking import reply_to
from tests.support.database import Address
from tests.support.dates import ClockedProxy
from tests.support.etcd import EtcdServer
from tests.support.fake_kubernetes import LEASES, SPEC
from tests.support.ports import LOOPBACK, free_port
from tests.support.releases import Fetched, Release, chosen
from tests.support.server_process import ServerError, ServerProcess
from tests.support.tls import Certificates, TlsForwarder

_LEASE_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "leases.coordination.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/64246"},
    },
    "spec": {
        "group": "coordination.k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "leases", "singular": "lease", "kind": "Lease", "listKind": "LeaseList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": SPEC}},
                    }
                },
            }
        ],
    },
}


def in_write(lock_name: str) -> str:
    """Return a text that only the requests that write the record of ``lock_name`` contain."""
    # import late: processes that need another store import this module too
    from shedlock_py.providers.kubernetes.lease import NAME

    return f'"{NAME}":{json.dumps(lock_name)}'


def administrator(directory: Path, address: Address) -> Path:
    """A kubeconfig that leads to ``address`` over TLS, with the certificates in ``directory``."""
    user = {"client-certificate": str(directory / "client.crt"), "client-key": str(directory / "client.key")}
    return write_kubeconfig(directory, f"admin-{address[1]}.yaml", "https://{}:{}".format(*address), user)


def write_kubeconfig(directory: Path, filename: str, url: str, user: dict[str, str]) -> Path:
    cluster = {"server": url}
    if url.startswith("https"):
        cluster["certificate-authority"] = str(directory / "authority.crt")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "of-context"}}],
    }
    path = directory / filename
    if not path.exists():
        path.write_text(yaml.safe_dump(config))
    return path


class KubernetesServer(ServerProcess):
    """``address`` speaks TLS, with certificates for both ends; ``plain`` is the same without TLS, for proxies that
    read.

    A server that is stopped or killed keeps its Leases.
    """

    product = "kubernetes"

    def __init__(self) -> None:
        super().__init__()
        self.reviewer = Reviewer()

    def create_data(self) -> None:
        self.data.mkdir(mode=0o700)
        self.certificates = Certificates(self.data)

    def answers(self) -> bool:
        try:
            return self.pid is not None and self._ask("GET", "/livez") == b"ok"
        except OSError:
            return False

    def close(self) -> None:
        super().close()
        self.reviewer.close()

    @property
    @abstractmethod
    def plain(self) -> Address:
        """The address for requests without TLS. The server treats them as the administrator's."""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the reply to the administrator. :raises OSError: the server sends no reply, or an error."""
        return json.loads(self._ask(method, path, body))

    def _ask(self, method: str, path: str, body: Any = None) -> bytes:
        host, port = self.address
        request = urllib.request.Request(f"https://{host}:{port}{path}", method=method)
        request.add_header("Content-Type", "application/json")
        request.data = None if body is None else json.dumps(body).encode()
        return reply_to(request, self.certificates.client_context())

    def kubeconfig(self, *, via: Address | None = None, token: str | None = None) -> Path:
        """Return a file that leads to the server as the administrator, or with a token; ``via`` a proxy before
        ``plain``."""
        if via is not None:
            return write_kubeconfig(self.data, f"via-{via[1]}.yaml", "http://{}:{}".format(*via), {})
        if token is not None:
            url = "https://{}:{}".format(*self.address)
            return write_kubeconfig(self.data, f"token-{token}.yaml", url, {"token": token})
        return administrator(self.data, self.address)

    def delete(self, namespace: str, lock_name: str = "") -> None:
        """Delete a record, or all records, by hand."""
        from shedlock_py.providers.kubernetes.names import object_name

        name = f"/{object_name(lock_name)}" if lock_name else ""
        self._ask("DELETE", LEASES.format(namespace) + name)

    def url(self, namespace: str, *, via: Address | None = None, token: str | None = None) -> str:
        return f"kubernetes://{namespace}?kubeconfig={self.kubeconfig(via=via, token=token)}"


class FakeApiServer(KubernetesServer):
    """The fake: a process that keeps the Leases in a file."""

    programs = ()

    def __init__(self) -> None:
        super().__init__()
        self._plain: Address = LOOPBACK, free_port()

    @classmethod
    def find_programs(cls) -> dict[str, list[str]]:
        return {}

    def command(self, port: int) -> list[str]:
        program = Path(fake_kubernetes.__file__)
        ports = str(port), str(self.plain[1])
        return [sys.executable, "-I", str(program), *ports, str(self.data), self.reviewer.url]

    def version(self) -> tuple[str, str]:
        return "Kubernetes API server", "fake"

    @property
    def plain(self) -> Address:
        return self._plain

    def _ask(self, method: str, path: str, body: Any = None) -> bytes:
        """TLS takes longer than the request, so this request goes without."""
        request = urllib.request.Request("http://{}:{}{}".format(*self.plain, path), method=method)
        request.data = None if body is None else json.dumps(body).encode()
        return reply_to(request)


class ApiServer(KubernetesServer):
    """The real server, with its etcd.

    It is the server of `apiextensions`, which Debian has as source code. A CustomResourceDefinition makes it serve
    Leases as all of Kubernetes does. Its etcd keeps running when it is stopped or killed.
    """

    programs = ("apiext",)
    releases: ClassVar[Mapping[str, Release]] = {"1": Fetched("kubernetes")}
    brought_by = "make servers-full"

    def __init__(self) -> None:
        super().__init__()
        self.etcd = EtcdServer()
        self._plain: TlsForwarder | None = None
        self._front: ClockedProxy | None = None

    @classmethod
    def find_programs(cls) -> dict[str, list[str]]:
        return cls.programs_of(cls.releases["1"])  # whatever release the environment chooses for other tests

    def create_data(self) -> None:
        super().create_data()
        write_kubeconfig(self.data, "reviewer.yaml", self.reviewer.url, {})
        self.etcd.start()

    def start(self) -> None:
        self.etcd.start()
        is_new = self._port is None
        super().start()
        if is_new:
            self.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _LEASE_DEFINITION)
            # For its first two seconds the server delays a request that creates a Lease.
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "first"}}
            self._ask_until_served("POST", lease)
        self._ask_until_served("GET")  # it replies 429 for a moment after its start

    def command(self, port: int) -> list[str]:
        certificates, reviewer = self.certificates, self.data / "reviewer.yaml"
        off = (
            "NamespaceLifecycle,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,"
            "ValidatingAdmissionPolicy,MutatingAdmissionPolicy"
        )
        etcd = "http://{}:{}".format(*self.etcd.address)
        return [
            *self._programs["apiext"],
            f"--etcd-servers={etcd}", f"--bind-address={LOOPBACK}", f"--secure-port={port}",
            f"--tls-cert-file={certificates.server}", f"--tls-private-key-file={certificates.server_key}",
            f"--client-ca-file={certificates.authority}", "--authentication-skip-lookup=true",
            f"--kubeconfig={reviewer}", f"--authentication-kubeconfig={reviewer}",
            f"--authorization-kubeconfig={reviewer}",
            "--authentication-token-webhook-cache-ttl=0s", "--authorization-webhook-cache-authorized-ttl=0s",
            "--authorization-webhook-cache-unauthorized-ttl=0s",
            f"--disable-admission-plugins={off}", "--enable-priority-and-fairness=false",
        ]  # fmt: skip

    def close(self) -> None:
        super().close()
        for entrance in (self._front, self._plain):
            if entrance is not None:
                entrance.close()
        self.etcd.close()

    def version(self) -> tuple[str, str]:
        version = self.ask("GET", "/version")  # Debian's build leaves gitVersion empty
        return "Kubernetes API server", f"{version['major']}.{version['minor']}"

    def _ask_until_served(self, method: str, body: Any = None) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with suppress(OSError):
                self.ask(method, LEASES.format("default"), body)
                return
            time.sleep(0.02)
        raise ServerError("the API server does not serve leases 30 s after its start")

    @property
    def plain(self) -> Address:
        """The address of a forwarder, or of a front end that shows the time of the environment's clock."""
        if self._plain is None:
            self._plain = TlsForwarder(self.address, self.certificates.client_context())
        if clock := self.environment.get("SHEDLOCK_CLOCK"):
            self._front = self._front or ClockedProxy(self._plain.address, Path(clock))
            return self._front.address
        return self._plain.address

    def kubeconfig(self, *, via: Address | None = None, token: str | None = None) -> Path:
        if via is None and "SHEDLOCK_CLOCK" in self.environment:
            via = self.plain
        return super().kubeconfig(via=via, token=token)


SERVERS: dict[str, type[KubernetesServer]] = {"fake": FakeApiServer, "1": ApiServer}
"""The values of ``SHEDLOCK_TEST_KUBERNETES``; the first is the default."""


def kubernetes_server() -> KubernetesServer:
    return chosen("kubernetes", SERVERS)()


class Reviewer:
    """The reviewer that the API server asks who has a token and who may do what. In a cluster, other parts reply to
    that.

    ``users``: their tokens. ``verbs``: what each user may do with Leases.
    """

    def __init__(self) -> None:
        self.users: dict[str, str] = {}
        self.verbs: dict[str, set[str]] = {}
        reviewer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                content = json.dumps(review | {"status": reviewer.status(review)}).encode()
                self.send_response(201)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                self.send_error(404)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.daemon_threads = True
        self.url = "http://{}:{}".format(*self._server.server_address)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def status(self, review: dict[str, Any]) -> dict[str, Any]:
        spec = review["spec"]
        if review["kind"] == "TokenReview":
            user = self.users.get(spec["token"])
            return {"authenticated": user is not None, "user": {"username": user or ""}}
        attributes = spec.get("resourceAttributes", {})
        return {"allowed": attributes.get("verb") in self.verbs.get(spec.get("user", ""), ())}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
