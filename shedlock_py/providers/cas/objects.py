"""Commands as requests to an object store: a JSON object for each record, under a prefix, written if its ETag matches.

A store supplies the requests: a subclass of :class:`Objects`. Its programs are a subclass of :class:`ObjectPrograms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote
from uuid import uuid4

from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.cas.cas_programs import (
    CasCommand,
    CasPrograms,
    CasReply,
    Delete,
    Entry,
    List,
    Read,
    Write,
)
from shedlock_py.providers.cas.listing import readable
from shedlock_py.providers.cas.records_in_json import entry_from_fields, fields_from_json, write_to_json
from shedlock_py.providers.cas.server_time import ServerTime
from shedlock_py.providers.kit import AsyncProgramProvider, ErrorReply, ProgramProvider
from shedlock_py.runtime.program import Program

T = TypeVar("T")
Requests = Program[Any, Any, T]
"""Yields requests of the store's SDK."""

DEFAULT_PREFIX = "shedlock"
LONGEST_PREFIX = 800
"""Bytes. A key may have 1024 bytes, and a lock's name needs up to 205 of them."""
_TRIES = 3
_SUFFIX = ".json"
_EMPTY = b"{}"
_LONGEST = 200
"""The most bytes of a lock's name in its key. Servers that store files accept 255 bytes between two slashes."""
_READABLE = _LONGEST - 64
"""A longer name continues with a digest."""


@dataclass(frozen=True, slots=True)
class TryConditions:
    """Raise an :class:`ErrorReply` if the server ignores the conditions of writes.

    :ivar of_deletes: check the conditions of deletions, too.
    :ivar of_bucket: raise the store's error if the bucket does not exist: some servers create it with the first object.
    """

    of_deletes: bool = False
    of_bucket: bool = False


class ObjectReply(NamedTuple):
    """The reply to a request for one object.

    :ivar is_done: False if the object does not exist, or if the condition did not hold.
    :ivar is_refused: True if the condition did not hold: an earlier copy of the same request may have been executed.
    """

    time: ServerTime
    is_done: bool
    is_refused: bool = False
    etag: str = ""
    content: bytes = b""


class Page(NamedTuple):
    """Some of the keys.

    :ivar next: identifies the next page; None if this page is the last.
    """

    time: ServerTime
    keys: Sequence[str]
    next: str | None


