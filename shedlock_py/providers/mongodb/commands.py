"""The commands for MongoDB: each is one request, and one atomic step on one document.

Times are compared as numbers of milliseconds, which every server can; a field that is missing counts as less than any
number. What comes from users goes into expressions as ``$literal`` only: ``"$name"`` is a fine lock name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import Int64

from shedlock_py.durations import in_milliseconds
from shedlock_py.lease import Claim, Lease
from shedlock_py.record import LockRecord
from shedlock_py.request import LONGEST_NAME

Document = Mapping[str, Any]
Pipeline = list[dict[str, Any]]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class FindOneAndUpdate:
    """Update one document, and reply with some of its fields as they are afterwards."""

    filter: Document
    update: Pipeline
    upsert: bool
    projection: Document


@dataclass(frozen=True)
class UpdateOne:
    """Update one document if it matches; the reply says whether it did."""

    filter: Document
    update: Pipeline


@dataclass(frozen=True)
class DeleteMany:
    filter: Document


@dataclass(frozen=True)
class Aggregate:
    pipeline: Pipeline


@dataclass(frozen=True)
class ListIndexes:
    pass


@dataclass(frozen=True)
class CreateIndex:
    """An index on one field that removes documents some time after the date in it."""

    field: str
    expire_after_seconds: int


@dataclass(frozen=True)
class ChangeIndex:
    """Another time for such an index."""

    field: str
    expire_after_seconds: int


Command = FindOneAndUpdate | UpdateOne | DeleteMany | Aggregate | ListIndexes | CreateIndex | ChangeIndex


@dataclass(frozen=True)
class Answer:
    """The reply: documents, or how many matched."""

    documents: Sequence[Document] = ()
    count: int = 0


# The commands on lock records

_NOW = "$$NOW"
_NOW_MS = {"$toLong": _NOW}
_UNTIL_MS = {"$toLong": "$lockUntil"}
_IS_HELD = {"$gt": [_UNTIL_MS, _NOW_MS]}
_IS_RELEASED = {"$eq": ["$releasedToken", "$fencingToken"]}
_NOW_US = {"$multiply": [_NOW_MS, Int64(1000)]}
_REPLY = {"lockedBy": 1, "lockedAt": 1, "lockUntil": 1, "fencingToken": 1, "lastFireTime": 1}

TOO_LATE = "shedlock_py: fire time too late"
"""The text that the server cannot convert to a number: so it refuses the whole command, and says why."""


def acquire(claim: Claim, tolerance: timedelta) -> FindOneAndUpdate:
    """Claim the record if it is free, and leave it exactly as it is if not: MongoDB then writes nothing."""
    conditions: list[dict[str, Any]] = [{"$lte": [_UNTIL_MS, _NOW_MS]}]
    if claim.request.fire_time is not None:
        # First, so that a fire time that is too late is an error also while the lock is held.
        conditions.insert(0, {"$lt": ["$lastFireTime", _checked(claim.request.fire_time, tolerance)]})
    return _claim(claim, conditions, tolerance)


def take_over(claim: Claim, before: LockRecord | None, tolerance: timedelta) -> FindOneAndUpdate:
    """Claim the record from any holder, if it is still ``before``."""
    if before is None:
        conditions: list[dict[str, Any]] = [{"$not": [_has("lockedBy")]}]
    else:
        # By the holder and the time as well: ShedLock for Java leaves our token as it is.
        token = None if before.fencing_token is None else Int64(before.fencing_token)
        conditions = [
            {"$eq": [{"$ifNull": ["$fencingToken", None]}, _literal(token)]},
            {"$eq": ["$lockedBy", _literal(before.locked_by)]},
            {"$eq": [{"$toLong": "$lockedAt"}, Int64((before.locked_at - EPOCH) // timedelta(milliseconds=1))]},
        ]
    return _claim(claim, conditions, tolerance)


def _claim(claim: Claim, conditions: list[dict[str, Any]], tolerance: timedelta) -> FindOneAndUpdate:
    request = claim.request
    # A claim that was granted already is not granted again: the command may be a retry.
    is_new = {"$ne": ["$lockedBy", _literal(claim.locked_by)]}
    changes: dict[str, Any] = {
        "lockUntil": _after(in_milliseconds(request.lock_at_most_for)),
        "lockedAt": _NOW,
        "lockedBy": _literal(claim.locked_by),
        "fencingToken": {"$max": [{"$add": ["$fencingToken", Int64(1)]}, _NOW_US]},
    }
    if request.fire_time is not None:
        changes["lastFireTime"] = {"$max": ["$lastFireTime", _checked(request.fire_time, tolerance)]}
    claimed = {"$mergeObjects": ["$$ROOT", changes]}
    update = {"$replaceWith": {"$cond": [{"$and": [is_new, *conditions]}, claimed, "$$ROOT"]}}
    return FindOneAndUpdate({"_id": request.name}, [update], upsert=True, projection=_REPLY)


def _checked(moment: datetime, tolerance: timedelta) -> dict[str, Any]:
    """The fire time; evaluated, an error if it is too late."""
    fire_time = _literal(_microseconds(moment))
    latest = {"$add": [_NOW_US, Int64(tolerance // MICROSECOND)]}
    return {"$toLong": {"$cond": [{"$gt": [fire_time, latest]}, TOO_LATE, fire_time]}}


def extend(lease: Lease, lock_for: timedelta) -> UpdateOne:
    """Let the lock end ``lock_for`` from now, if exactly this acquisition holds it and was not released.

    By its token, too: a late copy of its claim may be granted again, for nobody, after others had the lock.
    """
    ours = {"_id": lease.name, "lockedBy": lease.locked_by, "fencingToken": lease.fencing_token}
    is_open = {"$and": [_IS_HELD, {"$not": [_IS_RELEASED]}]}
    return UpdateOne({**ours, "$expr": is_open}, [{"$set": {"lockUntil": _after(in_milliseconds(lock_for))}}])


def release(name: str, locked_by: str, lock_for: timedelta) -> UpdateOne:
    """Keep others out for ``lock_for`` more, if exactly this acquisition holds it. Done before, it matches again."""
    ours = {"_id": name, "lockedBy": locked_by, "$expr": {"$or": [_IS_HELD, _IS_RELEASED]}}
    until = {"$cond": [_IS_RELEASED, "$lockUntil", _after(in_milliseconds(lock_for))]}
    return UpdateOne(ours, [{"$set": {"lockUntil": until, "releasedToken": "$fencingToken"}}])


def undo(name: str, locked_by: str, former_fire_time: datetime | None) -> UpdateOne:
    """Free the record at once if it still names ``locked_by``; its fire time goes back."""
    changes: dict[str, Any] = {
        "lockUntil": {"$cond": [_IS_HELD, _NOW, "$lockUntil"]},
        "releasedToken": "$fencingToken",
    }
    if former_fire_time is not None:
        former = _literal(_microseconds(former_fire_time))
        changes["lastFireTime"] = {"$cond": [{"$gt": ["$lastFireTime", former]}, former, "$lastFireTime"]}
    return UpdateOne({"_id": name, "lockedBy": locked_by}, [{"$set": changes}])


def force_release(name: str) -> UpdateOne:
    return UpdateOne({"_id": name, "$expr": _IS_HELD}, [{"$set": {"lockUntil": _NOW}}])


def forget_fire_time(name: str) -> UpdateOne:
    return UpdateOne({"_id": name, "lastFireTime": {"$ne": None}}, [{"$unset": "lastFireTime"}])


def prune(unused: timedelta) -> DeleteMany:
    limit = {"$subtract": [_NOW_MS, Int64(in_milliseconds(unused))]}
    return DeleteMany({"lockUntil": {"$type": "date"}, "$expr": {"$lte": [_UNTIL_MS, limit]}})


def record(name: str) -> Aggregate:
    return _read({"_id": name})


def records(prefix: str) -> Aggregate:
    # No name that starts with the prefix comes after this one.
    last = prefix + "\U0010ffff" * LONGEST_NAME
    return _read({"_id": {"$gte": prefix, "$lte": last}})


def _read(which: Document) -> Aggregate:
    return Aggregate([{"$match": which}, {"$set": {"readAt": _NOW}}])


def _literal(value: object) -> dict[str, Any]:
    return {"$literal": value}


def _after(milliseconds: int) -> dict[str, Any]:
    return {"$add": [_NOW, Int64(milliseconds)]}


def _has(field: str) -> dict[str, Any]:
    return {"$ne": [{"$ifNull": [f"${field}", None]}, None]}


def _microseconds(moment: datetime) -> Int64:
    """Microseconds since 1970: a date of MongoDB has milliseconds only."""
    return Int64((moment - EPOCH) // MICROSECOND)
