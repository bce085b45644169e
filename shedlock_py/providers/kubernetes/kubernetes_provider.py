"""The sync and the async provider, and the meaning of errors from Kubernetes and httpx."""

from __future__ import annotations

from typing import Any

import httpx

from shedlock_py.model.durations import Duration
from shedlock_py.providers.cas import CasPrograms, CasReply, parse_options
from shedlock_py.providers.kit import AsyncProgramProvider, Check, Failure, ProgramProvider
from shedlock_py.providers.kubernetes.access import Place
from shedlock_py.providers.kubernetes.kubernetes_clients import AsyncKubernetesClient, KubernetesClient
from shedlock_py.providers.kubernetes.wire import VERBS, AccessReview, Command
from shedlock_py.runtime.program import Program


class KubernetesPrograms(CasPrograms):
    """The programs of a compare-and-swap store, with errors of Kubernetes and httpx."""

    def checks(self) -> Program[Command, CasReply, list[Check]]:
        found: dict[str, bool | None] = {}
        for verb in VERBS:
            found[verb] = (yield AccessReview(verb)).value
        missing = [verb for verb, is_allowed in found.items() if is_allowed is False]
        if missing:
            hint = "allow it in the Role: see docs/providers/kubernetes.md; list and delete are for operators"
            is_needed = not {"get", "create", "update"}.isdisjoint(missing)
            message = f"not allowed: {', '.join(missing)}"
            return [Check("permissions", "failed" if is_needed else "warning", message, hint)]
        known = "not known: the store does not say" if None in found.values() else ", ".join(found)
        return [Check("permissions", "ok", known)]

    def classify(self, error: Exception) -> Failure:
        is_of_network = isinstance(error, httpx.HTTPError | httpx.InvalidURL | OSError)
        return Failure.CONNECTION_LOST if is_of_network else super().classify(error)


class KubernetesLockProvider(ProgramProvider):
    """Locks as Kubernetes Leases.

    A lease that is not released is kept up to ``clock_error`` + 2 s + a round trip longer than ``lock_at_most_for``,
    because the time comes from the ``Date`` header of the API server's replies. See docs/providers/kubernetes.md.

    :param url: ``kubernetes://namespace``. Without a name, it is the namespace of the service account or of the
        context. Options: ``context``, ``kubeconfig`` (a file), ``timeout``, ``fire_time_tolerance``, ``clock_error``.
    :param clock_error: the largest difference between the API servers' clocks (default: 1 s).
    :param timeout: the time limit of a whole operation (default: 5 s).
    :param fire_time_tolerance: how far a fire time may be ahead of the server's clock (default: 5 minutes).
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
        programs = KubernetesPrograms(**options)
        super().__init__(programs, KubernetesClient(place, programs.clock_error))


class AsyncKubernetesLockProvider(AsyncProgramProvider):
    """:class:`KubernetesLockProvider` for asyncio. Several event loops may use it."""

    def __init__(
        self,
        url: str,
        *,
        clock_error: Duration | None = None,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        place, options = _parsed(url, clock_error, timeout, fire_time_tolerance)
        programs = KubernetesPrograms(**options)
        super().__init__(programs, AsyncKubernetesClient(place, programs.clock_error))


def _parsed(
    url: str, clock_error: Duration | None, timeout: Duration | None, tolerance: Duration | None
) -> tuple[Place, dict[str, Any]]:
    url, options = parse_options(url, clock_error, timeout, tolerance)
    return Place.from_url(url), options
