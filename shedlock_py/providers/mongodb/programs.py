"""The programs for MongoDB: each operation is one command, and one atomic step on one document.

Times are compared as numbers of milliseconds, which every server can do; a field that is missing counts as less than
any number. Values from users go into expressions as ``$literal`` only: ``"$name"`` is a valid lock name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

from bson import Int64
from pymongo import ReturnDocument
from pymongo.collation import Collation
from pymongo.errors import DuplicateKeyError

from shedlock_py._program import Program
from shedlock_py.durations import Duration, in_milliseconds, parse_duration
from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.events import logger
from shedlock_py.lease import Claim, Lease
from shedlock_py.providers.kit import Failure, Limits, StorePrograms, fire_time_too_late, refused
from shedlock_py.providers.mongodb import errors
from shedlock_py.record import LockRecord
from shedlock_py.request import LONGEST_NAME

Document = Mapping[str, Any]

MOST_INDEX_TRIES = 6
"""For processes that create the index at the same time."""
BYTE_BY_BYTE = Collation("simple")
"""Given with each command: a collection may have been made with a collation that folds case."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIELDS: dict[str, tuple[type, ...]] = {
    "lockedBy": (str,),
    "lockedAt": (datetime,),
    "lockUntil": (datetime,),
    "fencingToken": (int, Int64, type(None)),
    "lastFireTime": (int, Int64, type(None)),
}


@dataclass(frozen=True)
class Command:
    """A method of a PyMongo collection, and its arguments. The reply is its result; a cursor is read to its end."""

    method: str
    arguments: Mapping[str, Any]


