"""Finds the proxy for a URL in the environment, by the rules of curl and kubectl.

httpx reads the same variables, but does not understand networks in ``NO_PROXY``, such as ``10.0.0.0/8``. Clusters set
them. The rules: https://everything.curl.dev/usingcurl/proxies/env.html
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies

_PORTS = {"http": 80, "https": 443}
_WITH_PORT = re.compile(r"(\[[^]]*\]|[^:]*)(?::(\d+))?")
"""A host with or without a port: ``example.com:8080``, ``[::1]:8080``."""


def proxy_of(url: str) -> str | None:
    """Return the URL of the proxy for requests to ``url``, or None if requests go directly to the host.

    Requests to this machine go directly, as with kubectl: kind and minikube run there.
    """
    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    if not proxy or is_this_machine(host) or is_excluded(host, port, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def is_this_machine(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def is_excluded(host: str, port: int, no_proxy: str) -> bool:
    """Return whether ``NO_PROXY`` names the host, a domain above it, its network, or all hosts (``*``)."""
    host, address = host.lower().rstrip("."), _address(host)
    return any(_matches(entry, host, address, port) for entry in re.split(r"[\s,]+", no_proxy.lower()) if entry)


def _matches(entry: str, host: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
    if entry == "*":
        return True
    network = _network(entry)
    if network is not None:
        return address is not None and address in network
    with_port = _WITH_PORT.fullmatch(entry)
    if with_port is None:
        return False
    name, only_port = with_port.groups()
    if only_port and int(only_port) != port:
        return False
    network = _network(name.strip("[]"))
    if network is not None:
        return address is not None and address in network
    domain = name.removeprefix("*").strip(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _network(text: str) -> IPv4Network | IPv6Network | None:
    """Return the network in ``text``, which may be a single address."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None
