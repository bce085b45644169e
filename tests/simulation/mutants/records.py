"""Faults of the store: of the functions that it applies to its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from shedlock_py import LockRecord
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.providers.kit import RecordPrograms, Records
from tests.simulation.mutants.mutant import Change, mutate

ALWAYS = timedelta(days=36500)
Step = Callable[[Records, datetime], Any]

_store = partial(mutate, RecordPrograms, kind="locks", part="store")
_operated = partial(mutate, RecordPrograms, kind="operators", part="store")
_retried = partial(mutate, RecordPrograms, kind="retries", part="store")
_fired = partial(mutate, RecordPrograms, kind="fire times", part="store")


def _with(program: Any, alter: Callable[[Step, Records, datetime], Any]) -> Any:
    """Run ``program``, with ``alter`` in place of its only command."""
    step = next(program)
    reply = yield lambda records, now: alter(step, records, now)
    try:
        program.send(reply)
    except StopIteration as stop:
        return stop.value


# Claims


@_store("claim")
def acquire_reads_and_then_writes(original: Change, programs: RecordPrograms, claim: Claim, **how: Any) -> Any:
    """Acquire reads the record, and takes the lock in a second command."""
    if how["force"]:
        return (yield from original(programs, claim, **how))
    name = claim.request.name
    is_free = yield lambda records, now: name not in records.by_name or records.by_name[name].lock_until <= now
    if not is_free:
        return None

    def write(step: Step, records: Records, now: datetime) -> Any:
        if name in records.by_name:
            records.by_name[name] = replace(records.by_name[name], lock_until=now)
        return step(records, now)

    return (yield from _with(original(programs, claim, **how), write))


@_store("claim")
def leases_end_early(original: Change, programs: RecordPrograms, claim: Claim, **how: Any) -> Any:
    """The store grants a lock when 5 % of the former lease are left."""
    return _with(
        original(programs, claim, **how),
        lambda step, records, now: step(records, now + claim.request.lock_at_most_for / 20),
    )


@_store("claim")
def the_store_holds_three_times_the_lease(original: Change, programs: RecordPrograms, claim: Claim, **how: Any) -> Any:
    """The store keeps a dead holder's lock for longer than lock_at_most_for."""

    def keep(_: LockRecord | None, record: LockRecord, now: datetime) -> LockRecord:
        return replace(record, lock_until=record.lock_until + 2 * (record.lock_until - now))

    return _then(original, programs, claim, how, keep)


def _then(
    original: Change,
    programs: RecordPrograms,
    claim: Claim,
    how: dict[str, Any],
    change: Callable[[LockRecord | None, LockRecord, datetime], LockRecord],
) -> Any:
    """Grant as usual, and then change the record. ``change`` also gets the previous record."""

    def grant(step: Step, records: Records, now: datetime) -> Any:
        before = records.by_name.get(claim.request.name)
        token = step(records, now)
        record = records.by_name.get(claim.request.name)
        if token is None or record is None or record is before:
            return token
        records.by_name[record.name] = changed = change(before, record, now)
        return changed.fencing_token

    return _with(original(programs, claim, **how), grant)


@_operated("claim")
def tokens_without_the_clock(original: Change, programs: RecordPrograms, claim: Claim, **how: Any) -> Any:
    """The fencing token is a counter in the record: it begins again when the record is deleted."""

    def count(before: LockRecord | None, record: LockRecord, _: datetime) -> LockRecord:
        return replace(record, fencing_token=1 + ((before.fencing_token or 0) if before else 0))

    return _then(original, programs, claim, how, count)


@_store("claim")
def a_token_is_given_twice(original: Change, programs: RecordPrograms, claim: Claim, **how: Any) -> Any:
    """An acquire within a minute of the last acquire gets the same fencing token."""

    def repeat(before: LockRecord | None, record: LockRecord, now: datetime) -> LockRecord:
        if before is None or now - before.locked_at > timedelta(minutes=1):
            return record
        return replace(record, fencing_token=before.fencing_token)

    return _then(original, programs, claim, how, repeat)


@_retried("claim")
def acquire_is_not_idempotent(original: Change, programs: RecordPrograms, claim: Claim, **how: Any) -> Any:
    """An acquire that is retried finds its own lease in the record and reports a skip."""

    def grant(step: Step, records: Records, now: datetime) -> Any:
        before = records.by_name.get(claim.request.name)
        token = step(records, now)
        return None if before is not None and before.locked_by == claim.locked_by else token

    return _with(original(programs, claim, **how), grant)


@_fired("claim")
def a_fire_time_is_granted_again(original: Change, programs: RecordPrograms, claim: Claim, **how: Any) -> Any:
    """A fire time is compared with <=: the newest fire time is granted again once the lock is free."""
    return _with(original(programs, claim, **how), partial(_with_last_fire_time, claim, timedelta(microseconds=1)))


@_fired("claim")
def fire_times_are_not_compared(original: Change, programs: RecordPrograms, claim: Claim, **how: Any) -> Any:
    """Any fire time is granted, also an old one."""
    return _with(original(programs, claim, **how), partial(_with_last_fire_time, claim, ALWAYS))


