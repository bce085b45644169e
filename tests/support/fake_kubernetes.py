"""A fake Kubernetes API server, run as a program. It serves only Leases.

``stores/kubernetes/test_fake.py`` sends the same requests to this fake and to the real server, and compares the
replies. The fake refuses unknown requests with 501, so that no test relies on a guess.

One thread executes each request without a pause, so each request is atomic. A write is in the log file before its reply
is sent, so a killed fake comes back with its Leases.

Arguments: the port for TLS, the port without TLS, the directory of the log and the certificates, the reviewer's URL.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

Json = dict[str, Any]
Fields = set[tuple[str, ...]]
"""Paths of fields in a Lease."""

GROUP, VERSION = "coordination.k8s.io", "v1"
API_VERSION = f"{GROUP}/{VERSION}"
LEASES = f"/apis/{API_VERSION}/namespaces/{{}}/leases"
_MICRO_TIME: dict[str, Any] = {
    "type": "string",
    "nullable": True,
    "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[-+]\d\d:\d\d)$",
}
SPEC: dict[str, dict[str, Any]] = {
    "holderIdentity": {"type": "string", "nullable": True},
    "leaseDurationSeconds": {"type": "integer", "format": "int32", "nullable": True, "minimum": 1},
    "acquireTime": _MICRO_TIME,
    "renewTime": _MICRO_TIME,
    "leaseTransitions": {"type": "integer", "format": "int32", "nullable": True, "minimum": 0},
    "strategy": {"type": "string", "nullable": True},
    "preferredHolder": {"type": "string", "nullable": True},
}
"""The schema of a Lease's ``spec``. The real server gets it in a CustomResourceDefinition."""
_TYPES: dict[str, Any] = {"string": str, "integer": int}
_PATH = re.compile(LEASES.format("(?P<namespace>[^/]+)") + "(/(?P<name>[^/]+))?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME = 253
_VERBS = {
    "GET": ("list", "get"),
    "POST": ("create", ""),
    "PUT": ("", "update"),
    "DELETE": ("deletecollection", "delete"),
}
"""The verb for all Leases of a namespace, and the verb for a single Lease."""
_KNOWN = {"labelSelector", "fieldManager"}
_SUBJECTS = (("metadata", "labels"), ("metadata", "annotations"), ("spec",))
"""Where the server notes which manager has written a field."""


class Refusal(Exception):
    """An error reply to the request: a ``Status``."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        details = {field: value for field, value in details.items() if value}
        failure = {"status": "Failure", "message": message, "reason": reason, "code": code}
        failure |= {"details": details} if details else {}
        self.status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, **failure}


def _of_lease(code: int, reason: str, name: str, message: str, kind: str = "leases") -> Refusal:
    return Refusal(code, reason, message, name=name, group=GROUP, kind=kind)


def _not_found(name: str) -> Refusal:
    return _of_lease(404, "NotFound", name, f'leases.{GROUP} "{name}" not found')


def _conflict(name: str, why: str, kind: str = "leases") -> Refusal:
    return _of_lease(409, "Conflict", name, f'Operation cannot be fulfilled on {kind}.{GROUP} "{name}": {why}', kind)


class Leases:
    """All Leases, by namespace and name. A stored Lease is replaced, never changed."""

    def __init__(self, log: Path) -> None:
        self._version = 0
        self._leases: dict[tuple[str, str], Json] = {}
        self._log = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        content = log.read_bytes()
        whole = content.rfind(b"\n") + 1
        os.truncate(log, whole)  # a kill may cut the last line; that request got no reply
        for line in content[:whole].splitlines():
            self._version, namespace, name, lease = json.loads(line)
            self._keep(namespace, name, lease)

    def get(self, namespace: str, name: str) -> Json:
        if (lease := self._leases.get((namespace, name))) is None:
            raise _not_found(name)
        return lease

    def list(self, namespace: str, label: str = "") -> Json:
        found = sorted((name, lease) for (place, name), lease in self._leases.items() if place == namespace)
        items = [lease for _, lease in found if not label or label in lease["metadata"].get("labels", {})]
        metadata = {"continue": "", "resourceVersion": str(self._version)}
        return {"apiVersion": API_VERSION, "kind": "LeaseList", "metadata": metadata, "items": items}

    def create(self, namespace: str, sent: Json, manager: str) -> Json:
        name = str(sent["metadata"].get("name", ""))
        now = _now()
        lease = _checked(sent, {"name": name, "namespace": namespace, "uid": str(uuid4()), "creationTimestamp": now})
        if (namespace, name) in self._leases:
            raise _of_lease(409, "AlreadyExists", name, f'leases.{GROUP} "{name}" already exists')
        return self._write(namespace, _noted(lease, None, sent, manager, now))

    def update(self, namespace: str, name: str, sent: Json, manager: str) -> Json:
        before, metadata = self.get(namespace, name), sent["metadata"]
        own = before["metadata"]
        lease = _checked(sent, {key: own[key] for key in ("name", "namespace", "uid", "creationTimestamp")})
        if metadata.get("uid", own["uid"]) != own["uid"]:
            raise _conflict(name, f"Precondition failed: UID in precondition: {metadata['uid']}")
        if not metadata.get("resourceVersion"):
            cause = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
            raise _invalid(name, [("FieldValueInvalid", "metadata.resourceVersion", cause)], "leases")
        if metadata["resourceVersion"] != own["resourceVersion"]:
            changed = "the object has been modified; please apply your changes to the latest version and try again"
            raise _conflict(name, changed)
        lease = _noted(lease, before, sent, manager, _now())
        lease["metadata"]["resourceVersion"] = own["resourceVersion"]
        return before if lease == before else self._write(namespace, lease)

    def delete(self, namespace: str, name: str, preconditions: Mapping[str, str]) -> Json:
        metadata = self.get(namespace, name)["metadata"]
        for field, expected in preconditions.items():
            if metadata[field] != expected:
                why = f"the {field} in the precondition ({expected}) does not match {metadata[field]}"
                raise _conflict(name, why, "Lease")
        self._append(namespace, name, None)
        details = {"name": name, "group": GROUP, "kind": "leases", "uid": metadata["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def delete_all(self, namespace: str) -> Json:
        deleted = self.list(namespace)
        for lease in deleted["items"]:
            self._append(namespace, lease["metadata"]["name"], None)
        return deleted

    def _write(self, namespace: str, lease: Json) -> Json:
        lease["metadata"]["resourceVersion"] = str(self._version + 1)
        self._append(namespace, lease["metadata"]["name"], lease)
        return lease

    def _append(self, namespace: str, name: str, lease: Json | None) -> None:
        self._version += 1
        os.write(self._log, json.dumps([self._version, namespace, name, lease]).encode() + b"\n")
        self._keep(namespace, name, lease)

    def _keep(self, namespace: str, name: str, lease: Json | None) -> None:
        if lease is None:
            self._leases.pop((namespace, name), None)
        else:
            self._leases[namespace, name] = lease


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# Validation


def _checked(sent: Json, metadata: Json) -> Json:
    """Return the Lease to store, without unknown fields. :raises Refusal: a value is invalid."""
    name, causes = metadata["name"], []
    if not name:
        causes.append(("FieldValueRequired", "metadata.name", "Required value: name or generateName is required"))
    elif not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        causes.append(("FieldValueInvalid", "metadata.name", "a lowercase RFC 1123 subdomain must consist of …"))
    spec = {field: value for field, value in (sent.get("spec") or {}).items() if field in SPEC}
    causes += [cause for field, value in spec.items() for cause in _causes(field, value)]
    if causes:
        raise _invalid(name, causes)
    kept = {field: sent["metadata"][field] for field in ("labels", "annotations") if sent["metadata"].get(field)}
    lease = {"apiVersion": API_VERSION, "kind": "Lease", "metadata": {**metadata, **kept}}
    return {**lease, "spec": spec} if "spec" in sent else lease


def _causes(field: str, value: Any) -> Iterator[tuple[str, str, str]]:
    schema, path = SPEC[field], f"spec.{field}"
    if value is None and schema["nullable"]:
        return
    minimum, pattern = schema.get("minimum"), str(schema.get("pattern", ""))
    if not isinstance(value, _TYPES[schema["type"]]) or isinstance(value, bool):
        yield "FieldValueTypeInvalid", path, f"Invalid value: {path} in body must be of type {schema['type']}"
        if isinstance(value, float):
            yield "FieldValueInvalid", "<nil>", f'Invalid value: "": Checked value must be of type integer in {path}'
    elif minimum is not None and value < minimum:
        yield "FieldValueInvalid", path, f"Invalid value: {path} should be at least {minimum}"
    elif pattern and not re.search(pattern, value):
        yield "FieldValueInvalid", path, f"Invalid value: {path} should match {pattern}"


def _invalid(name: str, found: Iterable[tuple[str, str, str]], kind: str = "Lease") -> Refusal:
    causes = [{"reason": reason, "message": message, "field": field} for reason, field, message in found]
    message = f'{kind}.{GROUP} "{name}" is invalid: {causes[0]["field"]}: {causes[0]["message"]}'
    return Refusal(422, "Invalid", message, name=name, group=GROUP, kind=kind, causes=causes)


# Field managers and the times of their writes


def _noted(lease: Json, before: Json | None, sent: Json, manager: str, now: str) -> Json:
    """Return the Lease with ``metadata.managedFields``: a manager owns the fields that it changed last."""
    notes = sent["metadata"].get("managedFields")
    if before is not None and (notes == [{}] or not (notes := notes or before["metadata"].get("managedFields"))):
        return lease  # the client has removed the notes, so the server begins no new notes
    old, new = _values(before or {}), _values(lease)
    taken = {path for path, value in new.items() if path not in old or old[path] != value}
    entries = []
    for note in notes or []:
        owned = (set(_paths(note["fieldsV1"])) - taken) & new.keys()
        if note["manager"] == manager and taken:
            taken |= owned
        elif owned:
            entries.append({**note, "fieldsV1": _tree(owned)})
    if taken:
        entry = {"manager": manager, "operation": "Update", "apiVersion": API_VERSION, "time": now}
        entries.append({**entry, "fieldsType": "FieldsV1", "fieldsV1": _tree(taken)})
    entries.sort(key=lambda entry: (entry["time"], entry["manager"]))
    if entries:
        lease["metadata"]["managedFields"] = entries
    return lease


def _values(lease: Json) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for path in _SUBJECTS:
        value: Any = lease
        for key in path:
            value = value.get(key) if value else None
        if value is not None:
            found |= {path: None, **{(*path, key): one for key, one in value.items()}}
    return found


def _tree(paths: Fields) -> Json:
    """Return the paths as Kubernetes writes them. ``.`` is the field itself, beside its fields."""
    tree: Json = {}
    with_fields = {path[:-1] for path in paths}
    for path in sorted(paths):
        node = tree
        for key in path:
            node = node.setdefault(f"f:{key}", {})
        if path in with_fields:
            node["."] = {}
    return tree


def _paths(tree: Json, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, below in tree.items():
        path = above if key == "." else (*above, key.removeprefix("f:"))
        yield from _paths(below, path) if below else (path,)


# Requests


class Request(NamedTuple):
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    is_administrator: bool


class Fake:
    def __init__(self, leases: Leases, reviewer: str) -> None:
        self._leases = leases
        self._reviewer = urlsplit(reviewer)

    async def reply_to(self, request: Request) -> tuple[int, bytes]:
        try:
            path, options = urlsplit(request.target).path, dict(parse_qsl(urlsplit(request.target).query))
            if path == "/livez":
                return 200, b"ok"
            if path == "/version":
                return 200, json.dumps({"major": "1", "minor": "36"}).encode()
            if (found := _PATH.fullmatch(path)) is None:
                return 404, b"404 page not found\n"
            namespace, name = found["namespace"], found["name"] or ""
            if not request.is_administrator:
                await self._authorize(request, namespace, name)
            reply = self._carry_out(request, namespace, name, options)
            return 201 if request.method == "POST" else 200, json.dumps(reply).encode()
        except Refusal as refusal:
            return refusal.code, json.dumps(refusal.status).encode()

    def _carry_out(self, request: Request, namespace: str, name: str, options: Mapping[str, str]) -> Json:
        verb = _VERBS.get(request.method, ("", ""))[bool(name)]
        if not verb or not options.keys() <= _KNOWN:
            raise Refusal(501, "NotImplemented", f"the fake does not know {request.method} {request.target}")
        manager = options.get("fieldManager") or request.headers.get("user-agent", "").partition("/")[0]
        match verb:
            case "get":
                return self._leases.get(namespace, name)
            case "list":
                return self._leases.list(namespace, options.get("labelSelector", ""))
            case "delete":
                body = json.loads(request.body or b"{}")
                return self._leases.delete(namespace, name, body.get("preconditions", {}))
            case "deletecollection":
                return self._leases.delete_all(namespace)
        sent = _lease_in(request.body, namespace, name)
        if verb == "create":
            return self._leases.create(namespace, sent, manager)
        return self._leases.update(namespace, name, sent, manager)

    async def _authorize(self, request: Request, namespace: str, name: str) -> None:
        user = "system:anonymous"
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            status = await self._review("TokenReview", {"token": token})
            if not status["authenticated"]:
                raise Refusal(401, "Unauthorized", "Unauthorized")
            user = status["user"]["username"]
        verb = _VERBS[request.method][bool(name)]
        attributes = {"verb": verb, "namespace": namespace, "group": GROUP, "resource": "leases", "name": name}
        status = await self._review("SubjectAccessReview", {"user": user, "resourceAttributes": attributes})
        if not status["allowed"]:
            subject = f'leases.{GROUP} "{name}"' if name else f"leases.{GROUP}"
            where = f'in API group "{GROUP}" in the namespace "{namespace}"'
            message = f'{subject} is forbidden: User "{user}" cannot {verb} resource "leases" {where}'
            raise _of_lease(403, "Forbidden", name, message)

    async def _review(self, kind: str, spec: Json) -> Json:
        """Return the reviewer's reply, as the real server gets it."""
        reader, writer = await asyncio.open_connection(self._reviewer.hostname, self._reviewer.port)
        content = json.dumps({"kind": kind, "spec": spec}).encode()
        writer.write(b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status: Json = json.loads(body)["status"]
        return status


def _lease_in(body: bytes, namespace: str, name: str) -> Json:
    """Return the Lease of a request. :raises Refusal: the body has no Lease, or the URL names another Lease."""
    try:
        sent = json.loads(body)
        metadata = sent.setdefault("metadata", {})
        version, kind = sent.get("apiVersion"), sent.get("kind")
    except (ValueError, AttributeError) as error:
        raise Refusal(400, "BadRequest", f"not a JSON object: {error}") from error
    if version != API_VERSION or not kind:
        raise Refusal(400, "BadRequest", f"the API version in the data ({version}) does not match {API_VERSION}")
    if kind != "Lease":
        cause = ("FieldValueInvalid", "kind", f'Invalid value: "{kind}": must be Lease')
        raise _invalid(metadata.get("name", ""), [cause], kind)
    if metadata.get("namespace") not in (None, "", namespace):
        raise Refusal(400, "BadRequest", "the namespace of the provided object does not match that on the request")
    if name and metadata.get("name") != name:
        why = f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({name})"
        raise Refusal(400, "BadRequest", why)
    result: Json = sent
    return result


# Connections


async def _serve(fake: Fake, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    tls: ssl.SSLSocket | None = writer.get_extra_info("ssl_object")
    is_administrator = tls is None or bool(tls.getpeercert())
    try:
        is_open = True
        while is_open:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = first.split()
            code, reply = await fake.reply_to(Request(method, target, headers, body, is_administrator))
            is_open = headers.get("connection", "").lower() != "close"
            writer.write(
                f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\nContent-Type: application/json\r\n"
                f"Date: {formatdate(usegmt=True)}\r\nContent-Length: {len(reply)}\r\n"
                f"{'' if is_open else 'Connection: close' + chr(13) + chr(10)}\r\n".encode()
                + reply
            )
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass  # the client has closed the connection
    finally:
        writer.close()


async def main(tls_port: str, plain_port: str, directory: str, reviewer: str) -> None:
    data = Path(directory)
    serve = partial(_serve, Fake(Leases(data / "leases.log"), reviewer))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(data / "authority.crt"))
    context.load_cert_chain(data / "server.crt", data / "server.key")
    context.verify_mode = ssl.CERT_OPTIONAL
    plain = await asyncio.start_server(serve, "127.0.0.1", int(plain_port), backlog=256)
    tls = await asyncio.start_server(serve, "127.0.0.1", int(tls_port), backlog=256, ssl=context)
    await asyncio.gather(plain.serve_forever(), tls.serve_forever())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
