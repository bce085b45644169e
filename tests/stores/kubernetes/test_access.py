"""The API server's address, the user and their rights: kubeconfigs, service accounts, tokens, plugins, Roles."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
import yaml

from shedlock_py import ConfigurationError, LockRequest, ProviderError, ProviderUnreachable, provider_from_url
from shedlock_py.providers.kubernetes import KubernetesLockProvider, access
from shedlock_py.providers.kubernetes.wire import VERBS
from shedlock_py.testing.contract.base import acquired, record_of
from shedlock_py.testing.proxy import TcpProxy
from tests.cli.harness import run
from tests.stores.kubernetes.conftest import Open
from tests.support.fake_kubernetes import LEASES
from tests.support.held_replies import HeldReply
from tests.support.kubernetes import KubernetesServer
from tests.support.polling import wait_until

REQUEST = LockRequest("job", "1m")


@pytest.fixture
def token(kubernetes_server: KubernetesServer) -> Iterator[str]:
    """The token of a user who has the rights that a Role must grant."""
    token, user = uuid4().hex, f"system:serviceaccount:app:{uuid4().hex[:8]}"
    reviewer = kubernetes_server.reviewer
    reviewer.users[token], reviewer.verbs[user] = user, {*VERBS}
    yield token
    reviewer.users.pop(token, None)


def kubeconfig(server: KubernetesServer, directory: Path, user: dict[str, Any], /, **cluster: str) -> Path:
    config = yaml.safe_load(server.kubeconfig().read_text())
    config["users"][0]["user"] = user
    config["clusters"][0]["cluster"].update(cluster)
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def renew(server: KubernetesServer, token: str) -> str:
    """Return a new token for the user, and make the former token invalid."""
    server.reviewer.users["new" + token] = server.reviewer.users.pop(token)
    return "new" + token


class Plugin:
    """A program that a kubeconfig names, and that prints a token."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "credential"
        self._api = "client.authentication.k8s.io/v1"
        self.user = {"exec": {"apiVersion": self._api, "command": "cat", "args": [str(self._file)]}}

    def give(self, token: str, **status: str) -> None:
        self._file.write_text(
            json.dumps({"apiVersion": self._api, "kind": "ExecCredential", "status": {"token": token, **status}})
        )

    def hang(self) -> Path:
        """Let the program hang.

        :return: a pipe; a write to it lets the program end.
        """
        self.fail()
        os.mkfifo(self._file)
        return self._file

    def fail(self) -> None:
        self._file.unlink()


# A kubeconfig


def test_the_namespace_of_the_context(kubernetes_server: KubernetesServer, open_url: Open) -> None:
    lease = acquired(open_url(kubernetes_server.url("")), REQUEST)
    found = kubernetes_server.ask("GET", LEASES.format("of-context") + "/job")
    assert found["spec"]["holderIdentity"] == lease.locked_by
    kubernetes_server.delete("of-context")


def test_i5_a_kubeconfig_without_a_descriptor_to_read_it(kubernetes_server: KubernetesServer, namespace: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(KubernetesLockProvider(kubernetes_server.url(namespace))) as provider:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
        try:
            with pytest.raises(ProviderUnreachable, match="Too many open files"):
                provider.acquire(REQUEST)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        acquired(provider, REQUEST)


def test_a_kubeconfig_of_the_environment(
    kubernetes_server: KubernetesServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"/nowhere/config:{kubernetes_server.kubeconfig()}")
    provider = provider_from_url(f"kubernetes://{namespace}?context=test")
    acquired(provider, REQUEST)
    provider.close()  # type: ignore[attr-defined]  # it has


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("kubernetes://default?kubeconfig=/nowhere/config", "No configuration found"),
        ("kubernetes://default?context=other&kubeconfig={}", "Expected object with name other in"),
        ("kubernetes://?context=other&kubeconfig={}", "Expected object with name other in"),
    ],
)
def test_a_kubeconfig_that_gives_no_access_is_a_configuration_error(
    kubernetes_server: KubernetesServer, open_url: Open, url: str, reason: str
) -> None:
    provider = open_url(url.format(kubernetes_server.kubeconfig()))
    with pytest.raises(ConfigurationError, match=f"no access to Kubernetes is configured: .*{reason}"):
        provider.acquire(REQUEST)


@pytest.mark.parametrize(
    "url",
    ["kubernetes://Big", "kubernetes://a.b", "kubernetes://a/b", "kubernetes://a?x=1", "kubernetes:default",
     "kubernetes://a#b", "kubernetes://" + 64 * "a", "kubernetes://default?history=5"],
)  # fmt: skip
def test_urls_that_cannot_work(url: str) -> None:
    with pytest.raises(ConfigurationError, match="store URL: "):
        provider_from_url(url)