class Objects(ABC):
    """The records under a prefix, which ends with a slash."""

    no_etag: str
    """An ETag that no object has."""
    no_conditions: str
    """The hint if the server ignores the conditions of writes."""
    no_deletes: str
    """The hint if the server ignores the conditions of deletions."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._is_checked = False

    # The requests of a store

    @abstractmethod
    def get(self, key: str) -> Requests[ObjectReply]:
        """Read an object."""

    @abstractmethod
    def put(self, key: str, content: bytes, if_etag: str | None) -> Requests[ObjectReply]:
        """Write an object of JSON if it still has this ETag. If ``if_etag`` is None, only create the object."""

    @abstractmethod
    def delete(self, key: str, if_etag: str) -> Requests[ObjectReply]:
        """Delete an object if it still has this ETag."""

    @abstractmethod
    def page(self, prefix: str, which: str | None) -> Requests[Page]:
        """List keys that start with ``prefix``, without keys that have a slash after it."""

    def check_bucket(self) -> Requests[None]:
        """Raise an error if the bucket does not exist, for stores where a write would create it."""
        yield from ()

    # The commands

    def exchange(self, command: CasCommand | TryConditions) -> Requests[CasReply]:
        match command:
            case Read(name):
                key = self._key(name)
                reply = yield from self.get(key)
                return CasReply(self._entry(key, reply), reply.time)
            case Write(record, if_version):
                if if_version is None and not self._is_checked:
                    # Only before the provider's first record: every existing record was written after this check.
                    yield from self._check(TryConditions())
                return (yield from self._write(self._key(record.name), command))
            case Delete(name, if_version):
                reply = yield from self.delete(self._key(name), if_version)
                return CasReply(reply.is_done, reply.time)
            case List(start):
                return (yield from self._list(start))
            case TryConditions():
                return (yield from self._check(command))

    def _entry(self, key: str, reply: ObjectReply) -> Entry | None:
        if not reply.is_done:
            return None
        fields = _fields_in(key, reply)
        if self._key(fields["name"]) != key:
            raise ValueError(f"{key} is the lock {fields['name']!r}, whose object is {self._key(fields['name'])}")
        del fields["write"]
        return entry_from_fields(fields.pop("name"), fields, reply.etag)

    def _write(self, key: str, command: Write) -> Requests[CasReply]:
        # Without "write", two objects with the same content would have the same ETag.
        made = uuid4().hex
        content = write_to_json(command, name=command.record.name, write=made)
        reply = yield from self.put(key, content.encode(), command.if_version)
        if reply.is_refused:
            # aiohttp or a proxy may have sent the request twice, and the first copy was executed.
            reply = yield from self.get(key)
            if not reply.is_done or _fields_in(key, reply)["write"] != made:
                return CasReply(None, reply.time)
        return CasReply(reply.etag if reply.is_done else None, reply.time)

    def _list(self, start: str) -> Requests[CasReply]:
        entries: list[Entry] = []
        which: str | None = None
        while True:
            page = yield from self.page(self._prefix + _encoded(start)[:_READABLE], which)
            time = page.time
            for key in page.keys:
                if key.endswith(_SUFFIX):
                    reply = yield from self.get(key)
                    time = reply.time
                    entries += readable([(key, partial(self._entry, key, reply))], "object")
            if page.next is None:
                return CasReply(entries, time)
            which = page.next

    def _check(self, check: TryConditions) -> Requests[CasReply]:
        """Send requests with conditions that do not hold, on a new object."""
        if check.of_bucket:
            yield from self.check_bucket()
        for _ in range(_TRIES):
            key = f"{self._prefix}check-{uuid4().hex}"
            made = yield from self.put(key, _EMPTY, None)
            if made.is_done:
                break  # otherwise it was sent twice, and this is the reply to the second copy
        else:
            what = "the server refuses If-None-Match in PUT of an object that does not exist"
            raise ErrorReply(what, hint=self.no_conditions)
        for condition in (None, self.no_etag):
            reply = yield from self.put(key, _EMPTY, condition)
            if reply.is_done:
                yield from self.delete(key, reply.etag)
                what = f"the server ignores {'If-Match' if condition else 'If-None-Match'} in PUT"
                raise ErrorReply(what, hint=self.no_conditions)
        if check.of_deletes and (yield from self.delete(key, self.no_etag)).is_done:
            raise ErrorReply("the server ignores If-Match in DELETE", hint=self.no_deletes)
        reply = yield from self.delete(key, made.etag)
        self._is_checked = True
        return CasReply(None, reply.time)

    def _key(self, name: str) -> str:
        encoded = _encoded(name)
        if len(encoded) > _LONGEST:
            encoded = encoded[:_READABLE] + sha256(name.encode()).hexdigest()
        return f"{self._prefix}{encoded}{_SUFFIX}"


class ObjectPrograms(CasPrograms):
    """The programs of a compare-and-swap store that may ignore conditions."""

    def create_schema(self) -> Program[Any, Any, None]:
        """Create nothing, but raise an error if the bucket does not exist or the server ignores conditions."""
        yield TryConditions(of_bucket=True)

    def check_conditions(self) -> Program[Any, Any, None]:
        yield TryConditions()

    def prune(self, unused_for: timedelta, prefix: str = "") -> Program[Any, Any, int]:
        yield TryConditions(of_deletes=True)  # some servers honour conditions only for writes
        return (yield from super().prune(unused_for, prefix))


class ObjectProvider(ProgramProvider):
    """Locks in an object store."""

    programs: ObjectPrograms

    def check_conditions(self) -> None:
        """Check that the server honours the conditions of writes. ``create_schema`` and the first acquire do this, too.

        :raises ProviderError: the server ignores conditions.
        """
        self._drive(self.programs.check_conditions(), "check_conditions")


class AsyncObjectProvider(AsyncProgramProvider):
    """:class:`ObjectProvider` for asyncio."""

    programs: ObjectPrograms

    async def check_conditions(self) -> None:
        """See :meth:`ObjectProvider.check_conditions`."""
        await self._drive(self.programs.check_conditions(), "check_conditions")


def checked_prefix(path: str) -> str:
    """Return the prefix of the keys for the path of a URL. :raises ConfigurationError: it is too long."""
    path = path or DEFAULT_PREFIX
    if len(path.encode()) > LONGEST_PREFIX:
        raise ConfigurationError(
            f"store URL: the prefix has {len(path.encode())} bytes; the maximum is {LONGEST_PREFIX}"
        )
    return f"{path}/"


def _fields_in(key: str, reply: ObjectReply) -> dict[str, Any]:
    fields = fields_from_json(reply.content)
    if "write" not in fields or not isinstance(fields.get("name"), str):
        raise ValueError(f"{key} is no lock record: {fields!r:.200}")
    return fields


def _encoded(name: str) -> str:
    """Return the name in letters, digits and ``!-._``, which every server and tool leaves unchanged."""
    return quote(name, safe="").replace("~", "%7E").replace("%", "!")
