"""The programs for MongoDB: each operation is one command on one document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from pymongo.errors import DuplicateKeyError, PyMongoError

from shedlock_py._program import Program
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.events import logger
from shedlock_py.lease import Claim, Clock, Lease
from shedlock_py.providers.kit import MOST_RETRIES, Failure, StorePrograms, Undo, describe, fire_time_too_late
from shedlock_py.providers.mongodb import commands
from shedlock_py.providers.mongodb.commands import (
    EPOCH,
    MICROSECOND,
    Answer,
    ChangeIndex,
    Command,
    CreateIndex,
    Document,
    ListIndexes,
)
from shedlock_py.providers.mongodb.failures import (
    classify,
    index_exists,
    is_fire_time_too_late,
    met_another_type,
    reason,
    waited_for,
)
from shedlock_py.record import LockRecord

Redact = Callable[[str], str]

MOST_INDEX_TRIES = 6
"""For processes that create the index at the same time."""


class MongoPrograms(StorePrograms):
    """The programs for one collection."""

    recognises_retries = False

    def __init__(
        self,
        collection_name: str,
        expire_after: Duration,
        redact: Redact,
        *,
        clock: Clock,
        timeout: float | None,
        fire_time_tolerance: timedelta,
    ) -> None:
        super().__init__(clock=clock, timeout=timeout, fire_time_tolerance=fire_time_tolerance)
        self.collection_name = collection_name
        expiry = parse_duration(expire_after, "expire_after")
        if expiry < timedelta(seconds=1):
            raise ConfigurationError(f"expire_after={expire_after!r} is less than a second, which MongoDB counts in")
        self._expire_after_seconds = -(-expiry // timedelta(seconds=1))
        self._redact = redact

    def claim(
        self, claim: Claim, *, before: LockRecord | None, force: bool
    ) -> Program[Command | Undo, Answer, int | None]:
        if force:
            command = commands.take_over(claim, before, self.fire_time_tolerance)
        else:
            command = commands.acquire(claim, self.fire_time_tolerance)
        operation = "take_over" if force else "acquire"
        try:
            for _ in range(MOST_RETRIES):
                answer = yield command
                if answer.documents:
                    break
                # Never from MongoDB. SecantusDB loses the reply if another claim made the record meanwhile.
            else:
                raise ProviderError(
                    describe(operation, claim.request.name, "the server does not reply with the record"),
                    operation=operation,
                    lock_name=claim.request.name,
                )
        except ProviderError as error:
            if is_fire_time_too_late(error.__cause__):
                raise fire_time_too_late(operation, claim.request, self.fire_time_tolerance) from error.__cause__
            raise
        [document] = answer.documents
        is_granted = document.get("lockedBy") == claim.locked_by
        try:
            self._check_record(document, operation, claim.request.name)
        except ProviderError:
            if is_granted:
                yield self.undo_of(claim, is_take_over=force)
            raise
        return document["fencingToken"] if is_granted else None

    def hold(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[Command, Answer, bool]:
        if releasing:
            answer = yield commands.release(lease.name, lease.locked_by, lock_for)
        else:
            answer = yield commands.extend(lease, lock_for)
        return bool(answer.count)

    def undo_claim(
        self, name: str, locked_by: str, former_fire_time: datetime | None
    ) -> Program[Command, Answer, bool]:
        answer = yield commands.undo(name, locked_by, former_fire_time)
        return bool(answer.count)

    def record(self, name: str) -> Program[Command, Answer, LockRecord | None]:
        answer = yield commands.record(name)
        return self._to_record(answer.documents[0], "record") if answer.documents else None

    def records(self, prefix: str) -> Program[Command, Answer, list[LockRecord]]:
        answer = yield commands.records(prefix)
        return list(self._readable(answer.documents))

    def force_release(self, name: str) -> Program[Command, Answer, bool]:
        answer = yield commands.force_release(name)
        return bool(answer.count)

    def forget_fire_time(self, name: str) -> Program[Command, Answer, bool]:
        answer = yield commands.forget_fire_time(name)
        return bool(answer.count)

    def prune(self, unused_for: timedelta) -> Program[Command, Answer, int]:
        answer = yield commands.prune(unused_for)
        return answer.count

    def create_schema(self) -> Program[Command, Answer, None]:
        """The index that removes old records; the collection comes into being by itself.

        Look, create, look again: several processes may do it at once.
        """
        seconds = self._expire_after_seconds
        for number in range(MOST_INDEX_TRIES):
            answer = yield ListIndexes()
            index = next((index for index in answer.documents if dict(index["key"]) == {"lockUntil": 1}), None)
            if index is not None and index.get("expireAfterSeconds") == seconds:
                return
            change = CreateIndex if index is None else ChangeIndex
            try:
                yield change("lockUntil", seconds)
                return
            except ProviderError as error:
                if not index_exists(error.__cause__) or number == MOST_INDEX_TRIES - 1:
                    raise

    # Records

    def _readable(self, documents: Sequence[Document]) -> list[LockRecord]:
        """The lock records among ``documents``; one that is none must not hide the others."""
        records = []
        for document in documents:
            try:
                records.append(self._to_record(document, "records"))
            except ProviderError as error:
                logger.warning("left out: %s", error)
        return records

    def _to_record(self, document: Document, operation: str) -> LockRecord:
        self._check_record(document, operation, document["_id"])
        token = document.get("fencingToken")
        return LockRecord(
            name=document["_id"],
            locked_by=document["lockedBy"],
            locked_at=document["lockedAt"],
            lock_until=document["lockUntil"],
            fencing_token=None if token is None else int(token),
            last_fire_time=_fire_time(document),
            read_at=document["readAt"],
        )

    def _check_record(self, document: Document, operation: str, name: object) -> None:
        """:raises ProviderError: a field has another type: compared with it, no lock would ever be free."""
        for field, kinds, is_required in _FIELDS:
            value = document.get(field)
            if value is None and not is_required:
                continue
            if not isinstance(value, kinds) or isinstance(value, bool):
                problem = "missing" if value is None else f"of type {type(value).__name__}"
                raise self._no_record(operation, name, f"its {field} is {problem}")
        try:
            _fire_time(document)
        except OverflowError:
            raise self._no_record(operation, name, f"its lastFireTime is {document['lastFireTime']}") from None

    def _no_record(self, operation: str, name: object, problem: str) -> ProviderError:
        lock_name = name if isinstance(name, str) else repr(name)
        return ProviderError(
            describe(operation, lock_name, problem + self._hint()), operation=operation, lock_name=lock_name
        )

    # Errors

    def classify(self, error: Exception) -> Failure:
        return classify(error)

    def explain(self, error: Exception, failure: Failure, operation: str, lock_name: str | None) -> ProviderError:
        what = self._redact(reason(error))
        waiting_for = waited_for(error) if isinstance(error, PyMongoError) else None
        if waiting_for is not None:
            limit = "" if self.timeout is None else f" of {self.timeout:g} s (timeout)"
            what = f"no answer in the time limit{limit}: waited for {waiting_for} ({what})"
        if met_another_type(error):
            what += self._hint()
        if isinstance(error, DuplicateKeyError):
            what += (
                f" — collection {self.collection_name} takes another name for the same: lock names are compared byte "
                f"by byte, so use a collection without a collation"
            )
        was_answered = failure is Failure.REFUSED or isinstance(error, DuplicateKeyError)
        kind = ProviderError if was_answered else ProviderUnreachable
        return kind(describe(operation, lock_name, what), operation=operation, lock_name=lock_name)

    def _hint(self) -> str:
        return (
            f" — a document in {self.collection_name} is no lock record: give locks a collection of their own, or "
            f"delete the document"
        )


def _fire_time(document: Document) -> datetime | None:
    microseconds = document.get("lastFireTime")
    return None if microseconds is None else EPOCH + microseconds * MICROSECOND


_FIELDS: tuple[tuple[str, type, bool], ...] = (
    ("lockedBy", str, True),
    ("lockedAt", datetime, True),
    ("lockUntil", datetime, True),
    ("fencingToken", int, False),
    ("lastFireTime", int, False),
)