def test_a_certificate_of_another_authority(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, tmp_path: Path
) -> None:
    other = kubernetes_server.certificates.client  # no authority at all
    path = kubeconfig(kubernetes_server, tmp_path, {"token": "x"}, **{"certificate-authority": str(other)})
    with pytest.raises(ProviderUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        open_url(f"kubernetes://{namespace}?kubeconfig={path}").acquire(REQUEST)


def test_the_certificate_of_an_authority_that_is_replaced(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, token: str, tmp_path: Path
) -> None:
    authority = tmp_path / "authority.pem"
    shutil.copy(kubernetes_server.certificates.client, authority)
    path = kubeconfig(kubernetes_server, tmp_path, {"token": token}, **{"certificate-authority": str(authority)})
    provider = open_url(f"kubernetes://{namespace}?kubeconfig={path}")
    for _ in range(2):
        with pytest.raises(ProviderUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            provider.acquire(REQUEST)
    shutil.copy(kubernetes_server.certificates.authority, authority)
    acquired(provider, REQUEST)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "socks4://me:s3cret-pw@127.0.0.1:1", "http://127.0.0.1:x"])
def test_a_proxy_that_cannot_work(
    kubernetes_server: KubernetesServer, open_url: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, proxy: str
) -> None:
    file = kubeconfig(kubernetes_server, tmp_path, {}, server="https://kubernetes.invalid")
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setitem(sys.modules, "socksio", None)  # as if socksio is not installed
    with pytest.raises(ConfigurationError, match="the proxy of the environment") as caught:
        open_url(f"kubernetes://?kubeconfig={file}").acquire(REQUEST)
    assert "s3cret-pw" not in str(caught.value)


# Tokens


