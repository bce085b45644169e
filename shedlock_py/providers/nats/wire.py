"""Commands as requests to JetStream, and its replies.

https://docs.nats.io/reference/reference-protocols/nats_api_reference
"""

from __future__ import annotations

import json
import random
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from nats.aio.msg import Msg

from shedlock_py.model.text import parsed
from shedlock_py.providers.cas import CasCommand, Entry, Write
from shedlock_py.providers.cas.records_in_json import entry_from_fields, fields_from_json, write_to_json
from shedlock_py.providers.kit import ErrorReply, Failure, GrantsNothing

_EXPECTED = (10037, 10058, 10071, 10164)
"""Errors: no record, the bucket exists, another version of the record is there."""
_NO_RESPONSE = "turn JetStream on; if it is on, the bucket does not exist, or its servers have no leader yet"
_HINTS = dict.fromkeys((10039, 10076), "turn JetStream on in the servers, and for this account")
_HINTS[10059] = "create the bucket with provider.create_schema(), or name another bucket in the URL"
_HINTS[10074] = "without a cluster, write replicas=1 into the URL"


@dataclass(frozen=True, slots=True)
class Bucket(GrantsNothing):
    """Read the bucket's settings. The reply's value is JetStream's JSON.

    :ivar is_new: create the bucket before that, unless it exists.
    """

    is_new: bool = False


Command = CasCommand | Bucket
Request = tuple[str, bytes, dict[str, str]]
"""Subject, payload and headers."""


class Wire:
    """The requests for one bucket. The bucket is the stream ``KV_bucket``, and a key is a subject of it."""

    def __init__(self, bucket: str) -> None:
        self._stream, self._keys = f"KV_{bucket}", f"$KV.{bucket}."
        self.info = self._api("INFO")
        """Its reply has the clock of the server that leads the bucket."""
        self.list_keys = self._api("INFO", subjects_filter=f"{self._keys}>")

    def _api(self, verb: str, **fields: Any) -> Request:
        return f"$JS.API.STREAM.{verb}.{self._stream}", json.dumps(fields).encode() if fields else b"", {}

    def create(self, replicas: int) -> Request:
        """Return the request for a bucket as NATS's own clients create it.

        But its sequence numbers start at random: a version must not come back after the bucket was deleted.
        """
        limits = {"max_msgs_per_subject": 1, "discard": "new", "deny_delete": True, "allow_rollup_hdrs": True}
        place = {"name": self._stream, "subjects": [f"{self._keys}>"], "num_replicas": replicas}
        return self._api("CREATE", **place, **limits, first_seq=random.getrandbits(48) + 1)

    def read(self, name: str) -> Request:
        """The bucket's leader replies. Of a bucket with direct reads, any other server might reply, with old values."""
        return self._api("MSG.GET", last_by_subj=self._subject(name))

    def write(self, write: Write, if_version: int) -> Request:
        expected = {"Nats-Expected-Last-Subject-Sequence": str(if_version)}
        return self._subject(write.record.name), write_to_json(write).encode(), expected

    def delete(self, name: str, if_version: int) -> Request:
        """Return the request that deletes this version of a key, and all older versions. It leaves no marker."""
        return self._api("PURGE", filter=self._subject(name), seq=if_version + 1)

    def found(self, name: str, reply: Mapping[str, Any]) -> Entry | int | None:
        """Return the result of a read. A number is the version of the marker that another client's deletion left.

        :raises ValueError: the record has odd values.
        """
        message: dict[str, Any] = reply.get("message", {})
        headers = b64decode(message.get("hdrs", ""))
        if not message or b"KV-Operation:" in headers or b"Nats-Marker-Reason:" in headers:
            return int(message["seq"]) if message else None
        return entry_from_fields(name, fields_from_json(b64decode(message.get("data", ""))), message["seq"])

    def names(self, reply: Mapping[str, Any]) -> list[str]:
        """Return the lock names of a reply to :attr:`list_keys`."""
        subjects = reply["state"].get("subjects") or {}
        return [unquote(subject.removeprefix(self._keys).replace("=", "%")) for subject in subjects]

    def _subject(self, name: str) -> str:
        """Keys have only letters, digits and ``-_/=.``, so other characters are encoded, as in ``=C3=B6``."""
        return self._keys + quote(name, safe="/").replace(".", "%2E").replace("~", "%7E").replace("%", "=")


def reply_of(message: Msg | Exception) -> dict[str, Any]:
    """Return JetStream's reply. The only errors in it are :data:`_EXPECTED`.

    :raises Exception: it is another error.
    """
    if isinstance(message, Exception):
        raise message
    if message.headers and message.headers.get("Status") == "503":
        raise ErrorReply("no server of the cluster responds", Failure.NOT_DONE, _NO_RESPONSE)
    reply: dict[str, Any] = parsed(message.data)
    if (error := reply.get("error")) and error.get("err_code") not in _EXPECTED:
        hint = _HINTS.get(error.get("err_code"))
        failure = Failure.REFUSED if error["code"] < 500 or hint else Failure.UNREACHABLE
        raise ErrorReply(str(error.get("description")), failure, hint)
    return reply
