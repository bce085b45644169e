"""The connection of an event loop to NATS, and the exchange for each command."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import nats
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg

from shedlock_py.providers.cas import CasReply, Delete, Entry, List, Read, ServerTime, Write
from shedlock_py.providers.kit import Failure
from shedlock_py.providers.kit.shared_client import ConnectionLost, SharedConnection, connect_to_any
from shedlock_py.providers.nats import wire
from shedlock_py.providers.nats.urls import Place
from shedlock_py.runtime.asyncio_tools import start_task
from shedlock_py.runtime.process import monotonic

_RESOLUTION = 0.000001
_AT_ONCE = 100
"""How many records of a list to read at the same time."""
_NO_RESPONSE = "turn JetStream on; if it is on, the bucket does not exist, or its servers have no leader yet"
_RIGHTS = "let the user publish to $KV.bucket.> and $JS.API.STREAM.*.KV_bucket, and subscribe to _INBOX.>"


async def connect(place: Place, until: float) -> SharedConnection:
    """Connect to one of the servers.

    :raises ConfigurationError: a file of the URL cannot be used.
    """

    async def connect_to(host: str, seconds: float) -> Connection:
        connection = Connection(place)
        try:
            await connection.open(host, seconds)
        except nats.errors.Error as error:
            reason = connection.error or error
            if "authorization" in str(reason):
                raise wire.NatsError(f"{host}: {reason}", Failure.REFUSED) from error
            raise OSError(str(reason)) from error
        finally:
            if not connection.is_open:
                start_task(connection.close())
        return connection

    return await connect_to_any(place.cluster.hosts, connect_to, until)


class Connection(SharedConnection):
    """A connection to one server.

    nats-py does not reconnect it, and has no buffer: otherwise it could send requests of callers that gave up.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.error: Exception | None = None
        """The last error that the driver reported."""
        self._place = place
        self._wire = wire.Wire(place.bucket)
        self._client = Client()
        self._inbox = self._client.new_inbox()
        self._numbers = itertools.count()
        self._subjects: dict[str, str] = {}
        """The subject of the request for each inbox, while no reply has come."""

    @property
    def is_open(self) -> bool:
        return super().is_open and self._client.is_connected

    async def open(self, host: str, seconds: float) -> None:
        cluster, certificates, credentials = self._place.cluster, self._place.certificates, self._place.credentials()
        context, handshakes = certificates.observed_context() if certificates else (None, [True])

        def secret(text: str) -> Callable[[], str]:
            """The driver calls the result when it sends the secret."""

            def checked() -> str:
                if not handshakes:
                    raise nats.errors.SecureConnWantedError
                return text

            return checked

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
            user=secret(cluster.user) if cluster.password else None,
            password=secret(cluster.password) if cluster.password else None,
            token=secret(cluster.user) if cluster.user and not cluster.password else None,
            user_credentials=RawCredentials(credentials) if credentials else None,
        )
        if not handshakes:
            raise nats.errors.SecureConnWantedError
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply)
        self.begin()

    async def disconnect(self) -> None:
        await self._client.close()

    async def carry_out(self, command: wire.Command, until: float) -> CasReply:
        """Send the command, and with it a request for the time: only its reply has the clock of the bucket's leader."""
        sent_at = monotonic()
        value, info = await self._exchange(command, until)
        return CasReply(value, ServerTime(wire.date_of(info), sent_at, monotonic(), _RESOLUTION))

    async def _exchange(self, command: wire.Command, until: float) -> tuple[Any, dict[str, Any]]:
        of = self._wire
        match command:
            case Read(name):
                info, reply = await self._send(until, of.info, of.read(name))
                found = of.found(name, reply)
                return (found if isinstance(found, Entry) else None), info
            case Write(record, if_version):
                info, reply = await self._send(until, of.info, of.write(command, if_version))
                if "error" in reply and if_version is None:
                    [read] = await self._send(until, of.read(record.name))
                    found = of.found(record.name, read)
                    if isinstance(found, wire.Deleted):
                        [reply] = await self._send(until, of.write(command, found.version))
                return wire.version_of(reply), info
            case Delete(name, if_version):
                info, reply = await self._send(until, of.info, of.delete(name, if_version))
                return reply["purged"] > 0, info
            case List(prefix):
                [info] = await self._send(until, of.list_keys)
                names, entries = [name for name in of.names(info) if name.startswith(prefix)], list[Entry]()
                for start in range(0, len(names), _AT_ONCE):
                    part = names[start : start + _AT_ONCE]
                    for name, reply in zip(part, await self._send(until, *map(of.read, part)), strict=True):
                        entries += of.listed(name, reply)
                return entries, info
            case wire.CreateBucket(replicas):
                await self._send(until, of.create(replicas))
                return None, (await self._send(until, of.info))[0]
            case wire.BucketInfo():
                [info] = await self._send(until, of.info)
                return info, info

    async def _send(self, until: float, *requests: wire.Request) -> list[dict[str, Any]]:
        """Send requests at the same time, and return their replies."""
        futures = []
        for request in requests:
            inbox = f"{self._inbox}.{next(self._numbers)}"
            futures.append(self.expect(inbox))
            self._subjects[inbox] = request.subject
            try:
                await self._client.publish(request.subject, request.payload, inbox, request.headers)
            except nats.errors.Error as error:  # the connection broke at this moment
                raise ConnectionLost(str(error)) from error
        return [_content(reply) for reply in await self.outcomes(futures, until)]

    async def _on_closed(self) -> None:
        self.end()

    async def _on_reply(self, message: Msg) -> None:
        self._subjects.pop(message.subject, None)
        self.resolve(message.subject, message)

    async def _on_error(self, error: Exception) -> None:
        self.error, text = error, str(error)
        for inbox, subject in list(self._subjects.items()):  # nats-py puts the text of the server into lower case
            if "permissions violation" in text and any(
                f'"{each}"'.lower() in text for each in (subject, f"{self._inbox}.*")
            ):
                self.resolve(inbox, wire.NatsError(text, Failure.REFUSED, _RIGHTS))


def _content(reply: Msg) -> dict[str, Any]:
    if reply.headers and reply.headers.get("Status") == "503":
        raise wire.NatsError("no server of the cluster responds", Failure.NOT_DONE, _NO_RESPONSE)
    return wire.reply_of(reply.data)
