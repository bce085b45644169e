"""The operations on a table of DynamoDB: one conditional update each.

DynamoDB's conditions cannot read a clock. The time comes from the ``Date`` header of its replies, as for the
compare-and-swap stores; but a condition may compare, so no read has to come first while that time is known.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from shedlock_py._program import Program
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.lease import Claim, Lease
from shedlock_py.providers import aws
from shedlock_py.providers.cas import DEFAULT_CLOCK_ERROR, ServerTime
from shedlock_py.providers.dynamodb import schema
from shedlock_py.providers.dynamodb.wire import (
    KEPT_FOR,
    Change,
    Command,
    Delete,
    Entry,
    List,
    Read,
    Reply,
    microseconds,
    milliseconds,
    milliseconds_up,
    parse_moment,
    surely_past,
)
from shedlock_py.providers.kit import Failure, StorePrograms, fire_time_too_late, refused, unreachable
from shedlock_py.record import LockRecord

RECENT = 100.0
"""Seconds for which the time of a reply serves the claims after it. Two clocks may drift a tenth of a second apart
meanwhile, a tenth of what the Date header leaves open. A job of every minute still costs one request."""
MOST_TRIES = 16
"""For copies that write the same record at the same time: one of them succeeds in each round."""
_UNCERTAIN = 2_000_000
"""Microseconds that the time of one reply may be behind that of the one before. More than this, and a clock was set."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

T = TypeVar("T")
DynamoProgram = Program[Command, Reply, T]

_IS_FREE = "(attribute_not_exists(lockUntil) OR lockUntil <= :now OR releasedBy = lockedBy)"
# I7. And a late copy of a claim has the token that the first copy has used.
_IS_NEWER = "(attribute_not_exists(fencingToken) OR fencingToken < :fencingToken)"
_IS_NEXT_FIRE_TIME = "(attribute_not_exists(lastFireTime) OR lastFireTime < :lastFireTime)"
_IS_SAME = "lockedBy = :lockedBy AND fencingToken = :fencingToken AND lockUntil = :known"
_GRANT = (
    "SET lockUntil = :lockUntil, lockedAt = :lockedAt, lockedBy = :lockedBy, fencingToken = :fencingToken, "
    "expiresAt = :expiresAt"
)
_FREE = "SET lockUntil = lockedAt, releasedBy = lockedBy"


class _Written(NamedTuple):
    """What this holder wrote last, in ``lease.note``: its next write replaces exactly that."""

    locked_at: datetime
    lock_until: str


