"""The sync and the async provider."""

from __future__ import annotations

from typing import Any, Unpack

from shedlock_py.providers.cas import CasPrograms, CasReply, parse_options
from shedlock_py.providers.cas.options import CasOptions
from shedlock_py.providers.kit import AsyncProgramProvider, Check, ProgramProvider
from shedlock_py.providers.nats.nats_clients import AsyncNatsClient, NatsClient
from shedlock_py.providers.nats.urls import Place
from shedlock_py.providers.nats.wire import Bucket, Command
from shedlock_py.runtime.program import Program


class NatsPrograms(CasPrograms):
    """The programs of a compare-and-swap store, for a bucket."""

    def create_schema(self) -> Program[Command, CasReply, None]:
        yield Bucket(is_new=True)

    def checks(self) -> Program[Command, CasReply, list[Check]]:
        config = (yield Bucket()).value["config"]
        replicas = config["num_replicas"]
        if config["max_age"]:
            return [Check("bucket", "failed", "its TTL deletes held locks", "nats stream edit KV_bucket --max-age=0")]
        if config["storage"] != "file":
            return [Check("bucket", "warning", "in memory: a restart of its servers frees all locks")]
        if replicas % 2 == 0:
            return [Check("bucket", "warning", f"{replicas} replicas survive no more than {replicas - 1} would")]
        return [Check("bucket", "ok", f"replicas: {replicas}")]


class NatsLockProvider(ProgramProvider):
    """Locks in a key-value bucket of NATS JetStream, which :meth:`create_schema` creates.

    A lease that is not released is kept up to ``clock_error`` + a round trip longer than ``lock_at_most_for``. See
    docs/providers/nats.md.

    :param url: ``nats://host:4222/bucket``, or several servers with commas between them. ``user:password@`` or
        ``token@`` may precede them. Options: ``credentials`` (a file); ``tls=true``, ``ca``, ``cert`` and ``key``
        (files); ``replicas`` of a new bucket; ``timeout``, ``fire_time_tolerance``, ``clock_error``.
    :param options: ``clock_error``, the largest difference between the servers' clocks (default: 1 s); ``timeout``, the
        time limit of a whole operation (default: 5 s); ``fire_time_tolerance``, how far a fire time may be ahead of
        NATS's clock (default: 5 minutes).
    :raises ConfigurationError: the URL cannot work.
    """

    def __init__(self, url: str, **options: Unpack[CasOptions]) -> None:
        place, programs = _parsed(url, options)
        super().__init__(programs, NatsClient(place))


class AsyncNatsLockProvider(AsyncProgramProvider):
    """:class:`NatsLockProvider` for asyncio. Several event loops may use it."""

    def __init__(self, url: str, **options: Unpack[CasOptions]) -> None:
        place, programs = _parsed(url, options)
        super().__init__(programs, AsyncNatsClient(place))


def _parsed(url: str, given: CasOptions) -> tuple[Place, NatsPrograms]:
    url, options = parse_options(url, **given)
    place = Place.from_url(url)
    user, password, names = place.cluster.user, place.cluster.password, place.cluster.names
    secret: dict[str, Any] = {"passwords": (password or user,), "names": (*names, user) if password else names}
    return place, NatsPrograms(**secret, **options)
