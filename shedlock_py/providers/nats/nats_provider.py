"""The sync and the async provider, and the meaning of errors from NATS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Unpack

import nats

from shedlock_py.providers.cas import CasPrograms, CasReply, parse_options
from shedlock_py.providers.cas.options import CasOptions
from shedlock_py.providers.kit import AsyncProgramProvider, Check, Failure, ProgramProvider
from shedlock_py.providers.kit.shared_client import BlockingClient, ConnectionLost, SharedClient
from shedlock_py.providers.nats.nats_clients import connect
from shedlock_py.providers.nats.urls import Place
from shedlock_py.providers.nats.wire import BucketInfo, Command, CreateBucket, NatsError
from shedlock_py.runtime.program import Program


class NatsPrograms(CasPrograms):
    """The programs of a compare-and-swap store, with errors of NATS."""

    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(**options)
        self._replicas = place.replicas

    def create_schema(self) -> Program[Command, CasReply, None]:
        yield CreateBucket(self._replicas)

    def checks(self) -> Program[Command, CasReply, list[Check]]:
        info = (yield BucketInfo()).value
        return list(_checks(info["config"]))

    def classify(self, error: Exception) -> Failure:
        match error:
            case NatsError():
                return error.failure
            case ConnectionLost() | nats.errors.Error() | OSError():
                return Failure.CONNECTION_LOST
        return super().classify(error)

    def hint(self, error: Exception) -> str | None:
        match error:
            case NatsError():
                return error.hint
            case nats.errors.SecureConnWantedError():
                return "the server does not offer TLS: leave tls, ca and cert out, or turn TLS on in the server"
        return super().hint(error)


def _checks(config: Mapping[str, Any]) -> Iterator[Check]:
    if config.get("max_age"):
        hint = "make the bucket without ttl: nats stream edit KV_bucket --max-age=0"
        yield Check("bucket", "failed", "its ttl deletes the records of held locks", hint)
    elif config.get("storage") != "file":
        yield Check("bucket", "warning", "its storage is memory: a restart of its servers frees all locks")
    else:
        yield Check("bucket", "ok", "file storage")
    replicas = config.get("num_replicas", 1)
    if replicas % 2:
        yield Check("replicas", "ok", str(replicas))
    else:
        yield Check("replicas", "warning", f"{replicas}: one fewer tolerates as many failures", "use 3 or 5 replicas")


class NatsLockProvider(ProgramProvider):
    """Locks in a key-value bucket of NATS JetStream, which :meth:`create_schema` creates.

    A lease that is not released is kept up to ``clock_error`` + a round trip longer than ``lock_at_most_for``. See
    docs/providers/nats.md.

    :param url: ``nats://host:4222/bucket``, or several servers with commas between them. ``user:password@`` or
        ``token@`` may precede them. Options: ``credentials`` (a file); ``tls=true``, ``ca``, ``cert`` and ``key``
        (files); ``replicas`` of a new bucket; ``timeout``, ``fire_time_tolerance``, ``clock_error``.
    :param clock_error: the largest difference between the servers' clocks (default: 1 s).
    :param timeout: the time limit of a whole operation (default: 5 s).
    :param fire_time_tolerance: how far a fire time may be ahead of NATS's clock (default: 5 minutes).
    :raises ConfigurationError: the URL cannot work.
    """

    def __init__(self, url: str, **options: Unpack[CasOptions]) -> None:
        place, programs = _parsed(url, options)
        super().__init__(programs, BlockingClient(partial(_client, place), place.shown))


class AsyncNatsLockProvider(AsyncProgramProvider):
    """:class:`NatsLockProvider` for asyncio. Several event loops may use it."""

    def __init__(self, url: str, **options: Unpack[CasOptions]) -> None:
        place, programs = _parsed(url, options)
        super().__init__(programs, _client(place))


def _client(place: Place) -> SharedClient:
    return SharedClient(partial(connect, place), place.shown)


def _parsed(url: str, given: CasOptions) -> tuple[Place, NatsPrograms]:
    url, options = parse_options(url, **given)
    place = Place.from_url(url)
    user, password = place.cluster.user, place.cluster.password
    secret, names = (password, (user, *place.cluster.names)) if password else (user, place.cluster.names)
    return place, NatsPrograms(place, passwords=(secret,), names=names, **options)
