"""Commands as requests to etcd's JSON gateway. Every etcd since 3.4 has it at its client address.

https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from shedlock_py.model.text import parsed
from shedlock_py.providers.cas import CasCommand, Delete, Entry, List, OtherReplyError, Read, Write
from shedlock_py.providers.cas.listing import readable
from shedlock_py.providers.cas.records_in_json import entry_from_fields, fields_from_json, write_to_json
from shedlock_py.providers.kit import ErrorReply, Failure


class EtcdError(ErrorReply):
    """Etcd replied with an error.

    :ivar code: gRPC's code.
    """

    def __init__(self, code: int, message: str, hint: str | None = None) -> None:
        is_busy = "too many requests" in message  # a store without space has the same code
        super().__init__(message, Failure.NOT_DONE if is_busy else _BY_CODE.get(code, Failure.REFUSED), hint)
        self.code = code

    @property
    def is_old_login(self) -> bool:
        """The token of the login is too old: it has expired, its member was restarted, or users were changed."""
        return self.code == 16 or "revision of auth store is old" in str(self)


NOT_ETCD = -1
"""Replaces the code of a reply that does not come from etcd."""
_NOT_ETCD_HINT = "name the client addresses of etcd, with tls=true if it has TLS; its JSON gateway must be on"
_BY_CODE = {
    4: Failure.UNREACHABLE,  # deadline exceeded: the leader did not confirm it in time
    14: Failure.UNREACHABLE,  # unavailable: no leader, or the leader has changed
    13: Failure.UNREACHABLE,  # internal
    2: Failure.UNREACHABLE,  # unknown
    NOT_ETCD: Failure.UNREACHABLE,  # perhaps from a proxy that has passed the command on
}


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """A request about the cluster itself. The reply's value is etcd's JSON."""

    path: str
    body: Mapping[str, Any]


class Version(NamedTuple):
    """The state that a write replaces.

    :ivar revision: can repeat, because a cluster that is recreated at the same address counts from 1 again.
    :ivar value: in base64. If the lock is held, it contains the claim id.
    """

    revision: str
    value: str


Command = CasCommand | ClusterRequest
STATUS = ClusterRequest("/v3/maintenance/status", {})
"""The status of one member, with its version."""
MEMBERS = ClusterRequest("/v3/cluster/member/list", {})
ALARMS = ClusterRequest("/v3/maintenance/alarm", {"action": "GET"})


def request_of(command: Command, prefix: str) -> tuple[str, dict[str, Any]]:
    """Return path and body. Reads are linearizable, etcd's default: a member asks the leader before it replies."""
    match command:
        case ClusterRequest(path, body):
            return path, dict(body)
        case Read(name):
            return "/v3/kv/range", {"key": _encoded(prefix + name)}
        case List(start):
            first = (prefix + start).encode()
            return "/v3/kv/range", {"key": _encoded(first), "range_end": _encoded(_after(first))}
        case Write(record, if_version):
            key = _encoded(prefix + record.name)
            return _transaction(key, if_version, {"request_put": {"key": key, "value": _value(command)}})
        case Delete(name, if_version):
            key = _encoded(prefix + name)
            return _transaction(key, if_version, {"request_delete_range": {"key": key, "prev_kv": True}})


def _value(write: Write) -> str:
    return _encoded(write_to_json(write))


def _transaction(key: str, if_version: Version | None, change: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    compare = [{"key": key, "target": "VERSION", "result": "EQUAL", "version": "0"}]  # the key does not exist
    if if_version is not None:
        compare = [
            {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": if_version.revision},
            {"key": key, "target": "VALUE", "result": "EQUAL", "value": if_version.value},
        ]
    read = {"request_range": {"key": key}}  # makes the reply name the key and the value that was written
    return "/v3/kv/txn", {"compare": compare, "success": [change, read], "failure": [read]}


def value_of(command: Command, prefix: str, reply: Mapping[str, Any]) -> Any:
    """Return the value of the reply to ``command``. The gateway omits values that are empty, zero or false.

    :raises ValueError: a record has odd values.
    :raises OtherReplyError: the reply belongs to another request.
    """
    match command:
        case ClusterRequest():
            return reply
        case Read(name):
            pairs = _pairs(reply, lambda key: key == (prefix + name).encode())
            return _entry(prefix, pairs[0]) if pairs else None
        case List(start):
            pairs = _pairs(reply, lambda key: key.startswith((prefix + start).encode()))
            return list(readable((b64decode(pair["key"]), partial(_entry, prefix, pair)) for pair in pairs))
        case Write(record):
            written = _written(_encoded(prefix + record.name), reply)
            if written is not None and written["value"] != _value(command):
                raise OtherReplyError
            return Version(written["mod_revision"], written["value"]) if written else None
        case Delete(name):
            return _written(_encoded(prefix + name), reply) is not None


def _pairs(reply: Mapping[str, Any], is_requested: Callable[[bytes], bool]) -> list[Mapping[str, Any]]:
    pairs: list[Mapping[str, Any]] = reply.get("kvs", [])
    if "responses" in reply or not all(is_requested(b64decode(pair["key"])) for pair in pairs):
        raise OtherReplyError
    return pairs


def _written(key: str, reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the key and value that a transaction has written or deleted. None if its condition did not hold."""
    match reply:
        case {
            "succeeded": True,
            "responses": [{"response_put": _}, {"response_range": {"kvs": [{"key": found} as pair]}}],
        }:
            pass
        case {"succeeded": True, "responses": [{"response_delete_range": {"prev_kvs": [{"key": found} as pair]}}, _]}:
            pass
        case {"responses": [{"response_range": {"kvs": [{"key": found}]}}]}:
            pair = None
        case {"responses": [{"response_range": _}]}:
            found, pair = key, None  # the key is absent, so the reply does not name it
        case _:
            raise OtherReplyError
    if found != key:
        raise OtherReplyError
    return pair


def reply_of(status: int, text: str) -> dict[str, Any]:
    """Return etcd's reply.

    :raises EtcdError: the reply is an error, or does not come from etcd.
    """
    reply: Any
    try:
        reply = parsed(text)
    except ValueError:
        reply = None
    match status, reply:
        case 200, {"header": {}}:
            return dict(reply)
        case _, {"error": str(message), "code": int(code)} | {"message": str(message), "code": int(code)}:
            raise EtcdError(code, message)
    raise EtcdError(NOT_ETCD, f"HTTP status {status}, and no reply of etcd: {text.strip()[:100]!r}", _NOT_ETCD_HINT)


def _entry(prefix: str, pair: Mapping[str, Any]) -> Entry:
    name = b64decode(pair["key"]).decode()[len(prefix) :]
    fields = fields_from_json(b64decode(pair.get("value", "")))
    return entry_from_fields(name, fields, Version(pair["mod_revision"], pair["value"]))


def _encoded(text: str | bytes) -> str:
    return b64encode(text.encode() if isinstance(text, str) else text).decode()


def _after(key: bytes) -> bytes:
    """Return the first key that does not start with ``key``. A zero byte (all keys) if no such key exists."""
    start = key.rstrip(b"\xff")
    return start[:-1] + bytes([start[-1] + 1]) if start else b"\0"