class MongoPrograms(StorePrograms):
    """The programs for one collection."""

    def __init__(
        self, collection_name: str, expire_after: Duration, passwords: Iterable[str] = (), **limits: Unpack[Limits]
    ) -> None:
        super().__init__(passwords=passwords, **limits)
        self.collection_name = collection_name
        expiry = parse_duration(expire_after, "expire_after")
        if expiry < timedelta(seconds=1):
            raise ConfigurationError(f"expire_after={expire_after!r} is less than a second, which MongoDB counts in")
        self._expire_after_seconds = -(-expiry // timedelta(seconds=1))

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Any, Any, int | None]:
        make, operation = (take_over, "take_over") if force else (acquire, "acquire")
        command = make(claim, before, self.fire_time_tolerance)
        try:
            document = yield command
        except ProviderError as error:
            if errors.is_fire_time_too_late(error.__cause__):
                raise fire_time_too_late(operation, claim.request, self.fire_time_tolerance) from error.__cause__
            raise
        if document is None:
            return None  # what a take-over is to replace was deleted meanwhile
        is_granted = document.get("lockedBy") == claim.locked_by
        try:
            record = self._to_record(document, operation, claim.request.name)
        except ProviderError:
            if is_granted and not force:
                yield self.undo_of(claim)
            raise
        return record.fencing_token if is_granted else None

    def hold(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[Command, Any, bool]:
        result = yield release(lease.name, lease.locked_by, lock_for) if releasing else extend(lease, lock_for)
        return bool(result.matched_count)

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> Program[Command, Any, bool]:
        result = yield undo(name, locked_by, former_fire_time)
        return bool(result.matched_count)

    def record(self, name: str) -> Program[Command, Any, LockRecord | None]:
        documents = yield _read({"_id": name})
        return self._to_record(documents[0], "record", name) if documents else None

    def records(self, prefix: str) -> Program[Command, Any, list[LockRecord]]:
        last = prefix + "\U0010ffff" * LONGEST_NAME  # no name that starts with the prefix comes after this one
        documents = yield _read({"_id": {"$gte": prefix, "$lte": last}})
        records = []
        for document in documents:
            try:
                records.append(self._to_record(document, "records", document["_id"]))
            except ProviderError as error:  # a document that is no lock record must not hide the others
                logger.warning("left out: %s", error)
        return records

    def free(self, record: LockRecord) -> Program[Command, Any, object]:
        acquisition = {"_id": record.name, "lockedBy": record.locked_by, "fencingToken": record.fencing_token}
        return (yield _update({**acquisition, "$expr": _IS_HELD}, {"$set": {"lockUntil": _NOW}}))

    def forget_fire_time(self, name: str) -> Program[Command, Any, bool]:
        result = yield _update({"_id": name, "lastFireTime": {"$ne": None}}, {"$unset": "lastFireTime"})
        return bool(result.matched_count)

    def prune(self, unused_for: timedelta) -> Program[Command, Any, int]:
        limit = {"$subtract": [_NOW_MS, Int64(in_milliseconds(unused_for))]}
        old = {"lockUntil": {"$type": "date"}, "$expr": {"$lte": [_UNTIL_MS, limit]}}
        result = yield Command("delete_many", {"filter": old})
        deleted: int = result.deleted_count
        return deleted

    def create_schema(self) -> Program[Command, Any, None]:
        """The index that removes old records. Several processes may create it at once: read, create, read again."""
        seconds = self._expire_after_seconds
        for number in range(MOST_INDEX_TRIES):
            indexes = yield Command("list_indexes", {})
            index = next((index for index in indexes if dict(index["key"]) == {"lockUntil": 1}), None)
            if index is not None and index.get("expireAfterSeconds") == seconds:
                return
            create = Command("create_index", {"keys": "lockUntil", "expireAfterSeconds": seconds})
            change = {"keyPattern": {"lockUntil": 1}, "expireAfterSeconds": seconds}
            name = self.collection_name.partition(".")[2]
            try:
                yield (
                    create
                    if index is None
                    else Command("database.command", {"command": "collMod", "value": name, "index": change})
                )
                return
            except ProviderError as error:
                if errors.code_of(error.__cause__) not in errors.INDEX_EXISTS or number == MOST_INDEX_TRIES - 1:
                    raise

    def _to_record(self, document: Document, operation: str, name: object) -> LockRecord:
        """:raises ProviderError: a field has another type: compared with it, no lock would ever be free."""
        problem = ""
        for field, types in _FIELDS.items():
            value = document.get(field)
            if type(value) not in types:  # True is an int
                problem = "missing" if value is None else f"of type {type(value).__name__}"
                problem = f"its {field} is {problem}"
        newest = document.get("lastFireTime")
        try:
            if not problem:
                return LockRecord(
                    name=str(name),
                    locked_by=document["lockedBy"],
                    locked_at=document["lockedAt"],
                    lock_until=document["lockUntil"],
                    fencing_token=document.get("fencingToken"),
                    last_fire_time=None if newest is None else _EPOCH + newest * _MICROSECOND,
                    read_at=document.get("readAt", _EPOCH),  # the reply to a claim does not need it
                )
        except OverflowError:
            problem = f"its lastFireTime is {newest}"
        raise refused(operation, name if isinstance(name, str) else repr(name), problem, hint=self._no_record())

    # Errors

    def classify(self, error: Exception) -> Failure:
        return errors.classify(error)

    def text_of(self, error: Exception) -> str:
        """The driver's own words, without the dumps that it appends."""
        text = str(error)
        for dump in (", full error:", ", Topology Description:", " Topology Description:"):
            text = text.partition(dump)[0]
        return text

    def hint(self, error: Exception) -> str | None:
        if isinstance(error, DuplicateKeyError):
            return (
                f"collection {self.collection_name} takes another name for the same: lock names are compared byte by "
                f"byte, so use a collection without a collation"
            )
        return self._no_record() if errors.code_of(error) in errors.OTHER_TYPE else None

    def explain(self, error: Exception, failure: Failure, operation: str, lock_name: str | None) -> ProviderError:
        if isinstance(error, DuplicateKeyError):
            failure = Failure.REFUSED  # the server replied, each time
        return super().explain(error, failure, operation, lock_name)

    def _no_record(self) -> str:
        return (
            f"a document in {self.collection_name} is no lock record: give locks a collection of their own, or delete "
            f"the document"
        )


# The commands on lock records

_NOW = "$$NOW"
_NOW_MS = {"$toLong": _NOW}
_UNTIL_MS = {"$toLong": "$lockUntil"}
_IS_HELD = {"$gt": [_UNTIL_MS, _NOW_MS]}
_IS_RELEASED = {"$eq": ["$releasedToken", "$fencingToken"]}
_NOW_US = {"$multiply": [_NOW_MS, Int64(1000)]}
_REPLY = {"lockedBy": 1, "lockedAt": 1, "lockUntil": 1, "fencingToken": 1, "lastFireTime": 1}


def acquire(claim: Claim, _before: LockRecord | None, tolerance: timedelta) -> Command:
    """Claim the record if it is free, and leave it exactly as it is if not: MongoDB then writes nothing."""
    conditions: list[dict[str, Any]] = [{"$lte": [_UNTIL_MS, _NOW_MS]}]
    if claim.request.fire_time is not None:
        # First, so that a fire time that is too late is an error also while the lock is held.
        conditions.insert(0, {"$lt": ["$lastFireTime", _checked(claim.request.fire_time, tolerance)]})
    return _claim(claim, conditions, tolerance, upsert=True)


def take_over(claim: Claim, before: LockRecord | None, tolerance: timedelta) -> Command:
    """Claim the record from any holder, if it is still ``before``."""
    if before is None:
        conditions: list[dict[str, Any]] = [{"$eq": [{"$ifNull": ["$lockedBy", None]}, None]}]
    else:
        # By the holder and the time as well: ShedLock for Java does not change the token.
        token = None if before.fencing_token is None else Int64(before.fencing_token)
        conditions = [
            {"$eq": [{"$ifNull": ["$fencingToken", None]}, _literal(token)]},
            {"$eq": ["$lockedBy", _literal(before.locked_by)]},
            {"$eq": [{"$toLong": "$lockedAt"}, Int64((before.locked_at - _EPOCH) // timedelta(milliseconds=1))]},
        ]
    # An upsert would leave an empty document where the record was deleted meanwhile.
    return _claim(claim, conditions, tolerance, upsert=before is None)


def _claim(claim: Claim, conditions: list[dict[str, Any]], tolerance: timedelta, *, upsert: bool) -> Command:
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
    )


def _checked(moment: datetime, tolerance: timedelta) -> dict[str, Any]:
    """The fire time; evaluated, an error if it is too late."""
    fire_time = _literal(_microseconds(moment))
    latest = {"$add": [_NOW_US, Int64(tolerance // _MICROSECOND)]}
    return {"$toLong": {"$cond": [{"$gt": [fire_time, latest]}, errors.TOO_LATE, fire_time]}}


def extend(lease: Lease, lock_for: timedelta) -> Command:
    """Let the lock end ``lock_for`` from now, if exactly this acquisition holds it and was not released.

    By its token, too: the server may execute a late copy of the claim after other holders had the lock.
    """
    acquisition = {"_id": lease.name, "lockedBy": lease.locked_by, "fencingToken": lease.fencing_token}
    is_open = {"$and": [_IS_HELD, {"$not": [_IS_RELEASED]}]}
    return _update({**acquisition, "$expr": is_open}, {"$set": {"lockUntil": _after(in_milliseconds(lock_for))}})


def release(name: str, locked_by: str, lock_for: timedelta) -> Command:
    """Keep others out for ``lock_for`` more, if this acquisition holds the lock. A second copy matches again."""
    acquisition = {"_id": name, "lockedBy": locked_by, "$expr": {"$or": [_IS_HELD, _IS_RELEASED]}}
    until = {"$cond": [_IS_RELEASED, "$lockUntil", _after(in_milliseconds(lock_for))]}
    return _update(acquisition, {"$set": {"lockUntil": until, "releasedToken": "$fencingToken"}})


def undo(name: str, locked_by: str, former_fire_time: datetime | None) -> Command:
    """Free the record at once if it still names ``locked_by``, and put its fire time back."""
    until = {"$cond": [_IS_HELD, _NOW, "$lockUntil"]}
    changes: dict[str, Any] = {"lockUntil": until, "releasedToken": "$fencingToken"}
    if former_fire_time is not None:
        former = _literal(_microseconds(former_fire_time))
        changes["lastFireTime"] = {"$cond": [{"$gt": ["$lastFireTime", former]}, former, "$lastFireTime"]}
    return _update({"_id": name, "lockedBy": locked_by}, {"$set": changes})


def _update(filter: Document, stage: Document) -> Command:
    return Command("update_one", {"filter": filter, "update": [stage], "collation": BYTE_BY_BYTE})


def _read(filter: Document) -> Command:
    pipeline = [{"$match": filter}, {"$set": {"readAt": _NOW}}]
    return Command("aggregate", {"pipeline": pipeline, "collation": BYTE_BY_BYTE})


def _literal(value: object) -> dict[str, Any]:
    return {"$literal": value}


def _after(milliseconds: int) -> dict[str, Any]:
    return {"$add": [_NOW, Int64(milliseconds)]}


def _microseconds(moment: datetime) -> Int64:
    """Microseconds since 1970: a date of MongoDB has milliseconds only."""
    return Int64((moment - _EPOCH) // _MICROSECOND)
