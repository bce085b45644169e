"""The two providers, and what the errors of Kubernetes and httpx mean."""

from __future__ import annotations

import json
from typing import Any

import httpx

from shedlock_py.durations import Duration
from shedlock_py.providers.cas import DEFAULT_CLOCK_ERROR, CasPrograms
from shedlock_py.providers.kit import AsyncProgramProvider, Failure, ProgramProvider, parse_limits, split_options
from shedlock_py.providers.kubernetes.access import Place
from shedlock_py.providers.kubernetes.clients import AsyncKubernetesClient, KubernetesClient
from shedlock_py.providers.kubernetes.wire import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, KubernetesError, classify

_OPTIONS = ("timeout", "fire_time_tolerance", "clock_error")
_HINTS = {
    UNAUTHORIZED: "the API server does not know this token or certificate: see `kubectl auth whoami`",
    NOT_FOUND: "create the namespace, or name another one in the URL",
}


class KubernetesPrograms(CasPrograms):
    """The programs of a compare-and-swap store, and what the errors of Kubernetes and httpx mean."""

    def classify(self, error: Exception) -> Failure:
        match error:
            case KubernetesError():
                return classify(error)
            case httpx.HTTPError() | httpx.InvalidURL() | OSError():
                return Failure.CONNECTION_LOST
            case json.JSONDecodeError():
                return Failure.UNREACHABLE  # of something between: a proxy, for example
            case ValueError() | LookupError() | TypeError():
                return Failure.REFUSED  # a record with odd values
        return Failure.NOT_A_STORE_ERROR

    def hint(self, error: Exception) -> str | None:
        if not isinstance(error, KubernetesError):
            return None
        if error.status == FORBIDDEN:
            return (
                f"a Role must allow the verb {error.verb!r} on leases of coordination.k8s.io: see the provider's page"
            )
        return _HINTS.get(error.status)


class KubernetesLockProvider(ProgramProvider):
    """Locks as Leases of Kubernetes.

    A lease that is not released is kept up to ``clock_error`` + 1 s + a round trip longer than ``lock_at_most_for``,
    because the time is that of the ``Date`` header of the API server's replies. See docs/providers/kubernetes.md.

    :param url: ``kubernetes://namespace``; without a name, the namespace of the service account or of the context.
        Options: ``context``, ``kubeconfig`` (a file), ``timeout``, ``fire_time_tolerance``, ``clock_error``.
    :param clock_error: how far the clocks of the API servers may differ; 1 s by default.
    :param timeout: how long an operation may take in all; 5 s by default.
    :param fire_time_tolerance: how far a fire time may lie in the future of the server's clock; 5 minutes by default.
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
        programs = KubernetesPrograms(**options)
        super().__init__(programs, KubernetesClient(place, programs.clock_error))


class AsyncKubernetesLockProvider(AsyncProgramProvider):
    """:class:`KubernetesLockProvider` for asyncio. It may be used from several event loops."""

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
    """The namespace, and the options of its programs."""
    url, in_url = split_options(url, _OPTIONS)
    place = Place.from_url(url)
    if clock_error is None:
        clock_error = in_url.get("clock_error", DEFAULT_CLOCK_ERROR)
    limits = parse_limits(timeout, tolerance, in_url, is_managed=True)
    limits.pop("history", None)
    return place, {**limits, "clock_error": clock_error}
