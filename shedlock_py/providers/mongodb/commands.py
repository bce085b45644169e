"""The commands on lock records: one atomic step on one document per command.

Times are compared as milliseconds, which every server supports. A missing field is less than any number. User values go
into expressions only as ``$literal``, because ``"$name"`` is a valid lock name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import Int64
from pymongo import ReturnDocument
from pymongo.collation import Collation

from shedlock_py.model.durations import in_milliseconds
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.providers.kit import given_back
from shedlock_py.providers.mongodb import errors

Document = Mapping[str, Any]

BYTE_BY_BYTE = Collation("simple")
"""For each command, because the collection may have a collation that ignores case."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Command:
    """A method of a PyMongo collection, and its arguments. The reply is its result, or all documents of a cursor."""

    method: str
    arguments: Mapping[str, Any]
    can_grant: bool = False
    is_history: bool = False
    """The command only writes run history."""


HELLO = Command("database.command", {"command": {"hello": 1}})
"""Describes the server. It needs no rights."""
NOW = "$$NOW"
NOW_MS = {"$toLong": NOW}
UNTIL_MS = {"$toLong": "$lockUntil"}
IS_HELD = {"$gt": [UNTIL_MS, NOW_MS]}
_IS_RELEASED = {"$eq": ["$releasedToken", "$fencingToken"]}
_IS_FREED = {"$eq": ["$freedToken", "$fencingToken"]}
"""An operator has freed the lock."""
_NOW_US = {"$multiply": [NOW_MS, Int64(1000)]}
_REPLY = {"lockedBy": 1, "lockedAt": 1, "lockUntil": 1, "fencingToken": 1, "lastFireTime": 1}


# A command that also writes run history gets the number of runs to keep, or the lease that ends. A command that ends or
# removes a run does not change a document without runs.

_RUNS = "$runs"
_RUNS_OR_NONE = {"$ifNull": [_RUNS, []]}
_RUN = "$$run"


def acquire(claim: Claim, _before: LockRecord | None, tolerance: timedelta, runs_kept: int = 0) -> Command:
    """Claim the record if it is free. If not, the document stays the same, and MongoDB writes nothing."""
    conditions: list[dict[str, Any]] = [{"$lte": [UNTIL_MS, NOW_MS]}]
    if claim.request.fire_time is not None:
        # This comes first: a fire time that is too late is an error even while the lock is held.
        conditions.insert(0, {"$lt": ["$lastFireTime", _checked(claim.request.fire_time, tolerance)]})
    return _claim(claim, conditions, tolerance, runs_kept, upsert=True)


def take_over(claim: Claim, before: LockRecord | None, tolerance: timedelta, runs_kept: int = 0) -> Command:
    """Claim the record from any holder if it is still ``before``."""
    if before is None:
        conditions: list[dict[str, Any]] = [{"$eq": [{"$ifNull": ["$lockedBy", None]}, None]}]
    else:
        # Compare the holder and the time, too, because ShedLock for Java does not change the token.
        token = None if before.fencing_token is None else Int64(before.fencing_token)
        conditions = [
            {"$eq": [{"$ifNull": ["$fencingToken", None]}, _literal(token)]},
            {"$eq": ["$lockedBy", _literal(before.locked_by)]},
            is_locked_as(before),
        ]
    if claim.recoveries:
        conditions += [{"$lte": [UNTIL_MS, NOW_MS]}, {"$not": [_IS_RELEASED]}, {"$not": [_IS_FREED]}]
    # If the record was deleted meanwhile, an upsert would leave an empty document.
    return _claim(claim, conditions, tolerance, runs_kept, upsert=before is None)


