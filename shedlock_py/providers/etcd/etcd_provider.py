"""The sync and the async provider, and the meaning of errors from etcd and httpx."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx

from shedlock_py.errors import ProviderError
from shedlock_py.model.durations import Duration
from shedlock_py.providers.cas import CasPrograms, CasReply, parse_options
from shedlock_py.providers.etcd.etcd_clients import AsyncEtcdClient, EtcdClient
from shedlock_py.providers.etcd.urls import Place
from shedlock_py.providers.etcd.wire import ALARMS, MEMBERS, STATUS, Command
from shedlock_py.providers.kit import AsyncProgramProvider, Check, Failure, ProgramProvider, not_known
from shedlock_py.runtime.program import Program


class EtcdPrograms(CasPrograms):
    """The programs of a compare-and-swap store, with errors of etcd and httpx."""

    def checks(self) -> Program[Command, CasReply, list[Check]]:
        found: list[Check] = []
        for check, command, read in _CHECKS:
            try:
                reply = yield command
            except ProviderError as error:
                found.append(not_known(self, check, error))
            else:
                found += read(reply.value)
        return found

    def classify(self, error: Exception) -> Failure:
        is_of_network = isinstance(error, httpx.HTTPError | httpx.InvalidURL | OSError)
        return Failure.CONNECTION_LOST if is_of_network else super().classify(error)

    def hint(self, error: Exception) -> str | None:
        if isinstance(error, httpx.ConnectError):
            return "name the client addresses of members that run, and with ca= the certificates to trust"
        return super().hint(error)


_EVEN = "an even number of members tolerates no more failures than one member fewer: use 3 or 5"
_MINIMUM = {(3, 4): 22, (3, 5): 6}
"""The first patch of a series that etcd's authors recommend for production: docs/providers/etcd.md."""


def _version(status: Mapping[str, Any]) -> list[Check]:
    version = str(status.get("version", ""))
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", version)
    if numbers is None:
        return [Check("version", "ok", f"not known: {version!r}")]
    major, minor, patch = map(int, numbers.groups())
    least = _MINIMUM.get((major, minor), 0)
    if patch >= least:
        return [Check("version", "ok", version)]
    message = f"{version} has a known data inconsistency bug: two nodes can get the same lock"
    return [Check("version", "warning", message, f"upgrade to {major}.{minor}.{least} or newer")]


def _members(reply: Mapping[str, Any]) -> list[Check]:
    voters = sum(not member.get("isLearner") for member in reply.get("members", ()))
    may_lose = (voters - 1) // 2
    if voters == 1:
        return [Check("members", "ok", "1: without it, no lock is granted")]
    message = f"{voters}, and {may_lose} of them may fail"
    if voters % 2 == 0:
        return [Check("members", "warning", message, _EVEN)]
    return [Check("members", "ok", message)]


def _alarms(reply: Mapping[str, Any]) -> list[Check]:
    return [_alarm(str(alarm.get("alarm", ""))) for alarm in reply.get("alarms", ())]


def _alarm(kind: str) -> Check:
    if kind == "NOSPACE":
        hint = "compact and defragment it, then etcdctl alarm disarm: docs of etcd, Maintenance"
        return Check("alarms", "failed", "NOSPACE: the quota is used up, and etcd takes no writes", hint)
    return Check("alarms", "failed", kind, "see etcd's own documentation of this alarm")


_CHECKS = (("version", STATUS, _version), ("members", MEMBERS, _members), ("alarms", ALARMS, _alarms))


class EtcdLockProvider(ProgramProvider):
    """Locks in an etcd cluster.

    A lease that is not released is kept up to ``clock_error`` + 2 s + a round trip longer than ``lock_at_most_for``,
    because the time comes from the ``Date`` header of etcd's replies. See docs/providers/etcd.md.

    :param url: ``etcd://host:2379``, or several members with commas between them. ``user:password@`` may precede them.
        A path after them replaces ``/shedlock/``, the place of the locks. Options: ``tls=true``, ``ca``, ``cert`` and
        ``key`` (files), ``timeout``, ``fire_time_tolerance``, ``clock_error``.
    :param clock_error: the largest difference between the members' clocks (default: 1 s).
    :param timeout: the time limit of a whole operation (default: 5 s).
    :param fire_time_tolerance: how far a fire time may be ahead of etcd's clock (default: 5 minutes).
    :raises ConfigurationError: the URL cannot work.
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
    """:class:`EtcdLockProvider` for asyncio. Several event loops may use it."""

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
    url, options = parse_options(url, clock_error, timeout, tolerance)
    place = Place.from_url(url)
    cluster = place.cluster
    return place, {**options, "passwords": (cluster.password,), "names": (cluster.user, *cluster.names)}
