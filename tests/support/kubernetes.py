"""A private API server of Kubernetes that serves Leases, with its etcd.

It is the server of `apiextensions`, which Debian has the source code of; a CustomResourceDefinition makes it serve
Leases as the whole of Kubernetes does. There are no namespaces: each name of one works. Who may do what, `Reviewer`
decides, as the rest of Kubernetes does elsewhere.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import yaml

from tests.support.asking import reply_to
from tests.support.database import Address
from tests.support.dates import ClockedProxy
from tests.support.etcd import EtcdServer
from tests.support.ports import LOOPBACK
from tests.support.releases import Fetched, Release
from tests.support.server_process import ServerError, ServerProcess
from tests.support.tls import Certificates, TlsForwarder

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
_MICRO_TIME = {
    "type": "string",
    "nullable": True,
    "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[-+]\d\d:\d\d)$",
}
_SPEC = {
    "holderIdentity": {"type": "string", "nullable": True},
    "leaseDurationSeconds": {"type": "integer", "format": "int32", "nullable": True, "minimum": 1},
    "acquireTime": _MICRO_TIME,
    "renewTime": _MICRO_TIME,
    "leaseTransitions": {"type": "integer", "format": "int32", "nullable": True, "minimum": 0},
    "strategy": {"type": "string", "nullable": True},
    "preferredHolder": {"type": "string", "nullable": True},
}
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
                        "properties": {"spec": {"type": "object", "properties": _SPEC}},
                    }
                },
            }
        ],
    },
}


def in_write(lock_name: str) -> str:
    """What is in each request that writes the record of ``lock_name``, and in no other."""
    from shedlock_py.providers.kubernetes.lease import NAME  # late: processes that need another store import this, too

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
    """``address`` speaks TLS, with certificates for both ends; ``plain`` is the same without, for proxies that read.

    Stopping and killing it leaves its etcd, and so the Leases, as they are.
    """

    product = "kubernetes"
    programs = ("apiext",)
    releases: ClassVar[Mapping[str, Release]] = {"1": Fetched("kubernetes")}
    is_required = False  # building it takes five minutes

    def __init__(self) -> None:
        super().__init__()
        self.etcd = EtcdServer()
        self.reviewer = Reviewer()
        self._plain: TlsForwarder | None = None
        self._front: ClockedProxy | None = None

    def create_data(self) -> None:
        self.data.mkdir(mode=0o700)
        self.certificates = Certificates(self.data)
        write_kubeconfig(self.data, "reviewer.yaml", self.reviewer.url, {})
        self.etcd.start()

    def start(self) -> None:
        self.etcd.start()
        is_new = self._port is None
        super().start()
        if is_new:
            self.define_leases()

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

    def answers(self) -> bool:
        try:
            return self.pid is not None and self._ask("GET", "/livez") == b"ok"
        except OSError:
            return False

    def close(self) -> None:
        super().close()
        for entrance in (self._front, self._plain):
            if entrance is not None:
                entrance.close()
        self.reviewer.close()
        self.etcd.close()

    def version(self) -> tuple[str, str]:
        version = self.ask("GET", "/version")  # Debian's build fills in no gitVersion
        return "Kubernetes API server", f"{version['major']}.{version['minor']}"

    def define_leases(self) -> None:
        self.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _LEASE_DEFINITION)
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "first"}}
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with suppress(OSError):  # for the first two seconds the server lets a request that creates one wait
                self.ask("POST", LEASES.format("default"), lease)
                return
            time.sleep(0.02)
        raise ServerError("the API server does not serve leases 30 s after they were defined")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The reply, for the administrator. :raises OSError: there is none, or it is an error."""
        return json.loads(self._ask(method, path, body))

    def _ask(self, method: str, path: str, body: Any = None) -> bytes:
        host, port = self.address
        request = urllib.request.Request(f"https://{host}:{port}{path}", method=method)
        request.add_header("Content-Type", "application/json")
        request.data = None if body is None else json.dumps(body).encode()
        return reply_to(request, self.certificates.client_context())

    @property
    def plain(self) -> Address:
        """The address of a forwarder that takes requests without TLS, as the administrator's.

        If the environment names a clock, that of a front end that shows the time of that clock.
        """
        if self._plain is None:
            self._plain = TlsForwarder(self.address, self.certificates.client_context())
        if clock := self.environment.get("SHEDLOCK_CLOCK"):
            self._front = self._front or ClockedProxy(self._plain.address, Path(clock))
            return self._front.address
        return self._plain.address

    def kubeconfig(self, *, via: Address | None = None, token: str | None = None) -> Path:
        """A file that leads to the server as the administrator, or with a token; ``via`` a proxy before ``plain``."""
        if via is None and "SHEDLOCK_CLOCK" in self.environment:
            via = self.plain
        if via is not None:
            return write_kubeconfig(self.data, f"via-{via[1]}.yaml", "http://{}:{}".format(*via), {})
        if token is not None:
            url = "https://{}:{}".format(*self.address)
            return write_kubeconfig(self.data, f"token-{token}.yaml", url, {"token": token})
        return administrator(self.data, self.address)

    def delete(self, namespace: str, lock_name: str = "") -> None:
        """Remove a record by hand, or all."""
        from shedlock_py.providers.kubernetes.names import object_name

        name = f"/{object_name(lock_name)}" if lock_name else ""
        self._ask("DELETE", LEASES.format(namespace) + name)

    def url(self, namespace: str, *, via: Address | None = None, token: str | None = None) -> str:
        return f"kubernetes://{namespace}?kubeconfig={self.kubeconfig(via=via, token=token)}"


class Reviewer:
    """What the API server asks who has a token, and who may do what: in a cluster, its other parts reply to that.

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
