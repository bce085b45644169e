"""What the algorithm asks of MongoDB: each command is one request, and one atomic step on one document.

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
from shedlock_py.rules import LONGEST_NAME, Claim, Lease

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


@dataclass(frozen=True)
class Pause:
    """Nothing is asked; some time passes."""

    seconds: float


Command = FindOneAndUpdate | UpdateOne | DeleteMany | Aggregate | ListIndexes | CreateIndex | ChangeIndex | Pause


@dataclass(frozen=True)
class Answer:
    """The reply: documents, or how many matched."""

    documents: Sequence[Document] = ()
    count: int = 0
    repeated: bool = False
    """Asked twice, because the connection broke: the first may have been done, or may yet be."""


# The commands on lock records

_NOW = "$$NOW"
_NOW_MS = {"$toLong": _NOW}
_UNTIL_MS = {"$toLong": "$lockUntil"}
_IS_HELD = {"$gt": [_UNTIL_MS, _NOW_MS]}
_IS_RELEASED = {"$eq": ["$releasedToken", "$fencingToken"]}
_NOW_US = {"$multiply": [_NOW_MS, Int64(1000)]}
_FIRST_TOKEN = {"$add": [_NOW_US, Int64(1)]}  # not the beginning of a millisecond: it is renumbered
_REPLY = {"lockedBy": 1, "fencingToken": 1}


def acquire(claim: Claim) -> FindOneAndUpdate:
    """Claim the record if it is free, and leave it exactly as it is if not: MongoDB then writes nothing."""
    conditions: list[dict[str, Any]] = [{"$lte": [_UNTIL_MS, _NOW_MS]}]
    if claim.request.fire_time is not None:
        conditions.append({"$lt": ["$lastFireTime", _literal(_fire_time(claim.request.fire_time))]})
    return _claim(claim, conditions)


def take_over(claim: Claim) -> FindOneAndUpdate:
    return _claim(claim, [])


def _claim(claim: Claim, conditions: list[dict[str, Any]]) -> FindOneAndUpdate:
    request = claim.request
    # What was done already is not done again: the question may be a repeated one.
    is_new = {"$ne": ["$lockedBy", _literal(claim.locked_by)]}
    changes: dict[str, Any] = {
        "lockUntil": _after(in_milliseconds(request.lock_at_most_for)),
        "lockedAt": _NOW,
        "lockedBy": _literal(claim.locked_by),
        "fencingToken": {"$cond": [_has("fencingToken"), _next_token("$fencingToken"), _FIRST_TOKEN]},
    }
    if request.fire_time is not None:
        changes["lastFireTime"] = {"$max": ["$lastFireTime", _literal(_fire_time(request.fire_time))]}
    claimed = {"$mergeObjects": ["$$ROOT", changes]}
    update = {"$replaceWith": {"$cond": [{"$and": [is_new, *conditions]}, claimed, "$$ROOT"]}}
    return FindOneAndUpdate({"_id": request.name}, [update], upsert=True, projection=_REPLY)


def renumber(claim: Claim, token: int) -> FindOneAndUpdate:
    """Give a claim the token after ``token``, once: its lease shall know which it has."""
    ours = {"_id": claim.request.name, "lockedBy": claim.locked_by}
    is_old = {"$eq": ["$fencingToken", Int64(token)]}
    update = {"$set": {"fencingToken": {"$cond": [is_old, _next_token("$fencingToken"), "$fencingToken"]}}}
    return FindOneAndUpdate(ours, [update], upsert=False, projection=_REPLY)


def extend(lease: Lease, lock_for: timedelta) -> UpdateOne:
    """Let the lock end ``lock_for`` from now, if exactly this acquisition holds it and was not released.

    By its token, too: a claim that was asked for twice may be granted again, for nobody, after others had the lock.
    """
    ours = {"_id": lease.name, "lockedBy": lease.locked_by, "fencingToken": lease.fencing_token}
    is_open = {"$and": [_IS_HELD, {"$not": [_IS_RELEASED]}]}
    return UpdateOne({**ours, "$expr": is_open}, [{"$set": {"lockUntil": _after(in_milliseconds(lock_for))}}])


def release(name: str, locked_by: str, lock_for: timedelta) -> UpdateOne:
    """Keep others out for ``lock_for`` more, if exactly this acquisition holds it. Done before, it matches again."""
    ours = {"_id": name, "lockedBy": locked_by, "$expr": {"$or": [_IS_HELD, _IS_RELEASED]}}
    until = {"$cond": [_IS_RELEASED, "$lockUntil", _after(in_milliseconds(lock_for))]}
    return UpdateOne(ours, [{"$set": {"lockUntil": until, "releasedToken": "$fencingToken"}}])


def force_release(name: str) -> UpdateOne:
    return UpdateOne({"_id": name, "$expr": _IS_HELD}, [{"$set": {"lockUntil": _NOW}}])


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


def _next_token(previous: str) -> dict[str, Any]:
    return {"$max": [{"$add": [previous, Int64(1)]}, _NOW_US]}


def _fire_time(moment: datetime) -> Int64:
    """Microseconds since 1970: a date of MongoDB has milliseconds only."""
    return Int64((moment - EPOCH) // MICROSECOND)