class DynamoDBPrograms(StorePrograms):
    """Programs for a table of DynamoDB.

    The time is never exact. A program writes the latest time that it can be and adds ``clock_error``; it compares with
    the earliest. A reply that contradicts the time of the one before by more than ``clock_error`` is an error.

    :param table: its name.
    :param clock_error: how far the clocks of the servers that reply may differ.
    """

    def __init__(self, table: str, *, clock_error: Duration = DEFAULT_CLOCK_ERROR, **options: Any) -> None:
        super().__init__(**options)
        self.table = table
        self.clock_error = parse_duration(clock_error, "clock_error", zero=True)
        self._time: ServerTime | None = None
        self._newest_token = 0

    def is_write(self, command: object) -> bool:
        return isinstance(command, Change) and command.is_claim

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
        if not self._is_time_recent():
            entry = (yield from self._ask(Read(name))).entry
            if not force and entry is not None and not self._is_own(entry, claim) and self._is_refused(entry, claim):
                return None
        for _ in range(MOST_TRIES):
            self._check_fire_time(claim, "take_over" if force else "acquire")
            token = max(least_token, self._next_token())
            time, written = self._known_time, self._written(claim.request.lock_at_most_for)
            reply = yield from self._ask(self._claiming(claim, before, token, written, force=force))
            is_own = reply.entry is not None and self._is_own(reply.entry, claim)
            if not self._agree(time, reply.time):
                if reply.is_done or is_own:
                    yield from self._undo_unless(force, claim)
                raise self._disagreement("take_over" if force else "acquire", name)
            if reply.is_done:
                claim.note = written
                return token
            entry = reply.entry
            if is_own and entry is not None:  # an earlier copy of the command was carried out
                claim.note = _Written(entry.record.locked_at, entry.lock_until)
                return entry.record.fencing_token
            if force or (entry is not None and self._is_refused(entry, claim)):
                return None
            least_token = ((entry and entry.record.fencing_token) or 0) + 1
        raise _too_many_tries("take_over" if force else "acquire", name)

    def _claiming(
        self, claim: Claim, before: LockRecord | None, token: int, written: _Written, *, force: bool
    ) -> Change:
        """The one request that grants the lock to ``claim``."""
        request, fire_time = claim.request, claim.request.fire_time
        update, condition = _GRANT, f"{_IS_FREE} AND {_IS_NEWER}"
        values: dict[str, str | int] = {
            "lockUntil": written.lock_until,
            "lockedAt": milliseconds(written.locked_at),
            "lockedBy": claim.locked_by,
            "fencingToken": token,
            "expiresAt": _expires_at(written.lock_until),
        }
        if force:
            condition = "attribute_not_exists(#key)"
            newest = before and before.last_fire_time
            if newest and (fire_time is None or fire_time < newest):
                fire_time = newest
            if before is not None and before.fencing_token is None:
                condition = "attribute_exists(#key) AND attribute_not_exists(fencingToken)"
            elif before is not None and before.fencing_token is not None:
                condition, values["before"] = "fencingToken = :before", before.fencing_token
        else:
            values["now"] = surely_past(self._earliest())
            if fire_time is not None:
                condition += f" AND {_IS_NEXT_FIRE_TIME}"
        if fire_time is not None:
            update += ", lastFireTime = :lastFireTime"
            values["lastFireTime"] = microseconds(fire_time)
        return Change(request.name, f"{update} REMOVE releasedBy", condition, values, is_claim=True)

    def _is_own(self, entry: Entry, claim: Claim) -> bool:
        return entry.record.locked_by == claim.locked_by

    def _is_refused(self, entry: Entry, claim: Claim) -> bool:
        newest, fire_time = entry.record.last_fire_time, claim.request.fire_time
        return self._is_held(entry) or (fire_time is not None and newest is not None and fire_time <= newest)

    def _check_fire_time(self, claim: Claim, operation: str) -> None:
        fire_time = claim.request.fire_time
        if fire_time and fire_time > self._latest() + self.fire_time_tolerance:
            raise fire_time_too_late(operation, claim.request, self.fire_time_tolerance)

    def _undo_unless(self, force: bool, claim: Claim) -> DynamoProgram[None]:
        """Free what was granted at a wrong time. After a take-over the former holder may trust its lease: it stays."""
        if not force:
            request = claim.request
            yield from self.undo_for(request.name, claim.locked_by, request.fire_time)

    def hold(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> DynamoProgram[bool]:
        operation = "release" if releasing else "extend"
        known = lease.note if isinstance(lease.note, _Written) else None
        if known is None or self._time is None:
            known = _own_of((yield from self._ask(Read(lease.name))).entry, lease)
        for _ in range(MOST_TRIES):
            now = self._earliest()
            if known is None or parse_moment(known.lock_until) <= now:
                return False
            update, until = "SET lockUntil = :lockUntil, expiresAt = :expiresAt", self._end_of(lock_for)
            if releasing and not lock_for:
                update, until = f"{update}, releasedBy = lockedBy", now
            written = _Written(known.locked_at, milliseconds_up(max(until, known.locked_at)))
            values: dict[str, str | int] = {
                "lockUntil": written.lock_until,
                "expiresAt": _expires_at(written.lock_until),
                "lockedBy": lease.locked_by,
                "fencingToken": lease.fencing_token or 0,
                "known": known.lock_until,
            }
            time = self._known_time
            reply = yield from self._ask(Change(lease.name, update, _IS_SAME, values))
            if reply.is_done:
                lease.note = written
                if not self._agree(time, reply.time) and not releasing:
                    raise self._disagreement(operation, lease.name)
                return True
            known = _own_of(reply.entry, lease)
        raise _too_many_tries(operation, lease.name)

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> DynamoProgram[bool]:
        condition = "lockedBy = :lockedBy"
        if former_fire_time is not None:
            values: dict[str, str | int] = {"lockedBy": locked_by, "former": microseconds(former_fire_time)}
            update, and_newer = f"{_FREE}, lastFireTime = :former", f"{condition} AND lastFireTime > :former"
            reply = yield from self._ask(Change(name, update, and_newer, values))
            if reply.is_done or reply.entry is None or reply.entry.record.locked_by != locked_by:
                return reply.is_done
        return (yield from self._ask(Change(name, _FREE, condition, {"lockedBy": locked_by}))).is_done

    def forget_fire_time(self, name: str) -> DynamoProgram[bool]:
        reply = yield from self._ask(Change(name, "REMOVE lastFireTime", "attribute_exists(lastFireTime)"))
        return reply.is_done

    def record(self, name: str) -> DynamoProgram[LockRecord | None]:
        entry = (yield from self._ask(Read(name))).entry
        return self._shown(entry) if entry else None

    def records(self, prefix: str) -> DynamoProgram[list[LockRecord]]:
        return [self._shown(entry) for entry in (yield from self._ask(List(prefix))).entries]

    def _shown(self, entry: Entry) -> LockRecord:
        """Its record for people to read. What another server has written may look like the future to this one."""
        record = entry.record
        since = record.lock_until if entry.is_free else record.locked_at
        return replace(record, read_at=max(self._earliest(), since))

    def prune(self, unused_for: timedelta) -> DynamoProgram[int]:
        entries, deleted = (yield from self._ask(List(""))).entries, 0
        for entry in entries:
            record, now = entry.record, self._earliest()
            # I7: a younger record has to stay, because the next token of its name comes from it, not from a clock.
            is_old = now - record.lock_until >= unused_for and (record.fencing_token or 0) < self._least_token()
            if is_old and not self._is_held(entry):
                deleted += (yield from self._ask(Delete(entry))).is_done
        return deleted

    def create_schema(self) -> Program[Any, Any, None]:
        return schema.created(self.table, self.timeout, self.clock)

    # The server's time

    def _ask(self, command: Command) -> DynamoProgram[Reply]:
        reply = yield command
        self._time = reply.time
        return reply

    @property
    def _known_time(self) -> ServerTime:
        assert self._time is not None, "a reply was received before"
        return self._time

    def _is_time_recent(self) -> bool:
        return self._time is not None and self.clock() - self._time.sent_at < RECENT

    def _earliest(self) -> datetime:
        return self._known_time.earliest(self.clock())

    def _latest(self) -> datetime:
        return self._known_time.latest(self.clock())

    def _agree(self, before: ServerTime, after: ServerTime) -> bool:
        """Whether the time that a command was made with was right, as far as its reply shows.

        It was not if the server's clock was set, if this machine stood still without its clock showing it, as after a
        migration, or if two servers' clocks differ by more than ``clock_error``.
        """
        now = self.clock()
        is_late = after.earliest(now) > before.latest(now) + self.clock_error
        is_early = after.latest(now) + self.clock_error < before.earliest(now)
        return not is_late and not is_early

    def _disagreement(self, operation: str, name: str) -> Exception:
        return unreachable(
            operation,
            name,
            f"the time of this reply and of the one before differ by more than {self.clock_error} (clock_error)",
            hint="try again; if it happens often, the clocks of the servers differ: raise clock_error on all replicas",
        )

    def _end_of(self, lock_for: timedelta) -> datetime:
        """The end of a lease of ``lock_for`` from now: no server's clock shows it earlier."""
        return self._latest() + lock_for + self.clock_error

    def _written(self, lock_for: timedelta) -> _Written:
        return _Written(self._earliest(), milliseconds_up(self._end_of(lock_for)))

    def _is_held(self, entry: Entry) -> bool:
        return not entry.is_free and entry.record.lock_until > self._earliest()

    def _next_token(self) -> int:
        """The time in microseconds; and more than the last one, as the earliest time that it can be may go back.

        So one request grants the lock again that this provider had a moment ago.
        """
        now = _token_at(self._earliest())
        is_repeated = 0 <= self._newest_token - now < _UNCERTAIN
        self._newest_token = self._newest_token + 1 if is_repeated else now
        return self._newest_token

    def _least_token(self) -> int:
        """From now on, no replica gives a smaller token to a name that has no record."""
        unknown = timedelta(seconds=self._known_time.resolution + 0.002 * RECENT)
        return _token_at(self._earliest() - self.clock_error - unknown)


def _own_of(entry: Entry | None, lease: Lease) -> _Written | None:
    """What the table has of ``lease``; None: it is not held any more."""
    if entry is None or entry.is_free:
        return None
    record = entry.record
    is_own = (record.locked_by, record.fencing_token) == (lease.locked_by, lease.fencing_token)
    return _Written(record.locked_at, entry.lock_until) if is_own else None


def _expires_at(lock_until: str) -> int:
    return int((parse_moment(lock_until) + KEPT_FOR).timestamp())


def _token_at(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _too_many_tries(operation: str, name: str) -> Exception:
    return refused(operation, name, "the record changed again and again; try once more")
