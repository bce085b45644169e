"""The place of an etcd cluster and the user, from a URL."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.booleans import parse_boolean
from shedlock_py.providers.cas.options import split_query

DEFAULT_PORT = 2379
DEFAULT_PREFIX = "/shedlock/"
_OPTIONS = ("ca", "cert", "key", "tls", "prefix")
_FORM = "etcd://host:2379 or etcd://user:password@host1,host2,host3?ca=ca.pem"


@dataclass(frozen=True)
class Place:
    """An etcd cluster, and the keys in it.

    :ivar endpoints: the addresses of members: ``http://host:port`` or ``https://host:port``.
    :ivar prefix: start of each key. The lock's name follows.
    :ivar ca: a file with the certificates to trust. None for the system's certificates.
    """

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    user: str = ""
    password: str = field(default="", repr=False)
    is_tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

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
        if "@" in url.partition("?")[2]:  # the text before the question mark may be a part of a password, too
            raise ConfigurationError("store URL: in a password, write %3F for ?; in an option, write %40 for @")
        location, options = split_query(url, "etcd", _OPTIONS, _FORM)
        userinfo, _, hosts = location.rpartition("@")
        hosts, _, path = hosts.partition("/")
        if not hosts:
            raise ConfigurationError(f"store URL: not of the form {_FORM}")
        is_tls = _parse_tls(options)
        user, _, password = userinfo.partition(":")
        if path and "prefix" in options:
            raise ConfigurationError("store URL: a path is the prefix of the keys, so leave the option prefix out")
        prefix = options.get("prefix") or (f"/{unquote(path).strip('/')}/" if path else DEFAULT_PREFIX)
        return cls(
            tuple(_endpoint(host, is_tls) for host in hosts.split(",")),
            prefix,
            unquote(user),
            unquote(password),
            is_tls,
            options.get("ca"),
            options.get("cert"),
            options.get("key"),
        )


def _parse_tls(options: dict[str, str]) -> bool:
    is_tls = parse_boolean(options["tls"], "store URL: tls") if "tls" in options else None
    has_certificates = any(name in options for name in ("ca", "cert", "key"))
    if "key" in options and "cert" not in options:
        raise ConfigurationError("store URL: key is the key of a certificate: name that as well, with cert")
    if is_tls is False and has_certificates:
        raise ConfigurationError("store URL: tls=false, but there are certificates in ca, cert or key")
    return is_tls or has_certificates


def _endpoint(host: str, is_tls: bool) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or (host.startswith("[") and host.endswith("]")):
        name, port = host, str(DEFAULT_PORT)
    is_ipv6 = name.startswith("[") and name.endswith("]")
    is_name = bool(name) and (is_ipv6 or not any(character in ":[] " for character in name))
    if not is_name or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ConfigurationError(f"store URL: {host!r} is not host:port")
    return f"{'https' if is_tls else 'http'}://{name}:{port}"