def _claim(
    claim: Claim, conditions: list[dict[str, Any]], tolerance: timedelta, runs_kept: int, *, upsert: bool
) -> Command:
    request = claim.request
    # If this claim was granted before, the command may be a retry: do not grant it again.
    is_new = {"$ne": ["$lockedBy", _literal(claim.locked_by)]}
    changes: dict[str, Any] = {
        "lockUntil": _after(in_milliseconds(request.lock_at_most_for)),
        "lockedAt": NOW,
        "lockedBy": _literal(claim.locked_by),
        "fencingToken": {"$max": [{"$add": ["$fencingToken", Int64(1)]}, _NOW_US]},
    }
    if request.fire_time is not None:
        changes["lastFireTime"] = {"$max": ["$lastFireTime", _checked(request.fire_time, tolerance)]}
    if runs_kept:
        changes["runs"] = _with_run(claim, changes["fencingToken"], runs_kept)
    claimed = {"$mergeObjects": ["$$ROOT", changes]}
    update = {"$replaceWith": {"$cond": [{"$and": [is_new, *conditions]}, claimed, "$$ROOT"]}}
    return Command(
        "find_one_and_update",
        {
            "filter": {"_id": request.name},
            "update": [update],
            "upsert": upsert,
            "projection": _REPLY,
            "return_document": ReturnDocument.AFTER,
            "collation": BYTE_BY_BYTE,
        },
        can_grant=True,
    )


