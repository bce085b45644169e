"""The operations on MongoDB: programs that say what to ask the server and decide what the replies mean.

Each operation is one command on one document, idempotent per claim id: a command that was done but whose reply was lost
may be asked again, by PyMongo or by us.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from shedlock_py._program import Program
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.providers.mongodb import commands
from shedlock_py.providers.mongodb.commands import (
    EPOCH,
    MICROSECOND,
    Answer,
    ChangeIndex,
    Command,
    CreateIndex,
    Document,
    FindOneAndUpdate,
    ListIndexes,
    Pause,
)
from shedlock_py.providers.mongodb.failures import Failure, classify, reason
from shedlock_py.rules import Claim, Clock, Lease, LockRecord, LockRequest, validate_name, validate_prefix

Redact = Callable[[str], str]

MOST_TRIES = 6  # for commands that met a concurrent one; one of the two always gets through
NEXT_MILLISECOND = 0.002
"""Seconds after which the server's clock, which counts milliseconds, shows another time."""


class MongoAlgorithm:
    """The programs for one collection. ``clock`` is the holder's monotonic clock."""

    def __init__(self, collection_name: str, expire_after: Duration, clock: Clock, redact: Redact) -> None:
        self.collection_name = collection_name
        expiry = parse_duration(expire_after, "expire_after")
        if expiry < timedelta(seconds=1):
            raise ConfigurationError(f"expire_after={expire_after!r} is less than a second, which MongoDB counts in")
        self._expire_after_seconds = -(-expiry // timedelta(seconds=1))
        self._clock = clock
        self._redact = redact

    # The programs

    def acquire(self, request: LockRequest) -> Program[Command, Answer, Lease | None]:
        for _ in range(MOST_TRIES):
            claim = Claim(request, self._clock)
            token = yield from self._claim(claim, "acquire", commands.acquire(claim))
            if not token:
                return None
            if token % 1000:
                token = yield from self._renumber(claim, token, "acquire")
            if token:
                return claim.granted(token)
            # Taken over, or deleted by hand, within milliseconds: ask again which.
        raise ProviderError("the record vanishes again and again", operation="acquire", lock_name=request.name)

    def take_over(self, request: LockRequest) -> Program[Command, Answer, Lease]:
        claim = Claim(request, self._clock)
        token = yield from self._claim(claim, "take_over", commands.take_over(claim))
        if not token:
            raise ProviderError("the server refused a take-over", operation="take_over", lock_name=request.name)
        if token % 1000:
            token = (yield from self._renumber(claim, token, "take_over")) or token
        return claim.granted(token)

    def _claim(self, claim: Claim, operation: str, command: FindOneAndUpdate) -> Program[Command, Answer, int | None]:
        """The token of the claim; None if another has the lock."""
        for _ in range(MOST_TRIES):
            answer = yield from self._ask(operation, claim.request.name, command, lambda: _undo(claim))
            if answer.documents:
                is_ours = answer.documents[0].get("lockedBy") == claim.locked_by
                return int(answer.documents[0]["fencingToken"]) if is_ours else None
            # Never from MongoDB; the tests' server loses the reply when somebody else made the record meanwhile.
        raise ProviderError("the server does not reply", operation=operation, lock_name=claim.request.name)

    def _renumber(self, claim: Claim, token: int, operation: str) -> Program[Command, Answer, int | None]:
        """A later token for a claim whose own is not the beginning of a millisecond; None if it has lost the lock.

        Either the record is new, or it was claimed twice within a millisecond of the server's clock. There may have
        been a record before it, deleted in that same millisecond, with tokens as high; one that is made in a later
        millisecond is newer than all of them.
        """
        name = claim.request.name
        yield from self._ask(operation, name, Pause(NEXT_MILLISECOND), lambda: _undo(claim), is_claimed=True)
        answer = yield from self._ask(
            operation, name, commands.renumber(claim, token), lambda: _undo(claim), is_claimed=True
        )
        return int(answer.documents[0]["fencingToken"]) if answer.documents else None

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Program[Command, Answer, Lease | None]:
        extension = lease.begin_extension(lock_at_most_for)
        if lease.has_ended():
            return None
        answer = yield from self._ask("extend", lease.name, commands.extend(lease, extension.lock_for))
        if not answer.count:
            lease.lose()
            return None
        return extension.granted(repeated=answer.repeated)

    def release(self, lease: Lease) -> Program[Command, Answer, bool]:
        if lease.has_ended():
            return False
        command = commands.release(lease.name, lease.locked_by, lease.begin_release())
        answer = yield from self._ask("release", lease.name, command)
        is_done = bool(answer.count)
        if is_done:
            lease.end()
        else:
            lease.lose()
        return is_done

    def force_release(self, name: str) -> Program[Command, Answer, bool]:
        answer = yield from self._ask("force_release", name, commands.force_release(validate_name(name)))
        return bool(answer.count)

    def prune(self, unused_for: Duration) -> Program[Command, Answer, int]:
        unused = parse_duration(unused_for, "unused_for", zero=True)
        answer = yield from self._ask("prune", None, commands.prune(unused))
        return answer.count

    def record(self, name: str) -> Program[Command, Answer, LockRecord | None]:
        answer = yield from self._ask("record", name, commands.record(validate_name(name)))
        return self._to_record(answer.documents[0], "record") if answer.documents else None

    def records(self, prefix: str) -> Program[Command, Answer, list[LockRecord]]:
        validate_prefix(prefix)
        answer = yield from self._ask("records", None, commands.records(prefix))
        records = [self._to_record(document, "records") for document in answer.documents]
        return sorted((record for record in records if record.name.startswith(prefix)), key=lambda record: record.name)

    def _to_record(self, document: Document, operation: str) -> LockRecord:
        def field(name: str, kind: type, *absent: Any) -> Any:
            value = document.get(name)
            if value is None and absent:
                return absent[0]
            if not isinstance(value, kind):
                problem = f"its {name} is {'missing' if value is None else f'of type {type(value).__name__}'}"
                message = f"{operation} of lock {document['_id']!r}: {problem}"
                raise ProviderError(message + self._hint(), operation=operation, lock_name=document["_id"])
            return value

        fire_time, token = field("lastFireTime", int, None), field("fencingToken", int, None)
        return LockRecord(
            name=document["_id"],
            locked_by=field("lockedBy", str),
            locked_at=field("lockedAt", datetime),
            lock_until=field("lockUntil", datetime),
            fencing_token=None if token is None else int(token),
            last_fire_time=None if fire_time is None else EPOCH + fire_time * MICROSECOND,
            read_at=document["readAt"],
        )

    def create_schema(self) -> Program[Command, Answer, None]:
        """The index that removes old records; the collection comes into being by itself.

        Look, create, look again: several processes may do it at once.
        """
        seconds = self._expire_after_seconds
        failure: ProviderError | None = None
        for _ in range(MOST_TRIES):
            answer = yield from self._ask("create_schema", None, ListIndexes())
            index = next((index for index in answer.documents if dict(index["key"]) == {"lockUntil": 1}), None)
            if index is not None and index.get("expireAfterSeconds") == seconds:
                return
            change = CreateIndex if index is None else ChangeIndex
            try:
                yield from self._ask("create_schema", None, change("lockUntil", seconds))
                return
            except ProviderError as error:
                if not isinstance(error.__cause__, Exception) or classify(error.__cause__) is not Failure.INDEX_EXISTS:
                    raise
                failure = error
        if failure is not None:
            raise failure

    # Asking, and what errors mean

    def _ask(
        self,
        operation: str,
        lock_name: str | None,
        command: Command,
        undo: Callable[[], Command] | None = None,
        *,
        is_claimed: bool = False,
    ) -> Program[Command, Answer, Answer]:
        """Ask the server; ask again where that can help, which is safe because commands are idempotent.

        ``undo`` is asked, once, when it stays unknown whether ``command`` was done; or on any failure if there is
        already something to undo.
        """
        tries, broken = 1, False
        while True:
            try:
                answer = yield command
                return replace(answer, repeated=True) if broken else answer
            except Exception as error:
                failure = classify(error)
                if failure in (Failure.CONFLICT, Failure.DUPLICATE) and tries < MOST_TRIES:
                    tries += 1
                    continue
                if failure is Failure.GONE and not broken:
                    broken = True  # a pooled connection may be older than the server; a new one tells
                    continue
                if undo is not None and (broken or is_claimed or failure in _OUTCOME_UNKNOWN):
                    # Nobody will use what may have been granted. If it cannot be undone now, it ends by itself.
                    with suppress(Exception):
                        yield undo()
                if failure is Failure.FOREIGN:
                    raise
                raise self._explained(error, failure, operation, lock_name) from error

    def _explained(self, error: Exception, failure: Failure, operation: str, lock_name: str | None) -> ProviderError:
        what = f"{operation} of lock {lock_name!r}" if lock_name is not None else operation
        message = f"{what}: {self._redact(reason(error))}"
        if failure is Failure.NO_RECORD:
            message += self._hint()
        if failure is Failure.DUPLICATE:
            message += (
                f" — collection {self.collection_name} takes another name for the same: lock names are compared byte "
                f"by byte, so use a collection without a collation"
            )
        kind = ProviderError if failure in _ANSWERED else ProviderUnreachable
        return kind(message, operation=operation, lock_name=lock_name)

    def _hint(self) -> str:
        return (
            f" — a document in {self.collection_name} is no lock record: give locks a collection of their own, or "
            f"delete the document"
        )


def _undo(claim: Claim) -> Command:
    return commands.release(claim.request.name, claim.locked_by, timedelta(0))


_OUTCOME_UNKNOWN = (Failure.GONE, Failure.UNREACHABLE, Failure.FOREIGN)
_ANSWERED = (Failure.DUPLICATE, Failure.NO_RECORD, Failure.INDEX_EXISTS, Failure.REFUSED)