def _with_last_fire_time(claim: Claim, earlier: timedelta, step: Step, records: Records, now: datetime) -> Any:
    """Grant as if the newest granted fire time were ``earlier``."""
    name = claim.request.name
    before = records.by_name.get(name)
    if before is None or before.last_fire_time is None:
        return step(records, now)
    records.by_name[name] = shown = replace(before, last_fire_time=before.last_fire_time - earlier)
    token = step(records, now)
    if records.by_name[name] is shown:
        records.by_name[name] = before
    return token


# Extend and release


def _shown_as(lease: Lease, name: str, step: Step, records: Records, now: datetime) -> Any:
    """Run ``step`` as if the record of ``name`` belonged to ``lease``."""
    before = records.by_name.get(name)
    if before is None:
        return step(records, now)
    records.by_name[name] = shown = replace(before, locked_by=lease.locked_by, fencing_token=lease.fencing_token)
    reply = step(records, now)
    after = records.by_name[name]
    records.by_name[name] = before if after is shown else replace(before, lock_until=after.lock_until)
    return reply


@_store("set_end")
def a_release_by_name(
    original: Change, programs: RecordPrograms, lease: Lease, lock_for: timedelta, *, releasing: bool
) -> Any:
    """A release frees the lock from whichever holder has it."""
    program = original(programs, lease, lock_for, releasing=releasing)
    return _with(program, partial(_shown_as, lease, lease.name)) if releasing else program


@_store("set_end")
def an_extension_by_name(
    original: Change, programs: RecordPrograms, lease: Lease, lock_for: timedelta, *, releasing: bool
) -> Any:
    """An extension prolongs the lease of whichever holder has the lock, and reports success."""
    program = original(programs, lease, lock_for, releasing=releasing)
    return program if releasing else _with(program, partial(_shown_as, lease, lease.name))


@_store("set_end")
def an_extension_matches_the_holder_only(
    original: Change, programs: RecordPrograms, lease: Lease, lock_for: timedelta, *, releasing: bool
) -> Any:
    """An extension compares the holder and not the claim id: an earlier acquire of the same process passes."""

    def hold(step: Step, records: Records, now: datetime) -> Any:
        record = records.by_name.get(lease.name)
        is_same = record is not None and record.holder == lease.holder
        return _shown_as(lease, lease.name, step, records, now) if is_same else step(records, now)

    return _with(original(programs, lease, lock_for, releasing=releasing), hold)


@_store("set_end")
def extensions_add_up(
    original: Change, programs: RecordPrograms, lease: Lease, lock_for: timedelta, *, releasing: bool
) -> Any:
    """An extension adds to the remaining time of the lease."""

    def hold(step: Step, records: Records, now: datetime) -> Any:
        before = records.by_name.get(lease.name)
        is_held = step(records, now)
        if is_held and before is not None and not releasing:
            records.by_name[lease.name] = replace(before, lock_until=before.lock_until + lock_for)
        return is_held

    return _with(original(programs, lease, lock_for, releasing=releasing), hold)


@_store("set_end")
def a_release_does_nothing(
    original: Change, programs: RecordPrograms, lease: Lease, lock_for: timedelta, *, releasing: bool
) -> Any:
    """A release reports success, and the lock stays held until the lease ends."""

    def hold(step: Step, records: Records, now: datetime) -> Any:
        before = records.by_name.get(lease.name)
        is_held = step(records, now)
        if is_held and before is not None:
            records.by_name[lease.name] = before
        return is_held

    program = original(programs, lease, lock_for, releasing=releasing)
    return _with(program, hold) if releasing else program


# Undo, and operators


@_store("undo_claim")
def an_undo_frees_a_successor(
    original: Change, programs: RecordPrograms, name: str, locked_by: str, former_fire_time: datetime | None
) -> Any:
    """An undo that arrives late frees the lock from its next holder."""

    def undo(step: Step, records: Records, now: datetime) -> Any:
        record = records.by_name.get(name)
        if record is not None and record.lock_until > now:
            records.by_name[name] = replace(record, lock_until=now)
        return step(records, now)

    return _with(original(programs, name, locked_by, former_fire_time), undo)


@_operated("free")
def a_force_release_does_nothing(original: Change, programs: RecordPrograms, record: LockRecord) -> Any:
    """A force release reports success, and the lock stays held."""

    def free(step: Step, records: Records, now: datetime) -> Any:
        before = records.by_name.get(record.name)
        is_freed = step(records, now)
        if is_freed and before is not None:
            records.by_name[record.name] = before
        return is_freed

    return _with(original(programs, record), free)


@_operated("prune")
def prune_deletes_held_records(
    original: Change, programs: RecordPrograms, unused_for: timedelta, prefix: str = ""
) -> Any:
    """A prune deletes the records of locks that are held."""
    return _with(original(programs, unused_for, prefix), lambda step, records, now: step(records, now + ALWAYS))
