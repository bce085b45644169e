"""Operations on MongoDB: one command, which is one atomic step on one document, per operation.

Run history is an array in the lock's document, written by the same command. If the server refuses the command, it is
sent again without history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Unpack, get_args

from bson import Int64
from pymongo.errors import DuplicateKeyError

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.events import logger
from shedlock_py.model.durations import Duration, in_milliseconds, parse_duration
from shedlock_py.model.lease import Claim, Lease, RunOutcome
from shedlock_py.model.record import ONCE, LockRecord, holder_of
from shedlock_py.model.request import LONGEST_NAME
from shedlock_py.model.run import Run
from shedlock_py.providers.kit import (
    Check,
    Failure,
    Limits,
    StorePrograms,
    fire_time_too_late,
    not_known,
    refused,
    undo_of,
)
from shedlock_py.providers.mongodb import errors
from shedlock_py.providers.mongodb.commands import (
    EPOCH,
    HELLO,
    MICROSECOND,
    NOW_MS,
    UNTIL_MS,
    Command,
    Document,
    acquire,
    end_lost_run,
    extend,
    free,
    read,
    read_recent_runs,
    read_runs,
    release,
    take_over,
    undo,
    update,
)
from shedlock_py.runtime.program import Program

KEPT_WITH_RUNS = timedelta(days=3652)
"""How long a record with runs is kept: ten years, for jobs that run once a month or once a year."""

_FIELDS: dict[str, tuple[type, ...]] = {
    "lockedBy": (str,),
    "lockedAt": (datetime,),
    "lockUntil": (datetime,),
    "fencingToken": (int, Int64, type(None)),
    "lastFireTime": (int, Int64, type(None)),
}
_FIELDS_OF_RUN: dict[str, tuple[type, ...]] = {
    "fencingToken": (int, Int64),
    "lockedBy": (str,),
    "started": (datetime,),
    "ended": (datetime, type(None)),
    "outcome": (str, type(None)),
    "error": (str, type(None)),
    "fireTime": (int, Int64, type(None)),
    "nextFireTime": (int, Int64, type(None)),
}


class MongoPrograms(StorePrograms):
    """The programs for one collection."""

    keeps_history: ClassVar[bool] = True

    def __init__(
        self,
        collection_name: str,
        expire_after: Duration,
        passwords: Iterable[str] = (),
        names: Iterable[str] = (),
        **limits: Unpack[Limits],
    ) -> None:
        super().__init__(passwords=passwords, names=names, **limits)
        self.collection_name = collection_name
        expiry = parse_duration(expire_after, "expire_after")
        if expiry < timedelta(seconds=1):
            raise ConfigurationError(f"expire_after={expire_after!r} is too short: MongoDB needs at least 1s")
        if self.history:
            expiry = max(expiry, KEPT_WITH_RUNS)
        self._expire_after_seconds = -(-expiry // timedelta(seconds=1))

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Any, Any, int | None]:
        make, operation = (take_over, "take_over") if force else (acquire, "acquire")
        kept, tolerance = self.history, self.fire_time_tolerance
        try:
            document = yield from self._with_history(
                lambda has_history: make(claim, before, tolerance, kept if has_history else 0)
            )
        except ProviderError as error:
            if errors.is_fire_time_too_late(error.__cause__):
                raise fire_time_too_late(operation, claim.request, self.fire_time_tolerance) from error.__cause__
            raise
        if document is None:
            return None  # the record to take over was deleted meanwhile
        is_granted = document.get("lockedBy") == claim.locked_by
        try:
            record = self._to_record(document, operation, claim.request.name)
        except ProviderError:
            if is_granted and not force:
                yield undo_of(self, claim)
            raise
        return record.fencing_token if is_granted else None

    def set_end(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[Command, Any, bool]:
        if not releasing:
            result = yield extend(lease, lock_for)
            return bool(result.matched_count)
        result = yield from self._with_history(
            lambda has_history: release(lease.name, lease.locked_by, lock_for, lease if has_history else None)
        )
        return bool(result.matched_count)

    def end_run(self, lease: Lease, *, is_lost: bool) -> Program[Command, Any, None]:
        if is_lost:  # the release has written the end of every other run
            yield end_lost_run(lease)

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> Program[Command, Any, bool]:
        result = yield from self._with_history(lambda has_history: undo(name, locked_by, former_fire_time, has_history))
        return bool(result.matched_count)

    def record(self, name: str) -> Program[Command, Any, LockRecord | None]:
        documents = yield read({"_id": name})
        return self._to_record(documents[0], "record", name) if documents else None

    def records(self, prefix: str) -> Program[Command, Any, list[LockRecord]]:
        documents = yield read(_those_with(prefix))
        records = []
        for document in documents:
            try:
                records.append(self._to_record(document, "records", document["_id"]))
            except ProviderError as error:  # a document that is not a lock record must not hide others
                logger.warning("left out: %s", error)
        return records

    def free(self, record: LockRecord) -> Program[Command, Any, bool]:
        return bool((yield free(record)).matched_count)

    def delete_fire_time(self, name: str, fire_time: datetime) -> Program[Command, Any, bool]:
        written = Int64((fire_time - EPOCH) // MICROSECOND)
        result = yield update({"_id": name, "lastFireTime": written}, {"$unset": "lastFireTime"})
        return bool(result.matched_count)

    def prune(self, unused_for: timedelta, prefix: str = "") -> Program[Command, Any, int]:
        limit = {"$subtract": [NOW_MS, Int64(in_milliseconds(unused_for))]}
        old = {"lockUntil": {"$type": "date"}, "$expr": {"$lte": [UNTIL_MS, limit]}}
        old["lastFireTime"] = {"$ne": Int64((ONCE - EPOCH) // MICROSECOND)}  # keep the keys of run_once
        if prefix:
            old |= _those_with(prefix)
        result = yield Command("delete_many", {"filter": old})
        deleted: int = result.deleted_count
        return deleted

    def create_schema(self) -> Program[Command, Any, None]:
        """Create the index that removes old records, or change its expiry.

        Several processes may do it at once. If their ``expire_after`` differ, some may get the server's error.
        """
        seconds = self._expire_after_seconds
        indexes = yield Command("list_indexes", {})
        index = next((index for index in indexes if dict(index["key"]) == {"lockUntil": 1}), None)
        if index is None:
            yield Command("create_index", {"keys": "lockUntil", "expireAfterSeconds": seconds})
        elif index.get("expireAfterSeconds") != seconds:
            name = self.collection_name.partition(".")[2]
            change = {"keyPattern": {"lockUntil": 1}, "expireAfterSeconds": seconds}
            yield Command("database.command", {"command": "collMod", "value": name, "index": change})

    def checks(self) -> Program[Command, Any, list[Check]]:
        check = "replication"
        try:
            hello = yield HELLO
        except ProviderError as error:
            return [not_known(self, check, error)]
        match hello:
            case {"msg": "isdbgrid"}:
                return [Check(check, "ok", "a sharded cluster: a write waits for a majority")]
            case {"setName": _, "isWritablePrimary": False}:
                cure = "take directConnection out of the URL, and name the replica set"
                return [Check(check, "failed", "this member is not the primary, and takes no writes", cure)]
            case {"setName": name}:
                members = len([*hello.get("hosts", ()), *hello.get("passives", ())])
                what = f"replica set {name}, members with data: {members}; a write waits for a majority"
                return [Check(check, "ok", what)]
        return [Check(check, "ok", "a single server, without one that could take over")]

    def _to_record(self, document: Document, operation: str, name: object) -> LockRecord:
        """:raises ProviderError: a field has another type. Compared with it, the lock would never be free."""
        problem = ""
        for field, types in _FIELDS.items():
            value = document.get(field)
            if type(value) not in types:  # isinstance would accept True as an int
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
                    last_fire_time=None if newest is None else EPOCH + newest * MICROSECOND,
                    read_at=document.get("readAt", EPOCH),  # not in the reply to a claim, which does not need it
                    is_released=_is_released(document),
                )
        except OverflowError:
            problem = f"its lastFireTime is {newest}"
        raise refused(operation, name if isinstance(name, str) else repr(name), problem, hint=self._record_hint())

    # Run history

    def _with_history(self, make: Callable[[bool], Command]) -> Program[Command, Any, Any]:
        """Send the command with history. If the server refuses it, send the command without history."""
        if not self.is_history_on():
            return (yield make(False))
        try:
            return (yield make(True))
        except ProviderError as error:
            cause = error.__cause__
            is_refused = isinstance(cause, Exception) and self.classify(cause) is Failure.REFUSED
            if not is_refused or errors.is_fire_time_too_late(cause):
                raise  # history is not the reason
            reply = yield make(False)
            self.history_failed(error)
            return reply

    def runs(self, name: str, limit: int) -> Program[Command, Any, list[Run]]:
        documents = yield read_runs(name, min(limit, self.history))
        return self._to_runs(name, documents[0].get("runs")) if documents else []

    def recent_runs(self, names: Sequence[str], limit: int) -> Program[Command, Any, list[Run]]:
        found: list[Run] = []
        for document in (yield read_recent_runs(names, limit)):
            try:
                found += self._to_runs(document["_id"], document.get("runs"))
            except ProviderError as error:  # odd values of one name must not hide other names
                logger.warning("left out: %s", error)
        return found

    def _to_runs(self, name: str, entries: Any) -> list[Run]:
        if entries is None:
            return []
        if not isinstance(entries, list):
            raise refused("runs", name, f"its runs are of type {type(entries).__name__}", hint=self._runs_hint())
        return [self._to_run(name, entry) for entry in entries]

    def _to_run(self, name: str, entry: Document) -> Run:
        problem = "is no document"
        if isinstance(entry, dict):
            odd = [field for field, types in _FIELDS_OF_RUN.items() if type(entry.get(field)) not in types]
            odd += ["outcome"] if entry.get("outcome") not in (None, *get_args(RunOutcome)) else []
            problem = f"has an odd {odd[0]}" if odd else ""
        try:
            if not problem:
                fire_time, next_fire_time = (
                    None if number is None else EPOCH + number * MICROSECOND
                    for number in (entry.get("fireTime"), entry.get("nextFireTime"))
                )
                return Run(
                    name=name,
                    fencing_token=entry["fencingToken"],
                    locked_by=entry["lockedBy"],
                    started=entry["started"],
                    ended=entry.get("ended"),
                    outcome=entry.get("outcome"),
                    error=entry.get("error"),
                    fire_time=fire_time,
                    next_fire_time=next_fire_time,
                )
        except OverflowError:
            problem = "has a fire time that is out of range"
        raise refused("runs", name, f"one of its runs {problem}", hint=self._runs_hint())

    def _runs_hint(self) -> str:
        return f"remove the field runs of that document in {self.collection_name}"

    # Errors

    def classify(self, error: Exception) -> Failure:
        return errors.classify(error)

    def text_of(self, error: Exception) -> str:
        """Return the driver's message without the dumps that it appends."""
        text = str(error)
        for dump in (", full error:", ", Topology Description:", " Topology Description:"):
            text = text.partition(dump)[0]
        return text

    def hint(self, error: Exception) -> str | None:
        if isinstance(error, DuplicateKeyError):
            return (
                f"collection {self.collection_name} treats two different lock names as equal, because of its "
                f"collation: use a collection without a collation"
            )
        return self._record_hint() if errors.code_of(error) in errors.OTHER_TYPE else None

    def is_refusal(self, error: Exception, failure: Failure) -> bool:
        return isinstance(error, DuplicateKeyError) or failure is Failure.REFUSED

    def _record_hint(self) -> str:
        return (
            f"a document in {self.collection_name} is no lock record: give locks a collection of their own, or delete "
            f"the document"
        )


def _those_with(prefix: str) -> Document:
    last = prefix + "\U0010ffff" * LONGEST_NAME  # no name with this prefix sorts after it
    return {"_id": {"$gte": prefix, "$lte": last}}


def _is_released(document: Document) -> bool | None:
    """Return whether it was released. None if ShedLock for Java locked it last: it does not change the tokens."""
    token, locked_by = document.get("fencingToken"), document["lockedBy"]
    if token is None or holder_of(locked_by) == locked_by:
        return None
    return token in (document.get("releasedToken"), document.get("freedToken"))
