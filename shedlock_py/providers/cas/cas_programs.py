"""The operations on a compare-and-swap store: read a versioned record, decide, write if the version still matches."""

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
from shedlock_py.providers.cas.server_time import OtherReplyError, ServerTime, UnknownTimeError, token_at
from shedlock_py.providers.kit import (
    Command,
    Failure,
    StorePrograms,
    fire_time_too_late,
    given_back,
    kept_changing,
    unreachable,
)
from shedlock_py.runtime.program import Program

OLD = 600.0
"""Seconds. Two clocks may drift 1.2 s apart meanwhile."""
MOST_REPLIES = 3
"""Of which one must agree with an earlier one on the time."""
MOST_TRIES = 16
"""For copies that write the same record at the same time: one of them succeeds in each round."""


UNREAD = datetime(1970, 1, 1, tzinfo=UTC)
"""In place of the time when a record was read: the programs fill that in."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A lock record, and the version that the store has given to it.

    Each write gives another version, and none comes back, also not after the record was deleted and made again.

    :ivar is_free: it was released, so it is free whatever the clocks say.
        ``record.is_released`` is true also during and after the minimum hold of a run that was released.
    """

    record: LockRecord
    version: Any
    is_free: bool = False


@dataclass(frozen=True, slots=True)
class Read(Command):
    """Read the record of ``name``. The reply's value is an :class:`Entry`, or None."""

    name: str


@dataclass(frozen=True, slots=True)
class Write:
    """Write ``record`` if the store still has ``if_version`` of it; None: if there is no record.

    ``is_free`` belongs to the record: readers find it in :class:`Entry`. Where ``lock_until`` has changed,
    ``record.read_at`` is the earliest time that it can be now. The reply's value is the new version, or None
    if the condition did not hold. The store must decide in one atomic step.
    """

    record: LockRecord
    if_version: Any | None
    is_free: bool = False

    @property
    def can_grant(self) -> bool:
        return not self.is_free


@dataclass(frozen=True, slots=True)
class Delete(Command):
    """Delete the record of ``name`` if the store still has ``if_version`` of it. The reply's value says whether."""

    name: str
    if_version: Any


@dataclass(frozen=True, slots=True)
class List(Command):
    """The reply's value is an :class:`Entry` for each record whose name starts with ``prefix``."""

    prefix: str


CasCommand = Read | Write | Delete | List


class CasReply(NamedTuple):
    """What the client returns for a command: its value, and the server's time, read when it was carried out or later.

    An earlier time is allowed if ``clock_error`` covers its age, because a name's first fencing token comes from it.
    """

    value: Any
    time: ServerTime


T = TypeVar("T")
CasProgram = Program[CasCommand, CasReply, T]
_Step = Callable[[Entry, ServerTime], Write | None]
"""What becomes of a record; None: it stays as it is."""


