"""Where the API server is and who asks: a service account, or a kubeconfig.

The official client reads both, and starts plugins. It does not carry the requests: sync and async it has two HTTP
stacks, which retry by themselves, and whose time limits are for one read each.
"""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes.config
from kubernetes.client import Configuration

from shedlock_py.errors import ConfigurationError
from shedlock_py.events import logger
from shedlock_py.model.text import one_line
from shedlock_py.providers.cas.options import split_query
from shedlock_py.providers.kit import NotSent
from shedlock_py.providers.kubernetes.names import is_label
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.threads import WorkerPool

config: Any = kubernetes.config  # some releases have a part of the annotations only
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
FRESH_SECONDS = 60.0
"""A token may be replaced: Kubernetes puts a new one into a pod's file, and a plugin returns one for some minutes."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_OPTIONS = ("context", "kubeconfig")
_FORM = "kubernetes://namespace or kubernetes://namespace?context=name&kubeconfig=path"


@dataclass(frozen=True)
class Place:
    """A namespace of a cluster.

    :ivar namespace: empty: that of the service account, or of the context.
    :ivar kubeconfig: a file; None: as kubectl finds it.
    """

    namespace: str = ""
    context: str | None = None
    kubeconfig: str | None = None

    @property
    def shown(self) -> str:
        """For people to read."""
        return f"kubernetes://{self.namespace}" + (f"?context={self.context}" if self.context else "")

    @classmethod
    def from_url(cls, url: str) -> Place:
        """:raises ConfigurationError: it is no such URL."""
        namespace, options = split_query(url, "kubernetes", _OPTIONS, _FORM)
        namespace = namespace.removesuffix("/")
        if namespace and not is_label(namespace):
            raise ConfigurationError(f"store URL: no name of a namespace is there; the form is {_FORM}")
        return cls(namespace, options.get("context"), options.get("kubeconfig"))


@contextmanager
def _configuration_errors() -> Iterator[None]:
    """Translate the many kinds of errors that the official client raises for a file that is missing or odd."""
    try:
        yield
    except (config.ConfigException, OSError, LookupError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
            raise NotSent from error  # files are closed again, and then this one can be opened
        text = one_line(error)
        raise ConfigurationError(f"no access to Kubernetes is configured: {text:.300}") from error


class Access:
    """What was read from a kubeconfig, or from the files of a service account. Making one may take seconds.

    :raises ConfigurationError: there is no such file, or it cannot work.
    """

    def __init__(self, place: Place) -> None:
        self._configuration = Configuration()
        self._configuration.proxy = None  # of the environment: see proxies.py
        path = place.kubeconfig or os.environ.get("KUBECONFIG")
        with _configuration_errors():
            if path or place.context or not os.environ.get("KUBERNETES_SERVICE_HOST"):
                self.namespace = place.namespace or _namespace_of_context(path, place.context)
                config.load_kube_config(path, place.context, self._configuration, persist_config=False)
            else:
                self.namespace = place.namespace or NAMESPACE_FILE.read_text().strip()
                config.load_incluster_config(self._configuration)
            self.server: str = self._configuration.host.rstrip("/")
            self.tls = self._tls()
            self.connection = self._connection()
        self.proxy: str | None = self._configuration.proxy
        name: str | None = self._configuration.tls_server_name
        self.extensions = {"sni_hostname": name} if name else {}
        """For requests of httpx."""
        self.headers: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the token again. It may start a plugin, which may hang: so the next refresh counts from now."""
        self._read_at = monotonic()
        with _configuration_errors():
            settings: Any = self._configuration.auth_settings().get("BearerToken")
        if settings:  # of a plugin that fails, the official client only logs the error
            self.headers = {"Authorization": settings["value"]}

    def refresh_in(self, workers: WorkerPool) -> None:
        """Read the token again in another thread. Requests use the old token until the server refuses it."""
        self._read_at = monotonic()
        workers.submit(self._refresh_quietly)

    def _refresh_quietly(self) -> None:
        try:
            self.refresh()
        except Exception as error:
            logger.warning("the token of Kubernetes is not refreshed, the old one is used: %s", error)

    @property
    def is_anonymous(self) -> bool:
        """Whether requests have no credentials: neither a token nor a certificate."""
        return not self.headers and not self._configuration.cert_file

    @property
    def is_fresh(self) -> bool:
        return monotonic() - self._read_at < FRESH_SECONDS

    def _tls(self) -> ssl.SSLContext | bool:
        config = self._configuration
        if not self.server.startswith("https://"):
            return False
        context = ssl.create_default_context(cafile=config.ssl_ca_cert)
        if not config.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if config.cert_file:
            context.load_cert_chain(config.cert_file, config.key_file)
        return context

    def _connection(self) -> tuple[object, ...]:
        """What a connection is made with. While it stays the same, the connections that are open can be used on."""
        config = self._configuration
        paths = (config.ssl_ca_cert, config.cert_file, config.key_file)
        files = (Path(path).read_bytes() if path else None for path in paths)
        return self.server, config.proxy, config.tls_server_name, config.verify_ssl, *files


def _namespace_of_context(path: str | None, name: str | None) -> str:
    contexts, active = config.list_kube_config_contexts(path)
    found = next((context for context in contexts if context["name"] == name), None) if name else active
    namespace: str = ((found or {}).get("context") or {}).get("namespace") or "default"
    return namespace
