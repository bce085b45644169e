"""The two providers, and what the errors of etcd and httpx mean."""

from __future__ import annotations

from typing import Any

import httpx

from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.cas import CasPrograms, parse_options
from shedlock_py.providers.etcd.clients import AsyncEtcdClient, EtcdClient
from shedlock_py.providers.etcd.urls import Place
from shedlock_py.providers.etcd.wire import NOT_ETCD, EtcdError, classify
from shedlock_py.providers.kit import AsyncProgramProvider, Failure, ProgramProvider, split_options


class EtcdPrograms(CasPrograms):
    """The programs of a compare-and-swap store, and what the errors of etcd and httpx mean."""

    def classify(self, error: Exception) -> Failure:
        match error:
            case EtcdError():
                return classify(error)
            case httpx.HTTPError() | httpx.InvalidURL() | OSError():
                return Failure.CONNECTION_LOST
        return super().classify(error)

    def hint(self, error: Exception) -> str | None:
        match error:
            case EtcdError(code=code) if code == NOT_ETCD:
                return "name the client addresses of etcd, with tls=true if it has TLS; its JSON gateway must be on"
            case httpx.ConnectError():
                return "name the client addresses of members that run, and with ca= the certificates to trust"
        return super().hint(error)


class EtcdLockProvider(ProgramProvider):
    """Locks in a cluster of etcd.

    A lease that is not released is kept up to ``clock_error`` + 2 s + a round trip longer than ``lock_at_most_for``,
    because etcd's time is that of the ``Date`` header of its replies. See docs/providers/etcd.md.

    :param url: ``etcd://host:2379``, or several members with commas between; with ``user:password@`` before them, and
        with a path after them in place of ``/shedlock/``, where the locks are. Options: ``tls=true``, ``ca``, ``cert``
        and ``key`` (files), ``timeout``, ``fire_time_tolerance``, ``clock_error``.
    :param clock_error: how far the clocks of the members may differ; 1 s by default.
    :param timeout: how long an operation may take in all; 5 s by default.
    :param fire_time_tolerance: how far a fire time may lie in the future of etcd's clock; 5 minutes by default.
    :raises ConfigurationError: a URL that cannot work.
    """

    def __init__(
        self,
        url: str,
        *,
        clock_error: Duration | None = None,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        place, options = _parsed(url, clock_error, timeout, fire_time_tolerance)
        super().__init__(EtcdPrograms(**options), EtcdClient(place))


class AsyncEtcdLockProvider(AsyncProgramProvider):
    """:class:`EtcdLockProvider` for asyncio. It may be used from several event loops."""

    def __init__(
        self,
        url: str,
        *,
        clock_error: Duration | None = None,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        place, options = _parsed(url, clock_error, timeout, fire_time_tolerance)
        super().__init__(EtcdPrograms(**options), AsyncEtcdClient(place))


def _parsed(
    url: str, clock_error: Duration | None, timeout: Duration | None, tolerance: Duration | None
) -> tuple[Place, dict[str, Any]]:
    """The cluster, and the options of its programs."""
    if split_options(url, ("history",))[1]:
        raise ConfigurationError("etcd keeps no run history: leave history= out of the URL")
    url, options = parse_options(url, clock_error, timeout, tolerance)
    place = Place.from_url(url)
    return place, {**options, "passwords": (place.password,)}
