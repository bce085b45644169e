"""Operations on a DynamoDB table: one conditional update per operation.

DynamoDB's conditions cannot read a clock. The time comes from the ``Date`` header of its replies, as in the
compare-and-swap stores. But a condition can compare, so no read is needed first while that time is known.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from shedlock_py.errors import ProviderError
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import ONCE, LockRecord
from shedlock_py.providers import aws
from shedlock_py.providers.cas import DEFAULT_CLOCK_ERROR, ServerTime
from shedlock_py.providers.cas.cas_programs import clocks_disagree
from shedlock_py.providers.cas.server_time import DRIFT, token_at
from shedlock_py.providers.dynamodb import schema
from shedlock_py.providers.dynamodb.changes import Written, claiming, freeing, freeing_from_java, holding, undoing
from shedlock_py.providers.dynamodb.wire import (
    CLAIM_MARK,
    Change,
    Command,
    Delete,
    Entry,
    List,
    Read,
    Reply,
    microseconds,
    milliseconds_up,
    parse_moment,
)
from shedlock_py.providers.kit import (
    Check,
    Failure,
    StorePrograms,
    fire_time_too_late,
    kept_changing,
    not_known,
    undo_claimed,
)
from shedlock_py.runtime.program import Program

RECENT = 100.0
"""Seconds for which later claims use the time of a reply.

