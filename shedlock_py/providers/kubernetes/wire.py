"""The commands as requests to the API server.

https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from shedlock_py.model.record import LockRecord
from shedlock_py.providers.cas import CasCommand, Delete, Entry, List, OtherReplyError, Read, Write
from shedlock_py.providers.cas.listing import readable
from shedlock_py.providers.kit import ErrorReply, Failure
from shedlock_py.providers.kubernetes.lease import API_VERSION, LABEL, entry_of, lease_of, record_in
from shedlock_py.providers.kubernetes.names import object_name

MANAGER = "shedlock-py"
"""The server notes under this name which fields we have written."""
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, TOO_MANY = 401, 403, 404, 409, 429
VERBS = ("get", "list", "create", "update", "delete")
"""Verbs that a Role must allow. ``list`` and ``delete`` are for operators."""
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_VERBS: dict[type, str] = {Read: "get", List: "list", Delete: "delete"}


@dataclass(frozen=True, slots=True)
class AccessReview:
    """Request whether a Role allows ``verb``. The value is True or False, or None if the server does not say."""

    verb: str


Command = CasCommand | AccessReview


class Call(NamedTuple):
    """A request: method, path, and perhaps a body."""

    method: str
    path: str
    body: dict[str, Any] | None = None


def call_of(command: Command, namespace: str) -> Call:
    """Return the request that executes ``command``."""
    leases = f"/apis/{API_VERSION}/namespaces/{namespace}/leases"
    match command:
        case Read(name):
            return Call("GET", f"{leases}/{object_name(name)}")
        case List():
            return Call("GET", f"{leases}?labelSelector={quote(LABEL, safe='')}")
        case Write(record, None):
            return Call("POST", f"{leases}?fieldManager={MANAGER}", lease_of(command))
        case Write(record):
            path = f"{leases}/{object_name(record.name)}?fieldManager={MANAGER}"
            return Call("PUT", path, lease_of(command))
        case AccessReview(verb):
            group, _, _ = API_VERSION.partition("/")
            attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": "leases"}
            kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
            return Call("POST", _REVIEWS, {**kind, "spec": {"resourceAttributes": attributes}})
        case Delete(name, version):
            metadata = version.lease["metadata"]
            conditions = {field: metadata[field] for field in ("uid", "resourceVersion")}
            return Call("DELETE", f"{leases}/{object_name(name)}", {"preconditions": conditions})


def value_of(command: Command, status: int, reply: Any, clock_error: timedelta) -> Any:
    """Return the value of the reply to ``command``.

    :raises ErrorReply: the reply is an error.
    :raises ValueError: a record has odd values.
    :raises OtherReplyError: the reply belongs to another request.
    """
    _check_name(command, status, reply)
    is_missing = status == NOT_FOUND and _missing_kind(reply) == "leases"
    match command:
        case Read(name):
            if is_missing:
                return None
            entry = _entry(_success(command, status, reply), clock_error)
            if entry.record.name != name:
                raise ValueError(f"the Lease {object_name(name)} is the lock {entry.record.name!r}, not {name!r}")
            return entry
        case List():
            leases = _success(command, status, reply)["items"]
            found = ((lease["metadata"]["name"], partial(_entry, lease, clock_error)) for lease in leases)
            return list(readable(found, "Lease"))
        case Write():
            if status == CONFLICT or (is_missing and command.if_version is not None):
                return None
            lease = _success(command, status, reply)
            if record_in(lease) != record_in(lease_of(command)):
                raise OtherReplyError
            return _entry(lease, clock_error).version
        case AccessReview():
            if status in (FORBIDDEN, NOT_FOUND):
                return None
            return bool(_success(command, status, reply)["status"]["allowed"])
        case Delete():
            if status == CONFLICT or is_missing:
                return False
            _success(command, status, reply)
            return True


def _check_name(command: Command, status: int, reply: Any) -> None:
    """:raises OtherReplyError: the reply is not about the Lease or the list of ``command``."""
    kind = reply.get("kind") if isinstance(reply, Mapping) else None
    if kind is None or not (status < 300 or status in (NOT_FOUND, CONFLICT)):
        return  # any error, or a reply that does not come from an API server
    match command:
        case Read(name) | Write(LockRecord(name=name)) | Delete(name):
            where = reply.get("metadata") if kind == "Lease" else reply.get("details")
            found = where.get("name") if isinstance(where, Mapping) else None
            is_of_lease = kind == "Lease" or (kind == "Status" and _missing_kind(reply) in (None, "leases"))
            is_right = kind in ("Lease", "Status") and (not is_of_lease or found in (None, object_name(name)))
        case List():
            is_right = kind in ("LeaseList", "Status")
        case AccessReview():
            is_right = kind in ("SelfSubjectAccessReview", "Status")
    if not is_right:
        raise OtherReplyError


def _entry(lease: Any, clock_error: timedelta) -> Entry:
    try:
        return entry_of(lease, clock_error)
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a Lease: {lease!r:.200}") from error


def _success(command: Command, status: int, reply: Any) -> Any:
    if status < 300 and isinstance(reply, Mapping):
        return reply
    message = reply.get("message") if isinstance(reply, Mapping) else None
    text = str(message or f"HTTP status {status}, and no reply of Kubernetes")
    failure = Failure.REFUSED if 400 <= status < 500 else Failure.UNREACHABLE
    if status == TOO_MANY:
        failure = Failure.NOT_DONE
    raise ErrorReply(text, failure, _hint(command, status, _missing_kind(reply)))


def _hint(command: Command, status: int, missing: str | None) -> str | None:
    if isinstance(command, Write):
        verb = "create" if command.if_version is None else "update"
    else:
        verb = _VERBS.get(type(command), "")
    match status:
        case 401:
            return "the API server does not know this token or certificate: try `kubectl auth whoami` with it"
        case 403:
            return f"allow the verb {verb!r} on leases of coordination.k8s.io in a Role: docs/providers/kubernetes.md"
        case 404 if missing == "namespaces":
            return "create the namespace, or name another one in the URL"
        case 404:
            return "is it the address of an API server? It must serve coordination.k8s.io/v1"
    return None


def _missing_kind(reply: Any) -> str | None:
    """Return the missing object after a 404: "leases", "namespaces"; or None if the server does not know Leases."""
    details = reply.get("details") if isinstance(reply, Mapping) else None
    return details.get("kind") if isinstance(details, Mapping) and details.get("name") else None
