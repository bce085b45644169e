"""The connection of an event loop to NATS, and the exchange for each command."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import nats
from nats.aio.client import RawCredentials
from nats.aio.msg import Msg

from shedlock_py.providers.cas import CasReply, Delete, Entry, List, Read, ServerTime, Write
from shedlock_py.providers.kit import Failure, NotSent, TimedOut, seconds_left, within
from shedlock_py.providers.kit.shared_client import ConnectionLost, replies
from shedlock_py.providers.nats.urls import Place
from shedlock_py.providers.nats.wire import (
    BucketInfo,
    Command,
    CreateBucket,
    Deleted,
    NatsError,
    Request,
    Wire,
    date_of,
    reply_of,
    version_of,
)
from shedlock_py.runtime.asyncio_tools import start_task
from shedlock_py.runtime.process import monotonic

_RESOLUTION = 0.000001
_CLOSE_SECONDS = 1.0
_AT_ONCE = 100
"""How many records of a list to read at the same time."""
_NO_RESPONSE = "turn JetStream on; if it is on, the bucket does not exist, or its servers have no leader yet"
_RIGHTS = "the user may publish to $KV.bucket.> and $JS.API.STREAM.*.KV_bucket, and subscribe to _INBOX.>"


async def connect(place: Place, until: float) -> Connection:
    """Connect to one of the servers, in random order.

    :raises ConfigurationError: a file of the URL cannot be used.
    """
    hosts = random.sample(place.cluster.hosts, len(place.cluster.hosts))
    failed = []
    for number, host in enumerate(hosts):
        connection = Connection(place)
        try:
            seconds = seconds_left(until) / (len(hosts) - number)
            async with within(seconds, "a connection", sent=False):
                await connection.open(host, seconds)
            return connection
        except (nats.errors.Error, OSError, TimedOut) as error:
            reason = connection.error or error
            if "authorization" in str(reason).lower():
                raise NatsError(f"{host}: {reason}", Failure.REFUSED) from error
            failed.append(f"{host}: {reason}")
        finally:
            if not connection.is_open:
                start_task(connection.close())
    raise OSError("; ".join(failed))


class Connection:
    """A connection to one server, and the requests that wait for a reply.

    nats-py does not reconnect it, and has no buffer: otherwise it could send requests of callers that gave up.
    """

    def __init__(self, place: Place) -> None:
        self.error: Exception | None = None
        """The last error that the driver reported."""
        self._place = place
        self._wire = Wire(place.bucket)
        self._client = nats.NATS()
        self._inbox = self._client.new_inbox()
        self._numbers = itertools.count()
        self._waiting: dict[str, tuple[str, asyncio.Future[Any]]] = {}
        """For each inbox, the subject of the request, and the future of its reply: a message or an error."""
        self._ended = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._client.is_connected and not self._ended.is_set()

    async def open(self, host: str, seconds: float) -> None:
        credentials, certificates = self._place.read_credentials(), self._place.certificates
        context = certificates.context() if certificates else None
        handshakes = _observed(context)

        def secret(text: str) -> Callable[[], str]:
            def sent() -> str:
                if certificates and not handshakes:
                    raise nats.errors.SecureConnWantedError
                return text

            return sent

        user, password = self._place.cluster.user, self._place.cluster.password
        await self._client.connect(
            f"nats://{host}",
            name="shedlock_py",
            error_cb=self._on_error,
            closed_cb=self._on_closed,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=seconds,  # type: ignore[arg-type]  # it is passed to asyncio.wait_for
            pending_size=0,
            tls=context,
            user=secret(user) if password else None,
            password=secret(password) if password else None,
            token=secret(user) if user and not password else None,
            user_credentials=RawCredentials(credentials) if credentials else None,
        )
        if certificates and not handshakes:
            raise nats.errors.SecureConnWantedError
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply)
        start_task(self._live())

    async def carry_out(self, command: Command, until: float) -> CasReply:
        """Send the command, and with it a request for the time: only its reply has the clock of the bucket's leader."""
        sent_at = monotonic()
        value, info = await self._exchange(command, until)
        return CasReply(value, ServerTime(date_of(info), sent_at, monotonic(), _RESOLUTION))

    async def _exchange(self, command: Command, until: float) -> tuple[Any, dict[str, Any]]:
        wire = self._wire
        match command:
            case Read(name):
                info, reply = await self._replies(until, wire.info, wire.read(name))
                found = wire.found(name, reply)
                return (found if isinstance(found, Entry) else None), info
            case Write(record, if_version):
                info, reply = await self._replies(until, wire.info, wire.write(command, if_version))
                version = version_of(reply)
                if version is None and if_version is None:
                    [reply] = await self._replies(until, wire.read(record.name))
                    found = wire.found(record.name, reply)
                    if isinstance(found, Deleted):
                        [reply] = await self._replies(until, wire.write(command, found.version))
                        version = version_of(reply)
                return version, info
            case Delete():
                info, reply = await self._replies(until, wire.info, wire.delete(command))
                return version_of(reply) is not None, info
            case List(prefix):
                [info] = await self._replies(until, wire.list_keys)
                names = [name for name in wire.names(info) if name.startswith(prefix)]
                entries: list[Entry] = []
                for part in itertools.batched(names, _AT_ONCE):
                    found_all = zip(part, await self._replies(until, *map(wire.read, part)), strict=True)
                    entries += filter(None, (wire.listed(name, reply) for name, reply in found_all))
                return entries, info
            case CreateBucket(replicas):
                await self._replies(until, wire.create(replicas))
                return None, (await self._replies(until, wire.info))[0]
            case BucketInfo():
                [info] = await self._replies(until, wire.info)
                return info, info

    async def _replies(self, until: float, *requests: Request) -> list[dict[str, Any]]:
        """Send requests at the same time, and return their replies."""
        futures: list[asyncio.Future[Any]] = []
        for request in requests:
            inbox = f"{self._inbox}.{next(self._numbers)}"
            futures.append(asyncio.get_running_loop().create_future())
            self._waiting[inbox] = request.subject, futures[-1]
            try:
                await self._client.publish(request.subject, request.payload, inbox, request.headers)
            except nats.errors.Error as error:  # the connection broke at this moment
                raise ConnectionLost(str(error)) from error
        await replies(futures, until)
        return [_content(future.result()) for future in futures]

    async def close(self) -> None:
        self._end()
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._client.close()

    async def _live(self) -> None:
        """End with the connection, or with the event loop, which cancels the driver's tasks, too."""
        try:
            await self._ended.wait()
        finally:
            self._end()

    def _end(self) -> None:
        self._ended.set()
        for _, future in self._waiting.values():
            if not future.done():
                future.set_result(ConnectionLost("the connection was closed before the reply"))
        self._waiting.clear()

    async def _on_closed(self) -> None:
        self._end()

    async def _on_reply(self, message: Msg) -> None:
        _, future = self._waiting.pop(message.subject, (None, None))
        if future is not None and not future.done():
            future.set_result(message)

    async def _on_error(self, error: Exception) -> None:
        self.error = error
        text = str(error)
        if "permissions violation" not in text.lower():
            return
        is_of_inbox = self._inbox.lower() in text.lower()
        for subject, future in self._waiting.values():
            if not future.done() and (is_of_inbox or f'"{subject}"'.lower() in text.lower()):
                future.set_result(NatsError(text, Failure.REFUSED, _RIGHTS))


def _content(reply: Msg | Exception) -> dict[str, Any]:
    if isinstance(reply, Exception):
        raise reply
    if reply.headers and reply.headers.get("Status") == "503":
        raise NatsError("no server of the cluster responds", Failure.NOT_DONE, _NO_RESPONSE)
    return reply_of(reply.data)


def _observed(context: ssl.SSLContext | None) -> list[bool]:
    """Return a list that gets an entry for each handshake.

    If the server does not want TLS, nats-py goes on without it.
    """
    handshakes: list[bool] = []

    class Observed(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            handshakes.append(True)

    if context is not None:
        context.sslobject_class = Observed
    return handshakes