In this time, two clocks may drift apart by 0.1 s, a tenth of the Date header's resolution. A job that runs every minute
still costs one request.
"""
MOST_REPLIES = 4
"""The most replies to compare. Two in a row must agree on the time."""
MOST_TRIES = 16
"""The most attempts if copies write the same record at the same time. One of them succeeds in each round."""
_UNCERTAIN = 2_000_000
"""Microseconds that a reply's time may be behind the previous reply's time. If it is more, a clock was set."""

T = TypeVar("T")
DynamoProgram = Program[Command, Reply, T]


class DynamoDBPrograms(StorePrograms):
    """Programs for a DynamoDB table.

    The time is never exact. A program writes the latest time that it can be, plus ``clock_error``, and compares with
    the earliest time. It uses a time if two replies in a row agree on it within ``clock_error``, because one server
    alone may have a wrong clock. If a reply contradicts the time of its command, the operation is repeated. A second
    contradiction is an error.

    :param table: name of the table.
    :param clock_error: the largest difference between the clocks of the servers that reply.
    """

    def __init__(self, table: str, *, clock_error: Duration = DEFAULT_CLOCK_ERROR, **options: Any) -> None:
        super().__init__(**options)
        self.table = table
        self.clock_error = parse_duration(clock_error, "clock_error", zero=True)
        self._last: ServerTime | None = None
        """The time in the last reply."""
        self._agreed: ServerTime | None = None
        """The time in the last reply that agreed with the reply before it."""
        self._newest_token = 0

    # Errors

    def classify(self, error: Exception) -> Failure:
        return aws.classify(error)

    def text_of(self, error: Exception) -> str:
        return aws.text_of(error)

    def hint(self, error: Exception) -> str | None:
        if aws.code_of(error) == "ResourceNotFoundException":
            return f"create the table {self.table!r} with provider.create_schema(), or name its region in the URL"
        return aws.hint(error)

    # The operations

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> DynamoProgram[int | None]:
        name, least_token = claim.request.name, ((before and before.fencing_token) or 0) + 1
        time, seen, may_repeat = self._known_time(), "", not force
        if time is None or not self._is_recent(time) or self._is_too_late(claim, time):
            reply = yield from self._checked_read(_operation(force), name)
            time, entry = reply.time, reply.entry
            seen = self._seen(entry, time)
            is_other = not force and entry is not None and not _is_own(entry, claim)
            if (
                is_other
                and self._is_refused(entry, claim, None, time, force=False)
                and not self._is_too_late(claim, time)
            ):
                return None
        for _ in range(MOST_TRIES):
            if self._is_too_late(claim, time):
                raise fire_time_too_late(_operation(force), claim.request, self.fire_time_tolerance)
            token, written = max(least_token, self._next_token(time)), self._written(claim, time)
            now = self._earliest(time)
            reply = yield from self._send(claiming(claim, before, token, written, now, seen, force=force))
            entry, is_right = reply.entry, self._agree(time, reply.time)
            is_granted = reply.is_done or (entry is not None and _is_own(entry, claim))
            former, time = time, reply.time
            if not is_right and force and is_granted:
                reply = yield from self._checked_read("take_over", name)
                if reply.entry and _is_own(reply.entry, claim) and self._agree(former, reply.time):
                    claim.note = _written_in(reply.entry)
                    return reply.entry.record.fencing_token
                raise clocks_disagree("take_over", name, self.clock_error)  # the lease is left to expire
            if not is_right:
                if is_granted:  # with an end from a wrong time
                    yield from undo_claimed(self, claim)
                    claim.renew()  # so a late copy of the undo frees nothing
                if not may_repeat:
                    raise clocks_disagree(_operation(force), name, self.clock_error)
                may_repeat = False
                reply = yield from self._checked_read(_operation(force), name)
                entry, time = reply.entry, reply.time
            elif reply.is_done:
                claim.note = written
                return token
            elif entry is not None and is_granted:  # an earlier copy of the command was executed
                claim.note = _written_in(entry)
                return entry.record.fencing_token
            elif self._is_refused(entry, claim, before, time, force=force):
                return None
            if entry is not None:
                least_token = max(least_token, (entry.record.fencing_token or 0) + 1)
                seen = self._seen(entry, time)
        raise kept_changing(_operation(force), name)

    def _seen(self, entry: Entry | None, time: ServerTime) -> str:
        """Return the ``lockUntil`` of a lease that has ended, for the next claim. Empty while the lease lasts."""
        return "" if entry is None or self._is_held(entry, time) else entry.lock_until

    def _is_refused(
        self, entry: Entry | None, claim: Claim, before: LockRecord | None, time: ServerTime, *, force: bool
    ) -> bool:
        if force:
            return not (claim.recoveries and self._is_dead(entry, before, time))
        if entry is None:
            return False
        newest, fire_time = entry.record.last_fire_time, claim.request.fire_time
        return self._is_held(entry, time) or (fire_time is not None and newest is not None and fire_time <= newest)

    def _is_dead(self, entry: Entry | None, before: LockRecord | None, time: ServerTime) -> bool:
        """Return whether the item is still ``before``, and its lease has ended without a release."""
        if entry is None or before is None or entry.record.is_released is not False:
            return False
        found = entry.record
        is_same = (found.locked_by, found.fencing_token) == (before.locked_by, before.fencing_token)
        return is_same and not self._is_held(entry, time)

    def _is_too_late(self, claim: Claim, time: ServerTime) -> bool:
        fire_time = claim.request.fire_time
        return fire_time is not None and fire_time > self._latest(time) + self.fire_time_tolerance

    def _written(self, claim: Claim, time: ServerTime) -> Written:
        return Written(self._earliest(time), milliseconds_up(self._end_of(claim.request.lock_at_most_for, time)), 0)

    def set_end(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> DynamoProgram[bool]:
        known, time, may_repeat = lease._note if isinstance(lease._note, Written) else None, self._known_time(), True
        operation = "release" if releasing else "extend"
        if known is None or time is None or _is_over(known, self._earliest(time)):
            # The note may be wrong that the lease is over: an older extension, with a late reply, may have written it.
            reply = yield from self._checked_read(operation, lease.name)
            known, time = _own_of(reply.entry, lease), reply.time
        for _ in range(MOST_TRIES):
            now = self._earliest(time)
            if known is None or _is_over(known, now):
                return False
            if lease.is_being_released() and not releasing:
                return False  # the item of a minimum hold looks like the item of a live lease
            is_free = releasing and not lock_for
            until = max(now, known.locked_at) if is_free else self._end_of(lock_for, time)
            written = Written(known.locked_at, milliseconds_up(until), (known.version or 0) + 1)
            mark = ("releasedBy" if is_free else "endedBy") if releasing else None
            reply = yield from self._send(holding(lease, known, written, mark))
            is_right = self._agree(time, reply.time)
            if reply.is_done and (is_right or is_free):
                lease._note = written
                return True
            if not is_right:
                if not may_repeat:
                    raise clocks_disagree(operation, lease.name, self.clock_error)
                may_repeat = False
                reply = yield from self._checked_read(operation, lease.name)
            known, time = _own_of(reply.entry, lease), reply.time
        raise kept_changing(operation, lease.name)

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> DynamoProgram[bool]:
        if former_fire_time is not None:
            reply = yield from self._send(undoing(name, locked_by, former_fire_time))
            if reply.is_done or reply.entry is None or reply.entry.record.locked_by != locked_by:
                return reply.is_done
        return (yield from self._send(undoing(name, locked_by))).is_done

    def free(self, record: LockRecord) -> DynamoProgram[bool]:
        if CLAIM_MARK in record.locked_by:
            return (yield from self._send(freeing(record))).is_done
        reply = yield from self._send(Read(record.name))
        found = reply.entry
        if found is None or found.record.acquisition != record.acquisition:
            return False
        return (yield from self._send(freeing_from_java(found, self._earliest_of_all(reply.time)))).is_done

    def delete_fire_time(self, name: str, fire_time: datetime) -> DynamoProgram[bool]:
        values = {"newest": microseconds(fire_time)}
        return (yield from self._send(Change(name, "REMOVE lastFireTime", "lastFireTime = :newest", values))).is_done

    def record(self, name: str) -> DynamoProgram[LockRecord | None]:
        reply = yield from self._send(Read(name))
        return self._shown(reply.entry, reply.time) if reply.entry else None

    def records(self, prefix: str) -> DynamoProgram[list[LockRecord]]:
        reply = yield from self._send(List(prefix))
        return [self._shown(entry, reply.time) for entry in reply.entries]

    def _shown(self, entry: Entry, time: ServerTime) -> LockRecord:
        """Return the record for people. A time that another server has written may be in this server's future."""
        record, now = entry.record, self._earliest(time)
        if entry.is_free:
            return replace(record, read_at=max(now, record.lock_until))
        # If the server's clock was set back since the acquisition, the end may be before the acquisition.
        return replace(record, read_at=max(now, record.locked_at) if record.locked_at < record.lock_until else now)

    def prune(self, unused_for: timedelta, prefix: str = "") -> DynamoProgram[int]:
        reply, deleted = (yield from self._send(List(prefix))), 0
        if reply.entries:
            name = reply.entries[0].record.name
            if not self._agree(reply.time, (yield from self._send(Read(name))).time):
                raise clocks_disagree("prune", name, self.clock_error)
        now = self._earliest(reply.time)
        # Replicas give only greater tokens to a name without a record. A younger record stays: the next token of its
        # name must come from the record, not from a coarse clock (I7).
        least = token_at(self._earliest_of_all(reply.time))
        for entry in reply.entries:
            record, is_held = entry.record, self._is_held(entry, reply.time)
            is_old = now - record.lock_until >= unused_for and (record.fencing_token or 0) < least
            if record.name.startswith(prefix) and not is_held and is_old and record.last_fire_time != ONCE:
                deleted += (yield from self._send(Delete(entry))).is_done
        return deleted

    def create_schema(self) -> Program[Any, Any, None]:
        return schema.created(self.table, self.timeout, self.clock)

    def checks(self) -> Program[Any, Any, list[Check]]:
        try:
            return [(yield from schema.replication(self.table))]
        except ProviderError as error:
            return [not_known(self, "replication", error)]

    # The server's time

    def _send(self, command: Command) -> DynamoProgram[Reply]:
        reply = yield command
        if self._last is not None and self._is_recent(self._last) and self._agree(self._last, reply.time):
            self._agreed = reply.time
        self._last = reply.time
        return reply

    def _checked_read(self, operation: str, name: str) -> DynamoProgram[Reply]:
        """Read until two replies in a row agree on the time. After a long pause, all replies would seem to agree.

        :raises ProviderError: no two replies in a row agreed.
        """
        for _ in range(MOST_REPLIES):
            before = self._last
            reply = yield from self._send(Read(name))
            if before is not None and self._is_recent(before) and self._agree(before, reply.time):
                return reply
        raise clocks_disagree(operation, name, self.clock_error)

    def _agree(self, one: ServerTime, other: ServerTime) -> bool:
        return one.agrees_with(other, self.clock(), self.clock_error)

    def _known_time(self) -> ServerTime | None:
        """Return the time that replies agreed on, unless the last reply contradicts it."""
        agreed, last = self._agreed, self._last
        return agreed if agreed is not None and last is not None and self._agree(agreed, last) else None

    def _is_recent(self, time: ServerTime) -> bool:
        return self.clock() - time.sent_at < RECENT

    def _earliest(self, time: ServerTime) -> datetime:
        return time.earliest(self.clock())

    def _earliest_of_all(self, time: ServerTime) -> datetime:
        """Return the earliest time for other processes, too: they may use another server's older reply."""
        return self._earliest(time) - self.clock_error - timedelta(seconds=time.resolution + 2 * DRIFT * RECENT)

    def _latest(self, time: ServerTime) -> datetime:
        return time.latest(self.clock())

    def _end_of(self, lock_for: timedelta, time: ServerTime) -> datetime:
        """Return the end of a lease of ``lock_for`` from now. No server's clock shows that end earlier."""
        return self._latest(time) + lock_for + self.clock_error

    def _is_held(self, entry: Entry, time: ServerTime) -> bool:
        return not entry.is_free and entry.record.lock_until > self._earliest(time)

    def _next_token(self, time: ServerTime) -> int:
        """Return the time in microseconds, but always more than the last token, because the earliest time may go back.

        So one request is enough to grant a lock again that this provider had a moment ago.
        """
        now = token_at(self._earliest(time))
        is_repeated = 0 <= self._newest_token - now < _UNCERTAIN
        self._newest_token = self._newest_token + 1 if is_repeated else now
        return self._newest_token


def _is_own(entry: Entry, claim: Claim) -> bool:
    return entry.record.locked_by == claim.locked_by


def _own_of(entry: Entry | None, lease: Lease) -> Written | None:
    """Return the table's state of ``lease``, or None if it is not held any more."""
    if entry is None or entry.is_free:
        return None
    record = entry.record
    is_own = (record.locked_by, record.fencing_token) == (lease.locked_by, lease.fencing_token)
    return _written_in(entry) if is_own else None


def _written_in(entry: Entry) -> Written:
    return Written(entry.record.locked_at, entry.lock_until, entry.version)


def _is_over(known: Written, now: datetime) -> bool:
    return parse_moment(known.lock_until) <= now


def _operation(force: bool) -> str:
    return "take_over" if force else "acquire"
