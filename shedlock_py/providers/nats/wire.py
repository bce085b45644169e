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
from shedlock_py.providers.cas import CasCommand, Entry, OtherReplyError, UnknownTimeError, Write
from shedlock_py.providers.cas.records_in_json import entry_from_fields, fields_from_json, write_to_json
from shedlock_py.providers.kit import Failure, GrantsNothing

_NO_MESSAGE, _NAME_IN_USE, _WRONG_SEQUENCE = 10037, 10058, (10071, 10164)
_NO_JETSTREAM = "turn JetStream on in the servers, and for this account"
_HINTS = {
    10059: "create the bucket with provider.create_schema(), or name another bucket in the URL",
    10039: _NO_JETSTREAM,
    10076: _NO_JETSTREAM,
}


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
    """The marker of a key that another client has deleted. A new record replaces this version."""

    version: int


class Wire:
    """The requests for one bucket. The bucket is the stream ``KV_bucket``, and a key is a subject of it."""

    def __init__(self, bucket: str) -> None:
        self._stream = f"KV_{bucket}"
        self._keys = f"$KV.{bucket}."
        self.info = self._api("INFO")
        self.list_keys = self._api("INFO", subjects_filter=f"{self._keys}>")

    def _api(self, verb: str, **fields: Any) -> Request:
        return Request(f"$JS.API.STREAM.{verb}.{self._stream}", json.dumps(fields).encode() if fields else b"")

    def create(self, replicas: int) -> Request:
        """Return the request for a bucket as NATS's own clients create it.

        But its sequence numbers start at random: a version must not come back after the bucket was deleted.
        """
        limits = {"max_msgs_per_subject": 1, "discard": "new", "deny_delete": True, "allow_rollup_hdrs": True}
        start = random.getrandbits(48) + 1
        fields = {"name": self._stream, "subjects": [f"{self._keys}>"], "num_replicas": replicas, "first_seq": start}
        return self._api("CREATE", **fields, **limits)

    def read(self, name: str) -> Request:
        """The stream's leader replies. Of a bucket with direct reads, any other server might reply, with old values."""
        return self._api("MSG.GET", last_by_subj=self._subject(name))

    def write(self, write: Write, if_version: int | None) -> Request:
        expected = {"Nats-Expected-Last-Subject-Sequence": str(if_version or 0)}
        return Request(self._subject(write.record.name), write_to_json(write).encode(), expected)

    def delete(self, name: str, if_version: int) -> Request:
        """Return the request that deletes this version and older versions of a key. It leaves no marker."""
        return self._api("PURGE", filter=self._subject(name), seq=if_version + 1)

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
        return entry_from_fields(name, fields_from_json(b64decode(message.get("data", ""))), message["seq"])

    def listed(self, name: str, reply: Mapping[str, Any]) -> list[Entry]:
        """Return the result of a read for a list: a key that is not a lock record must not hide others."""
        try:
            found = self.found(name, reply)
        except ValueError as error:
            logger.warning("records: the key of %r is left out: %s", name, error)
            return []
        return [found] if isinstance(found, Entry) else []

    def names(self, reply: Mapping[str, Any]) -> list[str]:
        """Return the lock names of a reply to :attr:`list_keys`."""
        subjects = reply["state"].get("subjects") or {}
        return [unquote(subject.removeprefix(self._keys).replace("=", "%")) for subject in subjects]

    def _subject(self, name: str) -> str:
        """Keys have only letters, digits and ``-_/=.``, so other characters are encoded, as in ``=C3=B6``."""
        return self._keys + quote(name, safe="/").replace(".", "%2E").replace("~", "%7E").replace("%", "=")


def reply_of(payload: bytes) -> dict[str, Any]:
    """Return JetStream's reply. The only error in it is that another version, or no record, was there.

    :raises NatsError: the reply is another error.
    """
    try:
        reply = parsed(payload)
        error = reply.get("error")
        code, number = (error["code"], error.get("err_code")) if error else (0, 0)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NatsError(f"not a reply of JetStream: {payload[:100]!r}", Failure.UNREACHABLE) from None
    if code and number not in (_NO_MESSAGE, _NAME_IN_USE, *_WRONG_SEQUENCE):
        hint = _HINTS.get(number)
        is_refused = code < 500 or hint is not None
        message = str(error.get("description") or f"error {number}")
        raise NatsError(message, Failure.REFUSED if is_refused else Failure.UNREACHABLE, hint)
    return dict(reply)


def version_of(reply: Mapping[str, Any]) -> int | None:
    """Return the version that was written. None if another version was there."""
    if "error" not in reply and "seq" not in reply:
        raise OtherReplyError
    return None if "error" in reply else int(reply["seq"])


def date_of(info: Mapping[str, Any]) -> datetime:
    """Return the clock of the server that leads the bucket."""
    try:
        return datetime.fromisoformat(info["ts"])
    except (KeyError, TypeError, ValueError):
        raise UnknownTimeError("no time in the reply: locks need a NATS server 2.10 or newer") from None
