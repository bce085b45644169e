"""The place of an etcd cluster and the user, from a URL."""

from __future__ import annotations

from dataclasses import dataclass, field

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.cas.cluster_urls import parse_cluster_url
from shedlock_py.providers.kit.certificates import TLS_OPTIONS, Certificates

DEFAULT_PORT = 2379
DEFAULT_PREFIX = "/shedlock/"
_FORM = "etcd://host:2379 or etcd://user:password@host1,host2,host3?ca=ca.pem"


@dataclass(frozen=True)
class Place:
    """An etcd cluster, and the keys in it.

    :ivar endpoints: the addresses of members: ``http://host:port`` or ``https://host:port``.
    :ivar prefix: start of each key. The lock's name follows.
    :ivar certificates: None without TLS.
    """

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    user: str = ""
    password: str = field(default="", repr=False)
    certificates: Certificates | None = None

    @property
    def shown(self) -> str:
        """For people, without the password."""
        return f"{self.prefix} at etcd://{','.join(endpoint.partition('://')[2] for endpoint in self.endpoints)}"

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(endpoint.partition("://")[2].rpartition(":")[0] for endpoint in self.endpoints)

    @classmethod
    def from_url(cls, url: str) -> Place:
        """:raises ConfigurationError: the URL has another form."""
        cluster = parse_cluster_url(url, "etcd", DEFAULT_PORT, (*TLS_OPTIONS, "prefix"), _FORM)
        certificates = Certificates.from_options(cluster.options)
        if cluster.path and "prefix" in cluster.options:
            raise ConfigurationError("store URL: a path is the prefix of the keys, so leave the option prefix out")
        path_prefix = f"/{cluster.path.strip('/')}/" if cluster.path else DEFAULT_PREFIX
        scheme = "http" if certificates is None else "https"
        return cls(
            tuple(f"{scheme}://{host}" for host in cluster.hosts),
            cluster.options.get("prefix") or path_prefix,
            cluster.user,
            cluster.password,
            certificates,
        )
