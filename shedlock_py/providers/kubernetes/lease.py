"""A lock record as a Lease that ``kubectl get lease`` and client-go's electors understand.

The fields of ``spec`` follow client-go's rules. An elector of client-go takes a Lease if it has no ``holderIdentity``,
or if the elector has seen no change for ``leaseDurationSeconds`` of its own clock:
https://github.com/kubernetes/client-go/blob/master/tools/leaderelection/leaderelection.go

Our exact record is an annotation. It counts only while ``holderIdentity`` and ``renewTime`` have the values that were
written with it. Otherwise an elector of client-go, or a person, has changed the Lease since.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from shedlock_py.model.record import LockRecord
from shedlock_py.providers.cas import Entry, Write
from shedlock_py.providers.cas.cas_programs import UNREAD
from shedlock_py.providers.cas.records_in_json import entry_from_fields, fields_from_json, write_to_json
from shedlock_py.providers.kubernetes.names import object_name

API_VERSION = "coordination.k8s.io/v1"
LABEL = "shedlock-py/lock"
"""The label of every Lease that is a lock."""
NAME = "shedlock-py/name"
RECORD = "shedlock-py/record"
_OF_HOLDER = {"f:holderIdentity", "f:renewTime", "f:leaseDurationSeconds"}
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Version:
    """The state that a write replaces: the whole Lease that was read, with the fields of other programs."""

    lease: dict[str, Any]
    record: LockRecord
    is_free: bool


# Reading


def entry_of(lease: Mapping[str, Any], clock_error: timedelta) -> Entry:
    """Return the lock record in a Lease. :raises ValueError: it has odd values."""
    metadata, spec = lease["metadata"], lease.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    name, holder = annotations.get(NAME, metadata["name"]), spec.get("holderIdentity") or ""
    record, is_free, is_current = None, False, False
    if RECORD in annotations:
        fields = fields_from_json(annotations[RECORD])
        renewed = fields.pop("renewed", None)
        written = entry_from_fields(name, fields, version=None)
        record, is_free = written.record, written.is_free
        is_current = (holder, spec.get("renewTime")) == ("" if is_free else record.locked_by, renewed)
    if record is None or not is_current:
        is_free, record = not holder, _of_elector(name, holder, metadata, spec, record, clock_error)
    return Entry(record, Version(dict(lease), record, is_free), is_free)


def record_in(lease: Mapping[str, Any]) -> str | None:
    """Return the annotation with our exact record, if the Lease has it. It has the holder, the token and the times."""
    text: str | None = ((lease.get("metadata") or {}).get("annotations") or {}).get(RECORD)
    return text


def _of_elector(
    name: str,
    holder: str,
    metadata: Mapping[str, Any],
    spec: Mapping[str, Any],
    before: LockRecord | None,
    clock_error: timedelta,
) -> LockRecord:
    """Return the record of a Lease that an elector of client-go holds, or has given back.

    The elector stops leading before ``leaseDurationSeconds`` have passed since its last renewal. ``renewTime`` comes
    from its node's clock, which may be wrong. So the end counts from the API server's time of the renewal.
    """
    renewed_at = _stored_at(metadata) or _time(spec.get("renewTime")) or UNREAD
    # The server truncates its time to seconds. Another server's clock may differ by clock_error.
    until = renewed_at + timedelta(seconds=1 + (spec.get("leaseDurationSeconds") or 0)) + clock_error
    return LockRecord(
        name,
        holder,
        min(_time(spec.get("acquireTime")) or renewed_at, renewed_at),
        until,
        before.fencing_token if before else 0,
        before.last_fire_time if before else None,
        read_at=UNREAD,
    )


def _stored_at(metadata: Mapping[str, Any]) -> datetime | None:
    """Return when the server last stored the holder or a renewal, by its own clock. None if it does not say."""
    times = [
        _time(entry.get("time"))
        for entry in metadata.get("managedFields") or ()
        if _OF_HOLDER & (entry.get("fieldsV1") or {}).get("f:spec", {}).keys()
    ]
    return max(filter(None, times), default=None)


# Writing


def lease_of(write: Write) -> dict[str, Any]:
    """Return the Lease for ``write``. Other fields stay the same as in the Lease that was read."""
    version: Version | None = write.if_version
    record = write.record
    lease: dict[str, Any] = deepcopy(version.lease) if version else {}
    metadata = lease.setdefault("metadata", {"name": object_name(record.name)})
    metadata.pop("managedFields", None)  # written by the server
    metadata["labels"] = {**(metadata.get("labels") or {}), LABEL: ""}
    spec = lease.get("spec") or {}
    if version is None or _held(version.record, version.is_free) != _held(record, write.is_free):
        spec = {**spec, **_spec(record, write.is_free, spec)}
    annotations = {NAME: record.name, RECORD: write_to_json(write, renewed=spec.get("renewTime"))}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    return {**lease, "apiVersion": API_VERSION, "kind": "Lease", "spec": spec}


def _held(record: LockRecord, is_free: bool) -> tuple[object, ...]:
    return record.locked_by, record.fencing_token, record.lock_until, is_free


def _spec(record: LockRecord, is_free: bool, before: Mapping[str, Any]) -> dict[str, Any]:
    renewed_at, last = record.read_at, _time(before.get("renewTime"))
    is_same = before.get("holderIdentity") in (record.locked_by, None)
    if last and is_same:
        # An elector compares whole seconds. It must see a new renewal.
        renewed_at = max(renewed_at, last + _SECOND)
    transitions = before.get("leaseTransitions")
    if transitions is None:
        transitions = None if is_free else 0  # a new Lease has had no holder
    elif not is_same and not is_free:
        transitions += 1
    seconds = 1 if is_free else -((record.read_at - record.lock_until) // _SECOND)  # rounded up
    return {
        "holderIdentity": "" if is_free else record.locked_by,
        "leaseDurationSeconds": max(1, seconds),
        "acquireTime": _micro_time(record.locked_at),
        "renewTime": _micro_time(renewed_at),
        **({} if transitions is None else {"leaseTransitions": transitions}),
    }


def _micro_time(moment: datetime) -> str:
    """Return the time as Kubernetes reads it: with six digits of a second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