class CasPrograms(StorePrograms):
    """Programs for a store that reads a versioned record, and writes it if the version still matches.

    A subclass adds its own errors to ``classify``; its client carries out the four commands.

    The time is that of the server, by its replies, and never exact. A program writes the latest time that it can be and
    adds ``clock_error``; it compares with the earliest. So no lease looks expired before its holder stops trusting it,
    and one that is not released is kept longer than asked, by up to ``clock_error`` + twice the ``resolution`` of
    :class:`ServerTime` + a round trip: once for the reply by which it is written, and once for the reply by which it is
    read. If the clocks of the two servers differ, that is added; and so is the age of a time that serves several
    commands.

    :param clock_error: how far the clocks of the servers that reply may differ, and the age of such a time.
    :param options: those of :class:`StorePrograms`. Without ``timeout`` there is no time limit; :func:`parse_options`
        sets one.
    """

    def __init__(self, *, clock_error: Duration = DEFAULT_CLOCK_ERROR, **options: Any) -> None:
        super().__init__(**options)
        self.clock_error = parse_duration(clock_error, "clock_error", zero=True)
        self._last: ServerTime | None = None
        """From the last reply."""
        self._store = object()
        """The store that these programs are for, in the notes of leases: a version says nothing to another store."""

    def classify(self, error: Exception) -> Failure:
        match error:
            case UnknownTimeError() | OtherReplyError():
                return Failure.UNREACHABLE  # the command may have been carried out
            case ValueError() | LookupError() | TypeError():
                return Failure.REFUSED  # a record with odd values
        return Failure.NOT_A_STORE_ERROR

    def hint(self, error: Exception) -> str | None:
        return error.hint if isinstance(error, UnknownTimeError | OtherReplyError) else None

    # The operations

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> CasProgram[int | None]:
        operation, may_repeat = "take_over" if force else "acquire", True
        decided: tuple[Entry, ServerTime] | None = None
        """The entry that the last write replaces, and the server time of that decision."""
        for _ in range(MOST_TRIES):
            entry, time = yield from self._read(claim.request.name)
            if entry and (not force or claim.recoveries) and self._has_run_out(entry, time):
                entry, time = yield from self._checked_read(operation, claim.request.name, time)
            if entry is not None and entry.record.locked_by == claim.locked_by:
                written = entry  # an earlier copy was carried out, and its reply was lost
            else:
                if force and (entry and entry.record.acquisition) != (before and before.acquisition):
                    return None  # granted to somebody else, or deleted, since it was read
                if claim.recoveries and entry and (_is_held(entry, time.date) or _is_released(entry) is not False):
                    return None
                self._check_fire_time(claim, time, force=force)
                if entry is None:
                    entry, time = yield from self._make(claim, time)
                    if entry is None:
                        continue  # another claim has made it
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
        """If the claim has replaced the lease of another holder, that comes back: a wrong clock may have ended it."""
        if not isinstance(claim.note, _Replaced) or claim.note.entry.is_free:
            return super().undo_acquire(claim)
        former, name = claim.note.entry, claim.request.name

        def restored(entry: Entry, time: ServerTime) -> Write | None:
            is_own = entry.record.locked_by == claim.locked_by
            return Write(replace(former.record, read_at=time.date), entry.version, former.is_free) if is_own else None

        return self._change("undo", name, restored)

    def _give_back(self, former: Entry, written: Entry, time: ServerTime) -> CasProgram[None]:
        """Write the previous record again: a server has a wrong clock, so the previous holder may have the lock."""
        yield from self._send(Write(replace(former.record, read_at=time.date), written.version, former.is_free))

    def _make(self, claim: Claim, time: ServerTime) -> CasProgram[tuple[Entry | None, ServerTime]]:
        """Make a free record. It has a version, and its reply a time, that the grant goes by.

        A write that grants a lock always names a version. One that asked for no record could arrive late, when another
        holder's record was pruned, and bring an old token back (I7).
        """
        now, name = time.date, claim.request.name
        record = LockRecord(name, claim.request.holder, now, now, 0, None, read_at=now)
        reply = yield from self._send(Write(record, None, is_free=True))
        return (None if reply.value is None else Entry(record, reply.value, is_free=True)), reply.time

    def _check_fire_time(self, claim: Claim, time: ServerTime, *, force: bool) -> None:
        """:raises ProviderError: it is too late."""
        fire_time = claim.request.fire_time
        if fire_time and fire_time > self._latest(time) + self.fire_time_tolerance:
            raise fire_time_too_late("take_over" if force else "acquire", claim.request, self.fire_time_tolerance)

    def _granted(self, claim: Claim, entry: Entry, time: ServerTime, *, force: bool) -> LockRecord | None:
        """The record that grants the lock to ``claim``; None: it is held, or its fire time was granted."""
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
            entry, time = None, None  # any reply would seem to agree with it
        if entry is None or time is None or not _is_of(lease, entry, self._earliest(time)):
            # The lease may be over by its note only: an older extension, whose reply was late, may have written that.
            entry, time = yield from self._checked_read(operation, lease.name, time)
        is_free = releasing and not lock_for
        for _ in range(MOST_TRIES):
            now = self._earliest(time)
            if entry is None or not _is_of(lease, entry, now):
                return False
            if lease.is_being_released() and not releasing:
                return False  # the record of a minimum hold looks like that of a live lease
            # Computed in each round: a newer extension may cause the conflict, and this one must not shorten it.
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
                # The server's clock has jumped, so `until` may be over already. It gets the right end here.
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
                return None  # there was none, or a first copy of the write has forgotten it
            # All runs of a key of run_once have one fire time.
            is_in_use = found.locked_by != seen.locked_by or _is_held(entry, time.date)
            stays = newest == ONCE and (is_in_use or (known is None and self._has_run_out(entry, time)))
            return None if stays else Write(replace(found, last_fire_time=None), entry.version, entry.is_free)

        yield from self._change("forget_fire_time", name, forgotten)
        if stays and seen is not None:  # a wrong clock may say that the lease of a living holder has ended
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

    def prune(self, unused_for: timedelta) -> CasProgram[int]:
        entries, time = yield List("")
        now, deleted = time.date, 0
        if entries and not time.agrees_with(
            (yield from self._read(entries[0].record.name))[1], self.clock(), self.clock_error
        ):
            raise clocks_disagree("prune", entries[0].record.name, self.clock_error)
        # No server gives a smaller token to a name that has no record. A younger record stays: the next token of its
        # name comes from it, not from a clock that is coarse (I7).
        least = token_at(now - self.clock_error - timedelta(seconds=time.resolution))
        for entry in entries:
            record = entry.record
            if (
                not _is_held(entry, now)
                and now - record.lock_until >= unused_for
                and (record.fencing_token or 0) < least
                and record.last_fire_time != ONCE
            ):
                deleted += bool((yield from self._send(Delete(record.name, entry.version))).value)
        return deleted

    # Commands, and the server's time

    def _send(self, command: CasCommand) -> CasProgram[Any]:
        reply = yield command
        self._last = reply.time
        return reply

    def _read(self, name: str) -> CasProgram[tuple[Entry | None, ServerTime]]:
        reply: tuple[Entry | None, ServerTime] = yield from self._send(Read(name))
        return reply

    def _has_run_out(self, entry: Entry, time: ServerTime) -> bool:
        """Whether the lease of ``entry`` has ended without a release. A wrong clock may say so of a living holder."""
        return not entry.is_free and _is_released(entry) is not True and not _is_held(entry, time.date)

    def _earliest(self, time: ServerTime) -> datetime:
        """The time that the server's clock shows at least, by ``time`` and by the last reply, if that agrees."""
        now, last = self.clock(), self._last
        if last is None or not last.agrees_with(time, now, self.clock_error):
            return time.earliest(now)
        return max(time.earliest(now), last.earliest(now))

    def _checked_read(
        self, operation: str, name: str, known: ServerTime | None
    ) -> CasProgram[tuple[Entry | None, ServerTime]]:
        """Read the record until the time of a reply agrees with ``known``, or with that of a reply before.

        :raises ProviderError: three replies did not.
        """
        times = [known] if known else []
        for _ in range(MOST_REPLIES):
            entry, time = yield from self._read(name)
            if any(each.agrees_with(time, self.clock(), self.clock_error) for each in times):
                return entry, time
            times.append(time)
        raise clocks_disagree(operation, name, self.clock_error)

    def _latest(self, time: ServerTime) -> datetime:
        return time.latest(self.clock())

    def _end_of(self, lock_for: timedelta, time: ServerTime) -> datetime:
        """The end of a lease of ``lock_for`` from now: no server's clock shows it earlier."""
        return self._latest(time) + lock_for + self.clock_error


