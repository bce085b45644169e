"""Commands as requests to S3: one object for each record, written with ``If-None-Match`` or ``If-Match``.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

from shedlock_py.events import logger
from shedlock_py.model.text import parsed
from shedlock_py.providers.aws import AwsReply, AwsRequest
from shedlock_py.providers.cas import CasCommand, CasReply, Delete, Entry, List, Read, Write
from shedlock_py.providers.cas.cas_programs import UNREAD
from shedlock_py.providers.kit import record_from_json, record_to_json
from shedlock_py.runtime.program import Program

T = TypeVar("T")
_Requests = Program[AwsRequest, AwsReply, T]

_ABSENT = ("NoSuchKey",)
_NOT_WRITTEN = ("PreconditionFailed", "NoSuchKey", "ConditionalRequestConflict", "OperationAborted")
"""412; 404 for ``If-Match`` if the object is gone; 409 beside another write. After each, the programs read again."""
_NO_BUCKET = ("404", "NoSuchBucket")
_TRIES = 3
_NO_ETAG = '"00000000000000000000000000000000"'
_SUFFIX = ".json"
_LONGEST = 200
"""The most bytes of a lock's name in its key. Servers that store files accept 255 bytes between two slashes."""
_READABLE = _LONGEST - 64
"""A longer name continues with a digest."""


class NoBucketError(Exception):
    """The bucket does not exist."""


class IgnoredConditionError(Exception):
    """The server executed a request although its condition did not hold."""


@dataclass(frozen=True, slots=True)
class TryConditions:
    """Raise :class:`IgnoredConditionError` if the server ignores the conditions of writes.

    :ivar of_deletes: check the conditions of deletions, too.
    :ivar of_bucket: raise :class:`NoBucketError` if the bucket does not exist: some servers create it with the first
        object.
    """

    of_deletes: bool = False
    of_bucket: bool = False


class Objects:
    """The records under a prefix in a bucket."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._is_checked = False

    def exchange(self, command: CasCommand | TryConditions) -> _Requests[CasReply]:
        match command:
            case Read(name):
                reply, entry = yield from self._read(self._key(name))
                return CasReply(entry, reply.time)
            case Write(record, if_version):
                if if_version is None and not self._is_checked:
                    # Only before the provider's first record: every existing record was written after this check.
                    yield from self._check(TryConditions())
                return (yield from self._write(self._key(record.name), command))
            case Delete(name, if_version):
                reply = yield from self._delete(self._key(name), if_version)
                return CasReply(not reply.code, reply.time)
            case List(start):
                return (yield from self._list(start))
            case TryConditions():
                return (yield from self._check(command))

    def _read(self, key: str) -> _Requests[tuple[AwsReply, Entry | None]]:
        reply = yield self._request("get_object", _ABSENT, Key=key)
        if reply.code:
            return reply, None
        fields = _fields_in(key, reply)
        if self._key(fields["name"]) != key:
            raise ValueError(f"{key} is the lock {fields['name']!r}, whose object is {self._key(fields['name'])}")
        is_free = fields.pop("free", False) is True
        del fields["write"]
        record = record_from_json(fields.pop("name"), fields, read_at=UNREAD)
        return reply, Entry(record, reply.value["ETag"], is_free)

    def _write(self, key: str, command: Write) -> _Requests[CasReply]:
        # Without "write", two objects with the same content would have the same ETag.
        fields = {"name": command.record.name, **record_to_json(command.record), "write": uuid4().hex}
        fields |= {"free": True} if command.is_free else {}
        reply = yield from self._put(key, fields, command.if_version)
        if reply.code == "PreconditionFailed":
            # aiohttp or a proxy may have sent the request twice, and the first copy was executed.
            reply = yield self._request("get_object", _ABSENT, Key=key)
            if reply.code or _fields_in(key, reply)["write"] != fields["write"]:
                return CasReply(None, reply.time)
        return CasReply(None if reply.code else reply.value["ETag"], reply.time)

    def _list(self, start: str) -> _Requests[CasReply]:
        entries: list[Entry] = []
        # A key with another slash belongs to another program with a longer prefix.
        where: dict[str, Any] = {"Prefix": self._prefix + _encoded(start)[:_READABLE], "Delimiter": "/"}
        while True:
            page = yield self._request("list_objects_v2", **where)
            reply = page
            for key in (found["Key"] for found in page.value.get("Contents", ())):
                if not key.endswith(_SUFFIX):
                    continue
                try:
                    reply, entry = yield from self._read(key)
                except ValueError as error:  # an object that is not a lock record must not hide others
                    logger.warning("records: the object %r is left out: %s", key, error)
                else:
                    entries += [entry] if entry else []
            if not page.value.get("IsTruncated"):
                return CasReply(entries, reply.time)
            where["ContinuationToken"] = page.value["NextContinuationToken"]

    def _check(self, check: TryConditions) -> _Requests[CasReply]:
        """Send requests with conditions that do not hold, on a new object."""
        if check.of_bucket and (yield self._request("head_bucket", _NO_BUCKET)).code:
            raise NoBucketError(f"there is no bucket {self._bucket!r}")
        for _ in range(_TRIES):
            key = f"{self._prefix}check-{uuid4().hex}"
            made = yield from self._put(key, {}, None)
            if not made.code:
                break  # otherwise it was sent twice, and this is the reply to the second copy
        else:
            raise IgnoredConditionError("the server refuses If-None-Match in PUT of an object that does not exist")
        etag = made.value["ETag"]
        for condition in (None, _NO_ETAG):
            reply = yield from self._put(key, {}, condition)
            if not reply.code:
                yield from self._delete(key, reply.value["ETag"])
                raise IgnoredConditionError(f"the server ignores {'If-Match' if condition else 'If-None-Match'} in PUT")
        if check.of_deletes and not (yield from self._delete(key, _NO_ETAG)).code:
            raise IgnoredConditionError("the server ignores If-Match in DELETE")
        reply = yield from self._delete(key, etag)
        self._is_checked = True
        return CasReply(None, reply.time)

    def _put(self, key: str, fields: dict[str, Any], if_version: str | None) -> _Requests[AwsReply]:
        condition = {"IfMatch": if_version} if if_version else {"IfNoneMatch": "*"}
        body = {"Body": json.dumps(fields).encode(), "ContentType": "application/json"}
        return (yield self._request("put_object", _NOT_WRITTEN, Key=key, **body, **condition))

    def _delete(self, key: str, if_version: str | None) -> _Requests[AwsReply]:
        return (yield self._request("delete_object", _NOT_WRITTEN, Key=key, IfMatch=if_version))

    def _request(self, method: str, expected: tuple[str, ...] = (), **arguments: Any) -> AwsRequest:
        return AwsRequest(method, {"Bucket": self._bucket, **arguments}, expected)

    def _key(self, name: str) -> str:
        encoded = _encoded(name)
        if len(encoded) > _LONGEST:
            encoded = encoded[:_READABLE] + sha256(name.encode()).hexdigest()
        return f"{self._prefix}{encoded}{_SUFFIX}"


def _fields_in(key: str, reply: AwsReply) -> dict[str, Any]:
    fields = parsed(reply.value["Body"])
    if not isinstance(fields, dict) or "write" not in fields or not isinstance(fields.get("name"), str):
        raise ValueError(f"{key} is no lock record: {fields!r:.200}")
    return fields


def _encoded(name: str) -> str:
    """Return the name in letters, digits and ``!-._``, which every server and tool leaves unchanged."""
    return quote(name, safe="").replace("~", "%7E").replace("%", "!")
