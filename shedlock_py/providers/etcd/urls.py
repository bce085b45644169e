"""The place of an etcd cluster and the user, from a URL."""

from __future__ import annotations

from dataclasses import dataclass

from shedlock_py.providers.cas.cluster_urls import ClusterUrl, parse_cluster_url
from shedlock_py.providers.kit.certificates import TLS_OPTIONS, Certificates

_FORM = "etcd://host:2379 or etcd://user:password@host1,host2,host3?ca=ca.pem"


@dataclass(frozen=True)
class Place:
    """An etcd cluster, and the keys in it.

    :ivar prefix: start of each key. The lock's name follows.
    :ivar certificates: None without TLS.
    """

    cluster: ClusterUrl
    prefix: str
    certificates: Certificates | None

    @property
    def shown(self) -> str:
        """For people, without the password."""
        return f"{self.prefix} at etcd://{','.join(self.cluster.hosts)}"

    @property
    def endpoints(self) -> list[str]:
        """The addresses of the members: ``http://host:port`` or ``https://host:port``."""
        scheme = "http" if self.certificates is None else "https"
        return [f"{scheme}://{host}" for host in self.cluster.hosts]

    @classmethod
    def from_url(cls, url: str) -> Place:
        """:raises ConfigurationError: the URL has another form."""
        cluster = parse_cluster_url(url, "etcd", 2379, TLS_OPTIONS, _FORM)
        prefix = f"/{cluster.path.strip('/')}/" if cluster.path else "/shedlock/"
        return cls(cluster, prefix, Certificates.from_options(cluster.options))
