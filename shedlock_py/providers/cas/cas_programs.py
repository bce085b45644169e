"""Operations on a compare-and-swap store: read a versioned record, decide, write if the version still matches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeGuard, TypeVar

from shedlock_py.errors import ProviderError
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import ONCE, LockRecord
from shedlock_py.providers.cas.options import DEFAULT_CLOCK_ERROR
from shedlock_py.providers.cas.server_time import ServerTime, token_at
from shedlock_py.providers.kit import (
    ConnectionLost,
    ErrorReply,
    Failure,
    GrantsNothing,
    StorePrograms,
    fire_time_too_late,
    given_back,
    kept_changing,
    unreachable,
)
from shedlock_py.runtime.program import Program

OLD = 600.0
"""Seconds. Two clocks may drift 1.2 s apart in this time."""
MOST_REPLIES = 3
"""The most reply times to compare. One of them must agree with an earlier one."""
MOST_TRIES = 16
"""The most attempts if copies write the same record at the same time. One of them succeeds in each round."""


UNREAD = datetime(1970, 1, 1, tzinfo=UTC)
"""Placeholder for ``read_at``. The programs replace it with the time when the record was read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A lock record and its version in the store.

    Each write creates a new version. A version never returns, even if the record is deleted and created again.

    :ivar is_free: True if the lock was released and is free, whatever the clocks say. ``record.is_released`` is also
        true during and after a minimum hold.
    """

    record: LockRecord
    version: Any
    is_free: bool = False


@dataclass(frozen=True, slots=True)
class Read(GrantsNothing):
    """Read the record of ``name``. The reply's value is an :class:`Entry` or None.

    :ivar is_check: the reply confirms an earlier reply, so its time must not be an older time that the client kept.
    """

    name: str
    is_check: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Write ``record`` if the store still has its version ``if_version``. If that is None, only create the record.

    The store must compare and write in one atomic step. The reply's value is the new version, or None if nothing was
    written. ``is_free`` is stored with the record: readers find it in :class:`Entry`. If ``lock_until`` has changed,
    ``record.read_at`` is the earliest time that it can be now.
    """

    record: LockRecord
    if_version: Any | None
    is_free: bool = False

    @property
    def can_grant(self) -> bool:
        return not self.is_free


@dataclass(frozen=True, slots=True)
class Delete(GrantsNothing):
    """Delete the record of ``name`` if its version is still ``if_version``. The reply's value says whether it was."""

    name: str
    if_version: Any


@dataclass(frozen=True, slots=True)
class List(GrantsNothing):
    """List the records with names that start with ``prefix``. The reply's value is a list of :class:`Entry`."""

    prefix: str


CasCommand = Read | Write | Delete | List


class CasReply(NamedTuple):
    """The client's reply to a command: its value, and the server's time, read while or after it was carried out.

    An earlier time is allowed if ``clock_error`` covers its age, because the first fencing token of a name comes from
    it.
    """

    value: Any
    time: ServerTime


T = TypeVar("T")
CasProgram = Program[CasCommand, CasReply, T]
_Step = Callable[[Entry, ServerTime], Write | None]
"""Returns the write for a record, or None if the record stays as it is."""