def clocks_disagree(operation: str, lock_name: str, clock_error: timedelta) -> ProviderError:
    """The error for an operation whose replies contradict each other again and again."""
    return unreachable(
        operation,
        lock_name,
        f"the times of one reply and the next differ by more than {clock_error} (clock_error)",
        hint="if it happens again, the clocks of the servers differ so much: raise clock_error on all replicas",
    )


def _freeing(entry: Entry, time: ServerTime, former_fire_time: datetime | None) -> Write:
    """The write that frees the lock of ``entry``, and gives a fire time back."""
    newest, until = entry.record.last_fire_time, min(entry.record.lock_until, time.date)
    if newest and former_fire_time:
        newest = min(newest, former_fire_time)
    freed = replace(entry.record, lock_until=until, last_fire_time=newest, read_at=time.date, is_released=True)
    return Write(freed, entry.version, is_free=True)


def _is_held(entry: Entry, now: datetime) -> bool:
    """``now``: the earliest that it can be. What a program has just read, it compares with the time of that reply."""
    return not entry.is_free and entry.record.lock_until > now


def _is_of(lease: Lease, entry: Entry, now: datetime) -> bool:
    """Whether the record is still held by exactly this acquisition."""
    record = entry.record
    is_same = (record.locked_by, record.fencing_token) == (lease.locked_by, lease.fencing_token)
    return is_same and _is_held(entry, now)


def _shown(entry: Entry, now: datetime) -> LockRecord:
    """Its record for people to read, and for electors, which note whether it changes.

    The end of one that was released may be in the future of this server's clock.
    """
    read_at = max(now, entry.record.lock_until) if entry.is_free else now
    return replace(entry.record, read_at=read_at, is_released=_is_released(entry))


def _is_released(entry: Entry) -> bool | None:
    """None: the record does not say."""
    return True if entry.is_free else entry.record.is_released


class _Replaced(NamedTuple):
    """The note of a claim until its write has succeeded: the entry that the write replaces."""

    entry: Entry


class _Note(NamedTuple):
    """The last write of a lease, in its memory. So the next write needs no read.

    ``time`` agreed with the reply before. One reply alone may come from a server with a wrong clock.
    """

    store: object
    entry: Entry
    time: ServerTime


def _is_note(note: object, store: object) -> TypeGuard[_Note]:
    return isinstance(note, _Note) and note.store is store
