"""Commands as requests to JetStream, and its replies.

https://docs.nats.io/reference/reference-protocols/nats_api_reference
"""

from __future__ import annotations

import json
import random
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from shedlock_py.events import logger
from shedlock_py.model.text import parsed
from shedlock_py.providers.cas import CasCommand, Delete, Entry, OtherReplyError, Read, UnknownTimeError, Write
from shedlock_py.providers.cas.cas_programs import UNREAD
from shedlock_py.providers.kit import Failure, GrantsNothing, record_from_json, record_to_json

_API = "$JS.API.STREAM"
_NO_STREAM, _NO_MESSAGE, _NAME_IN_USE = 10059, 10037, 10058
_WRONG_SEQUENCE = (10071, 10164)
_NOT_ENABLED = (10039, 10076)
_NO_BUCKET = "create the bucket with provider.create_schema(), or name another bucket in the URL"
_NO_JETSTREAM = "turn JetStream on in the servers, and for this account"


class NatsError(Exception):
    """NATS replied with an error, or refused a request.

    :ivar failure: its meaning for the command.
    """

    def __init__(self, message: str, failure: Failure, hint: str | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.hint = hint


@dataclass(frozen=True, slots=True)
class CreateBucket(GrantsNothing):
    """Create the bucket, unless it exists."""

    replicas: int


@dataclass(frozen=True, slots=True)
class BucketInfo(GrantsNothing):
    """Read the bucket's settings. The reply's value is JetStream's JSON."""


Command = CasCommand | CreateBucket | BucketInfo


class Request(NamedTuple):
    subject: str
    payload: bytes = b""
    headers: dict[str, str] | None = None


class Deleted(NamedTuple):
    """The marker of a deleted key. The next record of the key replaces this version."""

    version: int


class Wire:
    """The requests for one bucket. The bucket is the stream ``KV_bucket``, and a key is a subject of it."""

    def __init__(self, bucket: str) -> None:
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self.info = Request(f"{_API}.INFO.{self._stream}")
        self.list_keys = self.info._replace(payload=_json(subjects_filter=f"{self._prefix}>"))

    def create(self, replicas: int) -> Request:
        """Return the request for the bucket as NATS's own clients create it.

        The sequence numbers start at a random number: a version must not come back after the bucket was deleted.
        """
        config = _json(
            name=self._stream,
            subjects=[f"{self._prefix}>"],
            num_replicas=replicas,
            max_msgs_per_subject=1,
            discard="new",
            deny_delete=True,
            allow_rollup_hdrs=True,
            first_seq=random.getrandbits(48) + 1,
        )
        return Request(f"{_API}.CREATE.{self._stream}", config)

    def read(self, name: str) -> Request:
        """The stream's leader replies, also if other servers of the bucket may reply to reads."""
        return Request(f"{_API}.MSG.GET.{self._stream}", _json(last_by_subj=self._subject(name)))

    def write(self, write: Write, if_version: int | None) -> Request:
        fields = {**record_to_json(write.record), **({"free": True} if write.is_free else {})}
        return Request(self._subject(write.record.name), _json(**fields), _expected(if_version or 0))

    def delete(self, delete: Delete) -> Request:
        return Request(self._subject(delete.name), headers={**_expected(delete.if_version), "KV-Operation": "DEL"})

    def found(self, name: str, reply: Mapping[str, Any]) -> Entry | Deleted | None:
        """Return the result of a read.

        :raises ValueError: the record has odd values.
        """
        message = reply.get("message")
        if message is None:
            return None
        if message["subject"] != self._subject(name):
            raise OtherReplyError
        headers = b64decode(message.get("hdrs", ""))
        if b"KV-Operation:" in headers or b"Nats-Marker-Reason:" in headers:
            return Deleted(message["seq"])
        fields = parsed(b64decode(message.get("data", "")))
        if not isinstance(fields, dict):
            raise ValueError(f"not a lock record: {fields!r:.200}")
        is_free = fields.pop("free", False) is True
        return Entry(record_from_json(name, fields, read_at=UNREAD), message["seq"], is_free)

    def listed(self, name: str, reply: Mapping[str, Any]) -> Entry | None:
        """Return the result of a read for a list: a key that is not a lock record must not hide others."""
        try:
            found = self.found(name, reply)
        except (ValueError, LookupError, TypeError) as error:
            logger.warning("records: the key %r is left out: %s", name, error)
            return None
        return found if isinstance(found, Entry) else None

    def names(self, reply: Mapping[str, Any]) -> list[str]:
        """Return the lock names of a reply to :attr:`list_keys`."""
        subjects = reply["state"].get("subjects") or {}
        return [unquote(subject.removeprefix(self._prefix).replace("=", "%")) for subject in subjects]

    def _subject(self, name: str) -> str:
        """Keys have only letters, digits and ``-_/=.``, so other characters are encoded as in ``=C3=B6``."""
        return self._prefix + quote(name, safe="/").replace(".", "%2E").replace("~", "%7E").replace("%", "=")


def reply_of(payload: bytes) -> dict[str, Any]:
    """Return JetStream's reply. Its ``error`` is an expected one.

    :raises NatsError: the reply is another error.
    """
    try:
        reply = parsed(payload)
    except ValueError:
        reply = None
    match reply:
        case {"error": {"code": int(code), **error}}:
            number, text = error.get("err_code"), str(error.get("description", f"error {code}"))
            if number not in (_NO_MESSAGE, _NAME_IN_USE, *_WRONG_SEQUENCE):
                is_refused = code < 500 or number in _NOT_ENABLED
                hint = {_NO_STREAM: _NO_BUCKET, **dict.fromkeys(_NOT_ENABLED, _NO_JETSTREAM)}.get(number)
                raise NatsError(text, Failure.REFUSED if is_refused else Failure.UNREACHABLE, hint)
        case dict():
            pass
        case _:
            raise NatsError(f"not a reply of JetStream: {payload[:100]!r}", Failure.UNREACHABLE)
    return reply


def version_of(reply: Mapping[str, Any]) -> int | None:
    """Return the version of a key that was written or deleted. None if another version was there."""
    if "error" in reply:
        return None
    if "seq" not in reply:
        raise OtherReplyError
    return int(reply["seq"])


def date_of(reply: Mapping[str, Any]) -> datetime:
    """Return the clock of the server that leads the bucket."""
    try:
        return datetime.fromisoformat(reply["ts"])
    except (KeyError, TypeError, ValueError):
        raise UnknownTimeError("no time in the reply: locks need NATS server 2.10 or newer") from None


def _expected(version: int) -> dict[str, str]:
    return {"Nats-Expected-Last-Subject-Sequence": str(version)}


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()