def is_locked_as(record: LockRecord) -> dict[str, Any]:
    """Return a condition: locked at the time of ``record``. ShedLock for Java changes neither token nor holder."""
    return {"$eq": [{"$toLong": "$lockedAt"}, Int64((record.locked_at - EPOCH) // timedelta(milliseconds=1))]}


def _checked(moment: datetime, tolerance: timedelta) -> dict[str, Any]:
    """Return the fire time. The server raises an error if it is too late."""
    fire_time = _literal(_microseconds(moment))
    latest = {"$add": [_NOW_US, Int64(tolerance // MICROSECOND)]}
    return {"$toLong": {"$cond": [{"$gt": [fire_time, latest]}, errors.TOO_LATE, fire_time]}}


def extend(lease: Lease, lock_for: timedelta) -> Command:
    """Let the lock end ``lock_for`` from now, if exactly this acquisition holds it and was not released.

    It compares the token, too: the server may execute a late copy of the claim after other holders had the lock.
    """
    acquisition = {"_id": lease.name, "lockedBy": lease.locked_by, "fencingToken": lease.fencing_token}
    is_open = {"$and": [IS_HELD, {"$not": [_IS_RELEASED]}]}
    return update({**acquisition, "$expr": is_open}, {"$set": {"lockUntil": _after(in_milliseconds(lock_for))}})


def release(name: str, locked_by: str, lock_for: timedelta, ends_run: Lease | None = None) -> Command:
    """Keep the lock for ``lock_for`` more, if this acquisition holds it. A second copy of the command matches again."""
    acquisition = {"_id": name, "lockedBy": locked_by, "$expr": {"$or": [IS_HELD, _IS_RELEASED]}}
    until = {"$cond": [_IS_RELEASED, "$lockUntil", _after(in_milliseconds(lock_for))]}
    changes: dict[str, Any] = {"lockUntil": until, "releasedToken": "$fencingToken"}
    if ends_run is not None:
        changes["runs"] = _with_end(ends_run, ends_run.outcome)
    return update(acquisition, {"$set": changes})


def end_lost_run(lease: Lease) -> Command:
    """End the run of a lost lease, if the run is still in the record and has no end."""
    filter = {"_id": lease.name, "runs": {"$elemMatch": {"lockedBy": lease.locked_by, "ended": None}}}
    return replace(update(filter, {"$set": {"runs": _with_end(lease, "lost")}}), is_history=True)


def undo(name: str, locked_by: str, former_fire_time: datetime | None, removes_run: bool = False) -> Command:
    """Free the record at once if it still names ``locked_by``, and give its fire time back."""
    until = {"$cond": [IS_HELD, NOW, "$lockUntil"]}
    changes: dict[str, Any] = {"lockUntil": until, "releasedToken": "$fencingToken"}
    if former_fire_time is not None:
        former = _literal(_microseconds(former_fire_time))
        changes["lastFireTime"] = {"$cond": [{"$gt": ["$lastFireTime", former]}, former, "$lastFireTime"]}
    if removes_run:
        is_other = {"$ne": [f"{_RUN}.lockedBy", _literal(locked_by)]}
        changes["runs"] = _if_runs({"$filter": {"input": _RUNS, "as": "run", "cond": is_other}})
    return update({"_id": name, "lockedBy": locked_by}, {"$set": changes})


def free(record: LockRecord) -> Command:
    """End the lease of ``record`` for an operator. It sets another mark, so the holder's release does not match."""
    acquisition = {"_id": record.name, "lockedBy": record.locked_by, "fencingToken": record.fencing_token}
    conditions = [IS_HELD, is_locked_as(record)]
    changes: dict[str, Any] = {"lockUntil": NOW, "freedToken": "$fencingToken"}
    former = given_back(record)
    if former is not None:
        conditions.append({"$not": [_IS_RELEASED]})
        changes["lastFireTime"] = _literal(_microseconds(former))
    return update({**acquisition, "$expr": {"$and": conditions}}, {"$set": changes})


def update(filter: Document, stage: Document) -> Command:
    """Change the document that matches ``filter``, if it exists."""
    return Command("update_one", {"filter": filter, "update": [stage], "collation": BYTE_BY_BYTE})


def read(filter: Document) -> Command:
    """Read lock records without their runs, which may be long."""
    return _aggregate({"$match": filter}, {"$unset": "runs"}, {"$set": {"readAt": NOW}})


def read_runs(name: str, limit: int) -> Command:
    """Read the newest ``limit`` runs of ``name``."""
    return _aggregate({"$match": {"_id": name}}, {"$replaceWith": {"runs": _if_runs({"$slice": [_RUNS, -limit]})}})


def read_recent_runs(names: Sequence[str], limit: int) -> Command:
    """Read the newest ``limit`` runs of each of ``names``."""
    newest = {"runs": _if_runs({"$slice": [_RUNS, -limit]})}
    return _aggregate({"$match": {"_id": {"$in": list(names)}}}, {"$project": newest})


def _aggregate(*pipeline: Document) -> Command:
    return Command("aggregate", {"pipeline": list(pipeline), "collation": BYTE_BY_BYTE})


# The runs of a record, the newest run last


def _with_run(claim: Claim, token: Document, kept: int) -> Document:
    """Return the runs with a new run, and without the oldest runs if there are more than ``kept``.

    If the field exists but is not an array, another program owns it, and it stays.
    """
    request = claim.request
    run: dict[str, Any] = {"fencingToken": token, "lockedBy": _literal(claim.locked_by), "started": NOW}
    if request.fire_time is not None:
        run["fireTime"] = _literal(_microseconds(request.fire_time))
    if request.next_fire_time is not None:
        run["nextFireTime"] = _literal(_microseconds(request.next_fire_time))
    runs = {"$slice": [{"$concatArrays": [_RUNS_OR_NONE, [run]]}, -kept]}
    return {"$cond": [{"$isArray": [_RUNS_OR_NONE]}, runs, _RUNS]}


def _with_end(lease: Lease, outcome: str) -> Document:
    """Return the runs with an end for the run of ``lease``. A run that has an end keeps it."""
    end: dict[str, Any] = {"ended": NOW, "outcome": _literal(outcome)}
    if lease.error is not None:
        end["error"] = _literal(lease.error)
    is_open = {"$and": [{"$eq": [f"{_RUN}.lockedBy", _literal(lease.locked_by)]}, {"$not": [f"{_RUN}.ended"]}]}
    run = {"$cond": [is_open, {"$mergeObjects": [_RUN, end]}, _RUN]}
    return _if_runs({"$map": {"input": _RUNS, "as": "run", "in": run}})


def _if_runs(expression: Document) -> Document:
    return {"$cond": [{"$isArray": [_RUNS]}, expression, _RUNS]}


def _literal(value: object) -> dict[str, Any]:
    return {"$literal": value}


def _after(milliseconds: int) -> dict[str, Any]:
    return {"$add": [NOW, Int64(milliseconds)]}


def _microseconds(moment: datetime) -> Int64:
    """Return microseconds since 1970, because MongoDB's dates have only milliseconds."""
    return Int64((moment - EPOCH) // MICROSECOND)
