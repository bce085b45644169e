"""The connection of an event loop to NATS, and the exchange for each command."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import nats
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg

from shedlock_py.providers.cas import CasReply, Delete, Entry, List, Read, ServerTime, UnknownTimeError, Write
from shedlock_py.providers.cas.listing import readable
from shedlock_py.providers.kit import ConnectionLost, ErrorReply
from shedlock_py.providers.kit.certificates import SecretGuard
from shedlock_py.providers.kit.shared_client import BlockingClient, SharedClient, SharedConnection
from shedlock_py.providers.nats.urls import Place
from shedlock_py.providers.nats.wire import Bucket, Command, Request, Wire, reply_of
from shedlock_py.runtime.process import monotonic

_AT_ONCE = 100
"""How many records of a list to read at the same time."""
_RIGHTS = "allow $KV.bucket.>, $JS.API.STREAM.*.KV_bucket, $JS.API.STREAM.MSG.GET.KV_bucket; to subscribe, _INBOX.>"


class Connection(SharedConnection):
    """A connection to one server.

    nats-py neither reconnects it nor keeps requests for later: it could send requests of callers that gave up.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place, self._wire, self._client = place, Wire(place.bucket), Client()
        self._inbox, self._numbers = self._client.new_inbox(), itertools.count()
        self._subjects: dict[str, str] = {}
        """The subject of the request for each inbox, while no reply has come."""
        self._error: Exception | None = None
        """The last error that nats-py reported. Some of its exceptions do not name the cause."""

    async def open(self, host: str, seconds: float) -> None:
        cluster, credentials = self._place.cluster, self._place.credentials()
        guard = SecretGuard(self._place.certificates)
        user, password = guard.secret(cluster.user), guard.secret(cluster.password)
        options: dict[str, Any] = {"user": user, "password": password} if password else {"token": user}
        options |= {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0, "pending_size": 0}
        options |= {"user_credentials": RawCredentials(credentials) if credentials else None, "tls": guard.context}
        options |= {"connect_timeout": seconds, "error_cb": self._on_error, "closed_cb": self.close}
        try:
            await self._client.connect(f"nats://{host}", **options)
            guard.check()
            await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply)
        except nats.errors.Error as error:
            if "authorization" in str(error).lower():
                raise ErrorReply(f"{host}: {error}", hint="check the user, password, token or credentials") from error
            raise OSError(str(self._error or error)) from error
        self.begin()

    async def disconnect(self) -> None:
        await self._client.close()

    async def carry_out(self, command: Command, until: float) -> CasReply:
        """Send the command, and with it a request for the time: no other reply has the server's clock."""
        sent_at = monotonic()
        value, info = await self._exchange(command, until)
        return CasReply(value, ServerTime.from_iso(info.get("ts"), sent_at, monotonic()))

    async def _exchange(self, command: Command, until: float) -> tuple[Any, dict[str, Any]]:
        of = self._wire
        match command:
            case Read(name):
                reply, info = await self._send(until, of.read(name), of.info)
                found = of.found(name, reply)
                return (found if isinstance(found, Entry) else None), info
            case Write(record, if_version):
                reply, info = await self._send(until, of.write(command, if_version or 0), of.info)
                if "error" in reply and if_version is None:
                    [read] = await self._send(until, of.read(record.name))
                    if isinstance(marker := of.found(record.name, read), int):
                        [reply] = await self._send(until, of.write(command, marker))
                return reply.get("seq") or None, info
            case Delete(name, if_version):
                reply, info = await self._send(until, of.delete(name, if_version), of.info)
                return reply["purged"] > 0, info
            case List(prefix):
                [info] = await self._send(until, of.list_keys)
                if info.get("total", 0) > info.get("limit", 0):
                    raise ErrorReply(f"the bucket has {info['total']} records, and NATS lists only {info['limit']}")
                names, entries = [name for name in of.names(info) if name.startswith(prefix)], list[Entry]()
                for start in range(0, len(names), _AT_ONCE):
                    part = names[start : start + _AT_ONCE]
                    replies = zip(part, await self._send(until, *map(of.read, part)), strict=True)
                    records = readable((name, partial(of.found, name, reply)) for name, reply in replies)
                    entries += [entry for entry in records if isinstance(entry, Entry)]
                return entries, info
            case Bucket(is_new):
                if is_new:
                    await self._send(until, of.create(self._place.replicas))
                [info] = await self._send(until, of.info)
                return info, info

    async def _send(self, until: float, *requests: Request) -> list[dict[str, Any]]:
        """Send requests at the same time, and return their replies."""
        futures = []
        for subject, payload, headers in requests:
            inbox = f"{self._inbox}.{next(self._numbers)}"
            futures.append(self.expect(inbox))
            self._subjects[inbox] = subject
            try:
                await self._client.publish(subject, payload, inbox, headers or None)
            except nats.errors.Error as error:
                self.end()  # nats-py has closed the connection, and will say so
                raise ConnectionLost(str(error)) from error
        replies: list[dict[str, Any]] = []
        for outcome in await self.outcomes(futures, until):
            try:
                replies.append(reply_of(outcome))
            except ErrorReply as error:
                if replies:  # the first request, which may have been a write, was carried out
                    raise UnknownTimeError(str(error)) from error
                raise
        return replies

    async def _on_reply(self, message: Msg) -> None:
        self._subjects.pop(message.subject, None)
        self.resolve(message.subject, message)

    async def _on_error(self, error: Exception) -> None:
        self._error, text = error, str(error)  # the server's text, in lower case
        for inbox, subject in list(self._subjects.items()):
            if "permissions violation" in text and (f'"{subject}"'.lower() in text or self._inbox.lower() in text):
                self.resolve(inbox, ErrorReply(text, hint=_RIGHTS))


class AsyncNatsClient(SharedClient):
    """A client for asyncio."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.cluster.hosts, partial(Connection, place), place.shown)


class NatsClient(BlockingClient):
    """A client for threads."""

    def __init__(self, place: Place) -> None:
        super().__init__(partial(AsyncNatsClient, place), place.shown)
