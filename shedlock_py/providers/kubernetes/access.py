"""The address of the API server and the user, from a service account or a kubeconfig.

The official client reads both and starts plugins. It does not send the requests: it has two HTTP stacks (sync and
async), which retry by themselves, and their time limits are only for a single read.
"""

from __future__ import annotations

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
from shedlock_py.providers.kit.certificates import NO_DESCRIPTOR
from shedlock_py.providers.kubernetes.names import is_label
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.threads import WorkerPool

config: Any = kubernetes.config  # some releases have only a part of the annotations
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
FRESH_SECONDS = 60.0
"""Kubernetes replaces the token in a pod's file, and a plugin's token is valid only for some minutes."""
_OPTIONS = ("context", "kubeconfig")
_FORM = "kubernetes://namespace or kubernetes://namespace?context=name&kubeconfig=path"


@dataclass(frozen=True)
class Place:
    """A namespace of a cluster.

    :ivar namespace: if empty, the namespace of the service account or of the context.
    :ivar kubeconfig: a file. If None, the file that kubectl would find.
    """

    namespace: str = ""
    context: str | None = None
    kubeconfig: str | None = None

    @property
    def shown(self) -> str:
        """For people."""
        return f"kubernetes://{self.namespace}" + (f"?context={self.context}" if self.context else "")

    @classmethod
    def from_url(cls, url: str) -> Place:
        """:raises ConfigurationError: the URL has another form."""
        namespace, options = split_query(url, "kubernetes", _OPTIONS, _FORM)
        namespace = namespace.removesuffix("/")
        if namespace and not is_label(namespace):
            raise ConfigurationError(f"store URL: not the name of a namespace; the form is {_FORM}")
        return cls(namespace, options.get("context"), options.get("kubeconfig"))


@contextmanager
def _configuration_errors() -> Iterator[None]:
    """Translate the various errors of the official client about files that are missing or odd."""
    try:
        yield
    except (config.ConfigException, OSError, LookupError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
            raise NotSent from error  # temporary: this file can be opened after other files are closed
        text = one_line(error)
        raise ConfigurationError(f"no access to Kubernetes is configured: {text:.300}") from error


class Access:
    """The data of a kubeconfig, or of a service account's files. Creating it may take seconds.

    :raises ConfigurationError: the file does not exist or cannot work.
    """

    def __init__(self, place: Place) -> None:
        self._configuration = Configuration()
        self._configuration.proxy = None  # ignore the environment: see proxies.py
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
        """For httpx requests."""
        self.headers: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the token again. This may start a plugin, and the plugin may hang: the next refresh counts from now."""
        self._read_at = monotonic()
        with _configuration_errors():
            settings: Any = self._configuration.auth_settings().get("BearerToken")
        if settings:  # if a plugin fails, the official client only logs the error
            self.headers = {"Authorization": settings["value"]}

    def refresh_in(self, workers: WorkerPool) -> None:
        """Read the token again in another thread. Until then, requests use the old token."""
        self._read_at = monotonic()
        workers.submit(self._refresh_quietly)

    def _refresh_quietly(self) -> None:
        try:
            self.refresh()
        except Exception as error:
            logger.warning("could not refresh the token of Kubernetes, the old token is used: %s", error)

    @property
    def is_anonymous(self) -> bool:
        """True if requests have neither a token nor a certificate."""
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
        """Return the settings of a connection. While they stay the same, open connections stay in use."""
        config = self._configuration
        paths = (config.ssl_ca_cert, config.cert_file, config.key_file)
        files = (Path(path).read_bytes() if path else None for path in paths)
        return self.server, config.proxy, config.tls_server_name, config.verify_ssl, *files


def _namespace_of_context(path: str | None, name: str | None) -> str:
    contexts, active = config.list_kube_config_contexts(path)
    found = next((context for context in contexts if context["name"] == name), None) if name else active
    namespace: str = ((found or {}).get("context") or {}).get("namespace") or "default"
    return namespace
