"""The sync and the async provider for a quorum."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import redis
import redis.asyncio

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import Duration
from shedlock_py.model.text import clean_url
from shedlock_py.providers.kit import OPTIONS, AsyncProgramProvider, Limits, ProgramProvider, parse_limits
from shedlock_py.providers.redis.quorum.broadcast import AsyncQuorumClient, QuorumClient
from shedlock_py.providers.redis.quorum.quorum_programs import QuorumPrograms
from shedlock_py.providers.redis.redis_clients import open_async_client, open_client
from shedlock_py.providers.redis.urls import shown

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+(%[^\]]+)?\]|[^\s:@\[\]#]+)(:[0-9]{1,5})?")


class RedisQuorumLockProvider(ProgramProvider):
    """Locks on the majority of 3 or 5 independent Redis masters (Redlock). It works while a minority is down.

    Call :meth:`start_new_quorum` once, by hand, when the servers are new. A server that was restarted or emptied may
    have forgotten a lease, so it does not vote for ``longest_lease``. The others continue without it.

    :param clients_or_urls: a client or a URL for each server, or one URL for all servers:
        ``redis+quorum://user:password@host1:6379,host2:6379,host3:6379/0?longest_lease=2h``.
    :param key_prefix: start of the keys of the lock records.
    :param longest_lease: the longest allowed lease, and how long a restarted server does not vote. Use the same value
        everywhere for this quorum.
    :param timeout: the time limit of a whole operation (default: 5 s). For URLs; in the URL for all: ``?timeout=3s``.
        The application's clients have their own limits.
    :param fire_time_tolerance: how far a fire time may be ahead of the servers' clocks (default: 5 minutes). In the URL
        for all: ``?fire_time_tolerance=10m``.
    :param history: the number of runs to keep for each lock name, for :meth:`runs`. In the URL for all:
        ``?history=50``.
    :raises ConfigurationError: an even number of servers, a server twice, a cluster, or a bad URL or option.
    """

    programs: QuorumPrograms

    def __init__(
        self,
        clients_or_urls: Sequence[redis.Redis | str] | str,
        *,
        key_prefix: str = "shedlock",
        longest_lease: Duration = "1h",
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
        history: int | None = None,
    ) -> None:
        servers, longest_lease, limits = _parse(clients_or_urls, longest_lease, timeout, fire_time_tolerance, history)
        clients = [open_client(server, limits["timeout"]) for server in servers]
        programs = QuorumPrograms(len(clients), key_prefix, longest_lease, **limits)
        super().__init__(programs, QuorumClient(clients, key_prefix))

    def start_new_quorum(self) -> None:
        """Declare this quorum new, so that its servers vote at once. No lock on it may be held, and all must be up.

        Otherwise they vote after ``longest_lease``. A quorum in use does not change. But servers that have *all* lost
        their data look new. So an operator must call this once, and an application must not call it at its start.
        """
        return self._drive(self.programs.start_new_quorum(), "start_new_quorum")


class AsyncRedisQuorumLockProvider(AsyncProgramProvider):
    """:class:`RedisQuorumLockProvider` for asyncio, with clients of ``redis.asyncio`` or URLs."""

    programs: QuorumPrograms

    def __init__(
        self,
        clients_or_urls: Sequence[redis.asyncio.Redis | str] | str,
        *,
        key_prefix: str = "shedlock",
        longest_lease: Duration = "1h",
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
        history: int | None = None,
    ) -> None:
        servers, longest_lease, limits = _parse(clients_or_urls, longest_lease, timeout, fire_time_tolerance, history)
        clients = [open_async_client(server, limits["timeout"]) for server in servers]
        programs = QuorumPrograms(len(clients), key_prefix, longest_lease, **limits)
        super().__init__(programs, AsyncQuorumClient(clients, key_prefix))

    async def start_new_quorum(self) -> None:
        """See :meth:`RedisQuorumLockProvider.start_new_quorum`."""
        return await self._drive(self.programs.start_new_quorum(), "start_new_quorum")


def _parse(
    clients_or_urls: Any,
    longest_lease: Duration,
    timeout: Duration | None,
    tolerance: Duration | None,
    history: int | None,
) -> tuple[list[Any], Duration, Limits]:
    """Return each server's client or URL, and the options, also from a URL for all."""
    servers, in_url = split_servers(clients_or_urls)
    is_managed = any(isinstance(server, str) for server in servers)
    limits = parse_limits(timeout, tolerance, in_url, is_managed=is_managed, history=history)
    return servers, in_url.get("longest_lease", longest_lease), limits


def split_servers(clients_or_urls: Any) -> tuple[list[Any], dict[str, str]]:
    """Return the servers, and the provider's options in a URL for all."""
    if not isinstance(clients_or_urls, str):
        if not isinstance(clients_or_urls, Sequence):  # a single client is iterable: over the keys in its Redis
            kind = type(clients_or_urls).__name__
            raise ConfigurationError(f"a quorum needs a list of clients or URLs, one for each server, not {kind}")
        return list(clients_or_urls), {}
    scheme, separator, rest = clean_url(clients_or_urls).partition("+quorum://")
    if not separator or scheme not in ("redis", "rediss"):
        example = "redis+quorum://host1,host2,host3"
        raise ConfigurationError(f"the URL of a quorum looks like {example}, not like {shown(clients_or_urls)}")
    servers, _, query = rest.partition("?")
    servers, slash, database = servers.partition("/")
    user, at, hosts = servers.rpartition("@")
    places = [place.strip() for place in hosts.split(",")]
    if "#" in user or "@" in query or not all(map(_PLACE.fullmatch, places)):
        # The message does not repeat the URL, because it may be a part of a password.
        raise ConfigurationError(
            "a bad URL of a quorum: write each server as host, host:port or [IPv6]:port, and special characters of a "
            "password percent-encoded"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    in_url = {name: options.pop(name) for name in ("longest_lease", *OPTIONS) if name in options}
    ending = f"{slash}{database}" + (f"?{urlencode(options)}" if options else "")
    return [f"{scheme}://{user}{at}{place}{ending}" for place in places], in_url
