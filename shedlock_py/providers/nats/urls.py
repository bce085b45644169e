"""The place of a bucket and the user, from a URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.cas.cluster_urls import ClusterUrl, parse_cluster_url
from shedlock_py.providers.kit.certificates import TLS_OPTIONS, Certificates, file_errors

_FORM = "nats://host:4222/bucket or nats://user:password@host1,host2,host3/bucket?ca=ca.pem"


@dataclass(frozen=True)
class Place:
    """A bucket of a NATS cluster.

    :ivar certificates: None without TLS.
    :ivar replicas: how many servers keep a bucket that ``create_schema`` makes.
    """

    cluster: ClusterUrl
    bucket: str
    certificates: Certificates | None
    replicas: int

    @property
    def shown(self) -> str:
        """For people, without the password or token."""
        return f"nats://{','.join(self.cluster.hosts)}/{self.bucket}"

    @classmethod
    def from_url(cls, url: str) -> Place:
        """:raises ConfigurationError: the URL has another form."""
        cluster = parse_cluster_url(url, "nats", 4222, (*TLS_OPTIONS, "credentials", "replicas"), _FORM)
        bucket = cluster.path.removesuffix("/") or "shedlock"
        if not re.fullmatch("[A-Za-z0-9_-]+", bucket):
            raise ConfigurationError(f"store URL: {bucket!r}: the name of a bucket has only letters, digits, _ and -")
        replicas = cluster.options.get("replicas", "3" if len(cluster.hosts) > 2 else "1")
        if replicas not in {"1", "2", "3", "4", "5"}:
            raise ConfigurationError(f"store URL: replicas={replicas!r} is not a number from 1 to 5")
        return cls(cluster, bucket, Certificates.from_options(cluster.options), int(replicas))

    def credentials(self) -> str:
        """Return the content of the file with the JWT and the key of a user, or "".

        :raises ConfigurationError: the file cannot be read, or has other content.
        """
        path = self.cluster.options.get("credentials")
        if not path:
            return ""
        with file_errors(f"credentials={path!r}"):
            text = Path(path).read_text("utf-8", "replace")
        if "BEGIN NATS USER JWT" not in text or "BEGIN USER NKEY SEED" not in text:  # nats-py would read on for ever
            raise ConfigurationError(f"store URL: credentials={path!r}: not a file of NATS credentials")
        return text
