"""URLs that name several servers of a cluster: ``scheme://user:password@host1,host2:port/path?option=value``."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.cas.options import split_query


@dataclass(frozen=True)
class ClusterUrl:
    """A parsed URL.

    :ivar hosts: ``host:port`` of each server. An IPv6 address is in brackets.
    :ivar path: without the slash after the hosts, and decoded.
    """

    hosts: tuple[str, ...]
    path: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    options: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts without ports."""
        return tuple(host.rpartition(":")[0] for host in self.hosts)


def parse_cluster_url(url: str, scheme: str, port: int, names: tuple[str, ...], form: str) -> ClusterUrl:
    """Parse a URL from :func:`parse_options`.

    :param port: the default port.
    :param names: names of the store's own options.
    :param form: an example of such a URL, for messages.
    :raises ConfigurationError: the URL has another form or an unknown option.
    """
    if "@" in url.partition("?")[2]:  # the text before the question mark may be a part of a password, too
        raise ConfigurationError("store URL: in a password, write %3F for ?; in an option, write %40 for @")
    location, options = split_query(url, scheme, names, form)
    userinfo, _, hosts = location.rpartition("@")
    hosts, _, path = hosts.partition("/")
    if not hosts:
        raise ConfigurationError(f"store URL: not of the form {form}")
    user, _, password = userinfo.partition(":")
    return ClusterUrl(
        tuple(_with_port(host, port) for host in hosts.split(",")),
        unquote(path),
        unquote(user),
        unquote(password),
        options,
    )


def _with_port(host: str, default: int) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or (host.startswith("[") and host.endswith("]")):
        name, port = host, str(default)
    is_ipv6 = name.startswith("[") and name.endswith("]")
    is_name = bool(name) and (is_ipv6 or not any(character in ":[] " for character in name))
    if not is_name or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ConfigurationError(f"store URL: {host!r} is not host:port")
    return f"{name}:{port}"
