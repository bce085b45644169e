"""Redis URLs: their options, and messages without the password."""

from __future__ import annotations

import codecs
import re
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote

from redis import RedisError

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.kit import Masking, is_secret_option, split_options

# In a URL, redis-py accepts every option of its constructors, even objects. Then it fails when it connects.
_OPTIONS = re.compile(
    r"db|username|password|client_name|lib_name|lib_version|protocol|health_check_interval|"
    r"decode_responses|legacy_responses|encoding|encoding_errors|retry_on_timeout|"
    r"socket_timeout|socket_connect_timeout|socket_keepalive|socket_read_size|ssl_\w+"
)


def parse_url(url: str, pool_class: Any, retry: object) -> tuple[Any, str | None]:
    """Return a redis-py pool for ``url``, with connections without hidden retries, and ``max_connections``.

    :raises ConfigurationError: the URL cannot work.
    """
    url, in_url = split_options(url, ("max_connections",))
    url = re.sub("^valkey(s?)://", r"redis\1://", url)
    size = in_url.get("max_connections")
    try:
        _check(url)
        pool = pool_class.from_url(url, retry=retry, protocol=2)  # no HELLO, which Redis 5 lacks
        options = pool.connection_kwargs
        if url.startswith("rediss:") and options.get("ssl_cert_reqs") != "none":
            options.setdefault("ssl_check_hostname", True)  # redis-py's default since version 6
        for name in ("socket_timeout", "socket_connect_timeout"):
            if not (options.get(name) or 0) >= 0:  # also refuses NaN
                raise ValueError(f"{name} is a number of seconds")
        codecs.lookup(options.get("encoding") or "utf-8")
        if options.get("socket_read_size", 1) < 1:
            raise ValueError("socket_read_size is a positive whole number")
        pool.connection_class(**options)  # reports an unknown option now, not at first use
        if url.startswith("unix:") and not options.get("path"):
            raise ValueError("no path of a socket")
        if size is not None and not (size.isdecimal() and int(size)):
            raise ValueError("max_connections is a positive whole number")
    except (ValueError, TypeError, LookupError, RedisError) as error:
        raise ConfigurationError(f"bad Redis URL {shown(url)}: {_redacted(url, str(error))}") from None
    return pool, size


def shown(url: str) -> str:
    """Return ``url`` without password and options."""
    scheme, _, rest = url.partition("://")
    place = "…" if _is_ambiguous(url) else rest.partition("?")[0].partition("#")[0].rpartition("@")[2]
    return f"{scheme}://{place}"


def _check(url: str) -> None:
    """Refuse options that redis-py would ignore, or report only when it connects."""
    if _is_socket_with_host(url):
        raise ValueError("a socket has no host")
    if "#" in url:
        raise ValueError("a '#' in a password is written %23")
    rest, _, query = url.partition("?")
    if re.match("rediss?://[^/]*/.*[^0-9/]", rest):
        raise ValueError("the database is a number")
    for name in parse_qs(query, keep_blank_values=True):
        if not _OPTIONS.fullmatch(name):
            raise ValueError(f"{name!r} is not an option that a URL can have")


def _authority(url: str) -> str:
    return re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0]


def _is_socket_with_host(url: str) -> bool:
    return url.startswith("unix:") and bool(_authority(url)) and "@" not in _authority(url)


def _is_ambiguous(url: str) -> bool:
    """Return whether the apparent host may be the start of a password."""
    return _is_socket_with_host(url) or "@" in url.partition("://")[2][len(_authority(url)) :]


def _redacted(url: str, message: str) -> str:
    """Return a message of redis-py without secrets. It may repeat the URL, or a part of the password as a port."""
    if _is_ambiguous(url):
        advice = "in a password, write %2F for /, %3F for ?, %23 for #, %40 for @"
        return f"a socket has no host: unix:///path; {advice}" if _is_socket_with_host(url) else advice
    userinfo, _, place = _authority(url).rpartition("@")
    user, _, password = userinfo.partition(":")
    options = parse_qsl(url.partition("?")[2])
    secrets = [value for name, value in options if is_secret_option(name)]
    return Masking([password, unquote(password), *secrets], [user, place, *place.split(":")]).masked(message)