class CasPrograms(StorePrograms):
    """Programs for a store that reads a versioned record, and writes it only if the version still matches.

    A subclass adds its own errors to ``classify``. Its client carries out the four commands.

    The replies give the server's time, but not exactly. A program writes the latest time that it can be, plus
    ``clock_error``, and compares with the earliest time. So a lease never looks expired before its holder stops
    trusting it.

    A lease that is not released is kept longer than requested. The delay is at most ``clock_error``, plus twice the
    ``resolution`` of :class:`ServerTime` (for the reply before the write and the reply before the read), plus a round
    trip. A difference between the clocks of the two servers is added, and so is the age of a time that is used for
    several commands.

    :param clock_error: the largest difference between the clocks of the servers that reply, and the largest age of a
        time.
    :param options: the options of :class:`StorePrograms`. Without ``timeout`` there is no time limit.
        :func:`parse_options` sets a limit.
    """

    def __init__(self, *, clock_error: Duration = DEFAULT_CLOCK_ERROR, **options: Any) -> None:
        super().__init__(**options)
        self.clock_error = parse_duration(clock_error, "clock_error", zero=True)
        self._last: ServerTime | None = None
        """The time in the last reply."""
        self._store = object()
        """Identifies this store in the notes of leases. A version is meaningless in another store."""

    def classify(self, error: Exception) -> Failure:
        match error:
            case ErrorReply():
                return error.failure
            case ConnectionLost():
                return Failure.CONNECTION_LOST
            case ValueError() | LookupError() | TypeError():
                return Failure.REFUSED  # a record with odd values
        return Failure.NOT_A_STORE_ERROR

    def hint(self, error: Exception) -> str | None:
        return error.hint if isinstance(error, ErrorReply) else None

    # The operations

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> CasProgram[int | None]:
        operation, may_repeat = "take_over" if force else "acquire", True
        decided: tuple[Entry, ServerTime] | None = None
        """The entry that the last write replaces, and the server time that the program decided by."""
        for _ in range(MOST_TRIES):
            entry, time = yield from self._read(claim.request.name)
            if entry and (not force or claim.recoveries) and self._has_run_out(entry, time):
                entry, time = yield from self._checked_read(operation, claim.request.name, time)
            if entry is not None and entry.record.locked_by == claim.locked_by:
                written = entry  # an earlier copy was carried out, but its reply was lost
            else:
                if force and (entry and entry.record.acquisition) != (before and before.acquisition):
                    return None  # granted to another holder, or deleted, since it was read
                if claim.recoveries and entry and (_is_held(entry, time.date) or _is_released(entry) is not False):
                    return None
                self._check_fire_time(claim, time, force=force)
                if entry is None:
                    entry, time = yield from self._make(claim, time)
                    if entry is None:
                        continue  # another claim has created it
                    self._check_fire_time(claim, time, force=force)
                granted = self._granted(claim, entry, time, force=force)
                if granted is None:
                    return None
                decided = entry, time
                claim.note = _Replaced(entry)
                reply = yield from self._send(Write(granted, entry.version))
                time = reply.time
                if reply.value is None:
                    continue
                written = Entry(granted, reply.value)
            if decided is None or decided[1].agrees_with(time, self.clock(), self.clock_error):
                claim.note = _Note(self._store, written, time)
                return written.record.fencing_token
            yield from self._give_back(decided[0], written, time)
            if not may_repeat:
                raise clocks_disagree(operation, claim.request.name, self.clock_error)
            may_repeat = False
        raise kept_changing(operation, claim.request.name)

    def undo_acquire(self, claim: Claim) -> CasProgram[bool]:
        """Undo the claim, and restore the lease of another holder that it replaced: a wrong clock may have ended it."""
        if not isinstance(claim.note, _Replaced) or claim.note.entry.is_free:
            return super().undo_acquire(claim)
        former, name = claim.note.entry, claim.request.name

        def restored(entry: Entry, time: ServerTime) -> Write | None:
            is_own = entry.record.locked_by == claim.locked_by
            return Write(replace(former.record, read_at=time.date), entry.version, former.is_free) if is_own else None

        return self._change("undo", name, restored)

    def _give_back(self, former: Entry, written: Entry, time: ServerTime) -> CasProgram[None]:
        """Write the previous record again: a server has a wrong clock, so its holder may still have the lock."""
        yield from self._send(Write(replace(former.record, read_at=time.date), written.version, former.is_free))

    def _make(self, claim: Claim, time: ServerTime) -> CasProgram[tuple[Entry | None, ServerTime]]:
        """Create a free record, to get a version and a time for the grant.

        A write that grants a lock always names a version. A write without a version could arrive late, after another
        holder's record was pruned, and bring an old token back (I7).
        """
        now, name = time.date, claim.request.name
        record = LockRecord(name, claim.request.holder, now, now, 0, None, read_at=now)
        reply = yield from self._send(Write(record, None, is_free=True))
        return (None if reply.value is None else Entry(record, reply.value, is_free=True)), reply.time

    def _check_fire_time(self, claim: Claim, time: ServerTime, *, force: bool) -> None:
        fire_time = claim.request.fire_time
        if fire_time and fire_time > self._latest(time) + self.fire_time_tolerance:
            raise fire_time_too_late("take_over" if force else "acquire", claim.request, self.fire_time_tolerance)

    def _granted(self, claim: Claim, entry: Entry, time: ServerTime, *, force: bool) -> LockRecord | None:
        """Return the record that grants the lock to ``claim``, or None if it is held or its fire time was granted."""
        request, fire_time, now = claim.request, claim.request.fire_time, time.date
        record, newest = entry.record, entry.record.last_fire_time
        if not force and (_is_held(entry, now) or (fire_time and newest and fire_time <= newest)):
            return None
        if newest and (fire_time is None or fire_time < newest):
            fire_time = newest
        token = max((record.fencing_token or 0) + 1, token_at(now))
        until = self._end_of(request.lock_at_most_for, time)
        return LockRecord(request.name, claim.locked_by, now, until, token, fire_time, read_at=now, is_released=False)

    def set_end(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> CasProgram[bool]:
        operation, may_repeat = "release" if releasing else "extend", True
        entry, time = lease._note[1:] if _is_note(lease._note, self._store) else (None, None)
        if time is not None and self.clock() - time.sent_at > OLD:
            entry, time = None, None  # its time is so old that any reply would agree with it
        if entry is None or time is None or not _is_of(lease, entry, self._earliest(time)):
            # The note may be wrong that the lease is over: an older extension, with a late reply, may have written it.
            entry, time = yield from self._checked_read(operation, lease.name, time)
        is_free = releasing and not lock_for
        for _ in range(MOST_TRIES):
            now = self._earliest(time)
            if entry is None or not _is_of(lease, entry, now):
                return False
            if lease.is_being_released() and not releasing:
                return False  # the record of a minimum hold looks like the record of a live lease
            # Computed in each round: a newer extension may have caused the conflict, and must not be shortened.
            until = now if is_free else self._end_of(lock_for, time)
            is_released = True if releasing else entry.record.is_released
            record = replace(entry.record, lock_until=until, read_at=now, is_released=is_released)
            reply = yield from self._send(Write(record, entry.version, is_free))
            written = Entry(record, reply.value, is_free)
            if reply.value is not None:
                if is_free or time.agrees_with(reply.time, self.clock(), self.clock_error):
                    lease._note = _Note(self._store, written, reply.time)
                    return True
                if not may_repeat:
                    raise clocks_disagree(operation, lease.name, self.clock_error)
                may_repeat = False
            entry, time = yield from self._checked_read(operation, lease.name, time)
            if entry is not None and entry.version == reply.value:
                # The server's clock has jumped, so `until` may be over already. Compute the end again.
                entry = replace(entry, record=replace(record, lock_until=self._end_of(lock_for, time)))
        raise kept_changing(operation, lease.name)

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> CasProgram[bool]:
        def undone(entry: Entry, time: ServerTime) -> Write | None:
            is_same = entry.record.locked_by == locked_by
            return _freeing(entry, time, former_fire_time) if is_same else None

        return self._change("undo", name, undone)

    def free(self, record: LockRecord) -> CasProgram[bool]:
        former = given_back(record)

        def freed(entry: Entry, time: ServerTime) -> Write | None:
            was_released = entry.is_free or (former and entry.record.is_released)
            is_same = entry.record.acquisition == record.acquisition
            return _freeing(entry, time, former) if is_same and not was_released else None

        return self._change("force_release", record.name, freed)

    def forget_fire_time(self, name: str, expected: LockRecord | None = None) -> CasProgram[bool]:
        seen, stays = expected, False
        known: ServerTime | None = None

        def forgotten(entry: Entry, time: ServerTime) -> Write | None:
            nonlocal seen, stays
            found = entry.record
            seen = seen or found
            newest = seen.last_fire_time
            if newest is None or found.last_fire_time != newest:
                return None  # it had no fire time, or a first copy of the write has deleted it
            # All runs of a run_once key have the same fire time.
            is_in_use = found.locked_by != seen.locked_by or _is_held(entry, time.date)
            stays = newest == ONCE and (is_in_use or (known is None and self._has_run_out(entry, time)))
            return None if stays else Write(replace(found, last_fire_time=None), entry.version, entry.is_free)

        yield from self._change("forget_fire_time", name, forgotten)
        if stays and seen is not None:  # a wrong clock may show the lease of a live holder as ended
            entry, known = yield from self._checked_read("forget_fire_time", name, None)
            write = forgotten(entry, known) if entry else None
            if write is not None and (yield from self._send(write)).value is None:
                raise kept_changing("forget_fire_time", name)
        return seen is not None and seen.last_fire_time is not None and not stays

    def _change(self, operation: str, name: str, step: _Step) -> CasProgram[bool]:
        for _ in range(MOST_TRIES):
            entry, time = yield from self._read(name)
            write = step(entry, time) if entry else None
            if write is None:
                return False
            if (yield from self._send(write)).value is not None:
                return True
        raise kept_changing(operation, name)

    def record(self, name: str) -> CasProgram[LockRecord | None]:
        entry, time = yield from self._read(name)
        return _shown(entry, time.date) if entry else None

    def records(self, prefix: str) -> CasProgram[list[LockRecord]]:
        reply = yield List(prefix)
        return [_shown(entry, reply.time.date) for entry in reply.value]

    def prune(self, unused_for: timedelta, prefix: str = "") -> CasProgram[int]:
        entries, time = yield List(prefix)
        now, deleted = time.date, 0
        if entries and not time.agrees_with(
            (yield from self._read(entries[0].record.name, is_check=True))[1], self.clock(), self.clock_error
        ):
            raise clocks_disagree("prune", entries[0].record.name, self.clock_error)
        # Servers give only greater tokens to a name without a record. A younger record stays: the next token of its
        # name must come from the record, not from a coarse clock (I7).
        least = token_at(now - self.clock_error - timedelta(seconds=time.resolution))
        for entry in entries:
            record = entry.record
            if (
                record.name.startswith(prefix)
                and not _is_held(entry, now)
                and now - record.lock_until >= unused_for
                and (record.fencing_token or 0) < least
                and record.last_fire_time != ONCE
            ):
                deleted += bool((yield from self._send(Delete(record.name, entry.version))).value)
        return deleted

    # Commands and the server's time

    def _send(self, command: CasCommand) -> CasProgram[Any]:
        reply = yield command
        self._last = reply.time
        return reply

    def _read(self, name: str, *, is_check: bool = False) -> CasProgram[tuple[Entry | None, ServerTime]]:
        reply: tuple[Entry | None, ServerTime] = yield from self._send(Read(name, is_check))
        return reply

    def _has_run_out(self, entry: Entry, time: ServerTime) -> bool:
        """Return whether the lease of ``entry`` has ended unreleased. With a wrong clock, the holder may be alive."""
        return not entry.is_free and _is_released(entry) is not True and not _is_held(entry, time.date)

    def _earliest(self, time: ServerTime) -> datetime:
        """Return the earliest time that the server's clock can show, from ``time`` and an agreeing last reply."""
        now, last = self.clock(), self._last
        if last is None or not last.agrees_with(time, now, self.clock_error):
            return time.earliest(now)
        return max(time.earliest(now), last.earliest(now))

    def _checked_read(
        self, operation: str, name: str, known: ServerTime | None
    ) -> CasProgram[tuple[Entry | None, ServerTime]]:
        """Read the record until a reply's time agrees with ``known`` or with an earlier reply's time.

        :raises ProviderError: no time agreed in three replies.
        """
        times = [known] if known else []
        for _ in range(MOST_REPLIES):
            entry, time = yield from self._read(name, is_check=True)
            if any(each.agrees_with(time, self.clock(), self.clock_error) for each in times):
                return entry, time
            times.append(time)
        raise clocks_disagree(operation, name, self.clock_error)

    def _latest(self, time: ServerTime) -> datetime:
        return time.latest(self.clock())

    def _end_of(self, lock_for: timedelta, time: ServerTime) -> datetime:
        """Return the end of a lease of ``lock_for`` from now. No server's clock shows that end earlier."""
        return self._latest(time) + lock_for + self.clock_error


def clocks_disagree(operation: str, lock_name: str, clock_error: timedelta) -> ProviderError:
    """Return the error for an operation with replies that contradict each other again and again."""
    return unreachable(
        operation,
        lock_name,
        f"the times of one reply and the next differ by more than {clock_error} (clock_error)",
        hint="if it happens again, the clocks of the servers differ by that much: raise clock_error on all replicas",
    )


def _freeing(entry: Entry, time: ServerTime, former_fire_time: datetime | None) -> Write:
    newest, until = entry.record.last_fire_time, min(entry.record.lock_until, time.date)
    if newest and former_fire_time:
        newest = min(newest, former_fire_time)
    freed = replace(entry.record, lock_until=until, last_fire_time=newest, read_at=time.date, is_released=True)
    return Write(freed, entry.version, is_free=True)


def _is_held(entry: Entry, now: datetime) -> bool:
    """Return whether the lock is held at ``now``: the earliest time, or the reply's time for an entry just read."""
    return not entry.is_free and entry.record.lock_until > now


def _is_of(lease: Lease, entry: Entry, now: datetime) -> bool:
    """Return whether exactly this acquisition holds the record."""
    record = entry.record
    is_same = (record.locked_by, record.fencing_token) == (lease.locked_by, lease.fencing_token)
    return is_same and _is_held(entry, now)


def _shown(entry: Entry, now: datetime) -> LockRecord:
    """Return the record for people, and for electors, which note whether it changes.

    After a release, its end may be in the future of this server's clock.
    """
    read_at = max(now, entry.record.lock_until) if entry.is_free else now
    return replace(entry.record, read_at=read_at, is_released=_is_released(entry))


def _is_released(entry: Entry) -> bool | None:
    """Return whether the lock was released. None if the record does not say."""
    return True if entry.is_free else entry.record.is_released


class _Replaced(NamedTuple):
    """The note of a claim until its write has succeeded: the entry that the write replaces."""

    entry: Entry


class _Note(NamedTuple):
    """The last write of a lease, kept with the lease. It saves a read before the next write.

    ``time`` agreed with the previous reply. A single reply may come from a server with a wrong clock.
    """

    store: object
    entry: Entry
    time: ServerTime


def _is_note(note: object, store: object) -> TypeGuard[_Note]:
    return isinstance(note, _Note) and note.store is store