def test_a_token_file_that_gets_another_token(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, token: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    provider = open_url(
        f"kubernetes://{namespace}?kubeconfig={kubeconfig(kubernetes_server, tmp_path, {'tokenFile': str(file)})}"
    )
    lease = acquired(provider, REQUEST)
    file.write_text(renew(kubernetes_server, token))
    assert provider.extend(lease, "2m") is lease
    assert provider.release(lease) is True


def test_a_plugin_is_asked_again_when_its_token_is_refused(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, token: str, tmp_path: Path
) -> None:
    plugin = Plugin(tmp_path)
    plugin.give(token)
    provider = open_url(f"kubernetes://{namespace}?kubeconfig={kubeconfig(kubernetes_server, tmp_path, plugin.user)}")
    lease = acquired(provider, REQUEST)
    plugin.give(renew(kubernetes_server, token))
    assert provider.release(lease) is True


def test_a_plugin_that_fails_once_is_asked_again(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, token: str, tmp_path: Path
) -> None:
    """The official client continues without a token, and the server rejects an anonymous user with another status."""
    plugin = Plugin(tmp_path)
    plugin.give(token)
    provider = open_url(f"kubernetes://{namespace}?kubeconfig={kubeconfig(kubernetes_server, tmp_path, plugin.user)}")
    lease = acquired(provider, REQUEST)
    plugin.fail()
    token = renew(kubernetes_server, token)
    for _ in range(2):
        with pytest.raises(ProviderError, match="system:anonymous") as caught:
            provider.extend(lease, "2m")
        assert "no credentials were sent" in str(caught.value.hint)
    plugin.give(token)
    assert provider.release(lease) is True


def test_a_plugin_that_hangs_keeps_nobody_waiting_while_the_old_token_serves(
    kubernetes_server: KubernetesServer,
    open_url: Open,
    namespace: str,
    token: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "FRESH_SECONDS", 0.0)
    plugin = Plugin(tmp_path)
    plugin.give(token, expirationTimestamp="2020-01-01T00:00:00Z")
    provider = open_url(f"kubernetes://{namespace}?kubeconfig={kubeconfig(kubernetes_server, tmp_path, plugin.user)}")
    lease = acquired(provider, REQUEST)
    pipe = plugin.hang()
    try:
        for _ in range(20):  # more attempts than workers
            assert provider.extend(lease, "2m") is lease
        assert provider.release(lease) is True
    finally:
        hanging = pipe.rename(tmp_path / "pipe")
        plugin.give(token)  # given before the hanging plugin continues: the next plugin must not hang
        hanging.write_text("")


def test_a_token_that_stays_refused(kubernetes_server: KubernetesServer, open_url: Open, namespace: str) -> None:
    provider = open_url(kubernetes_server.url(namespace, token="of-nobody"))
    with pytest.raises(ProviderError, match="Unauthorized") as caught:
        provider.acquire(REQUEST)
    assert not isinstance(caught.value, ProviderUnreachable)
    assert "kubectl auth whoami" in str(caught.value.hint)


def test_a_token_that_is_replaced_disturbs_no_thread(
    kubernetes_server: KubernetesServer, namespace: str, token: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    config = kubeconfig(kubernetes_server, tmp_path, {"tokenFile": str(file)})
    with closing(KubernetesLockProvider(f"kubernetes://{namespace}?kubeconfig={config}")) as provider:

        def use(name: str) -> None:
            lease = acquired(provider, LockRequest(name, "1m"))
            while not is_renewed.wait(0.01):
                assert provider.extend(lease, "1m") is lease
            for _ in range(10):
                assert provider.extend(lease, "1m") is lease
            assert provider.release(lease) is True

        is_renewed = Event()
        with ThreadPoolExecutor(6) as pool:
            used = [pool.submit(use, f"job-{number}") for number in range(6)]
            wait_until(lambda: len(provider.records()) == 6, what="leases of all")
            file.write_text(f"new{token}")
            renew(kubernetes_server, token)
            provider.record("job")
            is_renewed.set()
            for each in used:
                each.result()


def test_an_authority_that_is_replaced_disturbs_no_request_that_is_under_way(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, token: str, tmp_path: Path
) -> None:
    file, authority, held = tmp_path / "token", tmp_path / "authority.pem", HeldReply()
    file.write_text(token)
    shutil.copy(kubernetes_server.certificates.authority, authority)
    with TcpProxy(kubernetes_server.address, rewrite=held) as proxy, ThreadPoolExecutor(1) as other:
        place = {"server": f"https://127.0.0.1:{proxy.address[1]}", "certificate-authority": str(authority)}
        config = kubeconfig(kubernetes_server, tmp_path, {"tokenFile": str(file)}, **place)
        provider = open_url(f"kubernetes://{namespace}?kubeconfig={config}", timeout="20s")
        lease = acquired(provider, REQUEST)
        held.hold_next()
        extending = other.submit(provider.extend, lease, "2m")
        assert held.has_come.wait(20)
        version = resource_version(kubernetes_server, namespace)
        authority.write_text(authority.read_text() + "\n")
        file.write_text(renew(kubernetes_server, token))
        assert record_of(provider, "job").is_held  # on connections of another client
        held.let_go()
        assert extending.result() is lease
    assert resource_version(kubernetes_server, namespace) == version, "the extension was sent once"


def resource_version(server: KubernetesServer, namespace: str) -> str:
    return str(server.ask("GET", LEASES.format(namespace) + "/job")["metadata"]["resourceVersion"])


IN_CLUSTER = """
import sys
from pathlib import Path
from shedlock_py import LockRequest, provider_from_url
token = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
provider = provider_from_url("kubernetes://")
lease = provider.acquire(LockRequest("job", "1m"))
print("acquired", flush=True)
token.write_text(sys.stdin.readline().strip())
print(provider.extend(lease, "2m") is lease, provider.release(lease))
"""


def test_a_service_account_whose_token_is_replaced(
    kubernetes_server: KubernetesServer, namespace: str, token: str
) -> None:
    """The function runs in its own mount namespace, with the files of a pod."""
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    prepare = (
        f"mount -t tmpfs none /run && mkdir -p {account} && echo -n {token} > {account}/token && "
        f"echo -n {namespace} > {account}/namespace && cp {kubernetes_server.certificates.authority} {account}/ca.crt"
    )
    command = ["unshare", "-rm", "sh", "-c", f'{prepare} && exec "$@"', "sh", sys.executable, "-c", IN_CLUSTER]
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/run"], capture_output=True).returncode:
        pytest.skip("this user may not mount anything")
    host, port = kubernetes_server.address
    environment = {**os.environ, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
    environment.pop("KUBECONFIG", None)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "acquired\n"
        output, _ = process.communicate(renew(kubernetes_server, token) + "\n")
        assert output == "True True\n"
    kubernetes_server.delete(namespace)


# Roles


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_no_role_allows_is_named(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, token: str, verb: str
) -> None:
    user = kubernetes_server.reviewer.users[token]
    kubernetes_server.reviewer.verbs[user] = {*VERBS} - {verb}
    provider = open_url(kubernetes_server.url(namespace, token=token), clock_error=0)

    def use_all() -> None:
        provider.release(acquired(provider, REQUEST))
        # A record younger than the clock's error cannot be pruned yet.
        wait_until(lambda: provider.prune(0), what="a record that can be pruned")

    with pytest.raises(ProviderError, match=f'User "{user}" cannot {verb} resource "leases"') as caught:
        use_all()
    assert caught.value.hint == (
        f"allow the verb {verb!r} on leases of coordination.k8s.io in a Role: docs/providers/kubernetes.md"
    )


def test_doctor_accepts_a_server_that_does_not_say_what_we_may_do(
    kubernetes_server: KubernetesServer, namespace: str
) -> None:
    """This API server has no SelfSubjectAccessReview, so our rights are unknown."""
    done = run("doctor", store=kubernetes_server.url(namespace))
    assert done.exit_code == 0, done.stdout
    assert "✓ permissions: not known: the store does not say" in done.stdout
    assert "✓ round trip" in done.stdout


def test_doctor_names_the_verb(kubernetes_server: KubernetesServer, namespace: str, token: str) -> None:
    kubernetes_server.reviewer.verbs[kubernetes_server.reviewer.users[token]] = {"get"}
    done = run("doctor", store=kubernetes_server.url(namespace, token=token))
    assert done.exit_code == 1
    assert "allow the verb 'create' on leases" in done.stdout
