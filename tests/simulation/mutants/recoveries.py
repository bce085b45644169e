"""Faults of recovery: in the conditional claim, and in the mark of an ended run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from shedlock_py import LockRecord, LockRequest
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.providers.kit import RecordPrograms, Records, StorePrograms, locking
from tests.simulation.mutants.mutant import Change, mutate

Step = Callable[[Records, datetime], Any]

_store = partial(mutate, RecordPrograms, kind="recoveries", part="store")
_operations = partial(mutate, locking, kind="recoveries", part="operations")


@_store("claim")
def a_recovery_ignores_which_run_it_was(original: Change, programs: RecordPrograms, claim: Claim, **how: Any) -> Any:
    """A recovery claims the current record, and not the record that was read."""
    if not claim.recoveries:
        return (yield from original(programs, claim, **how))

    def grant(records: Records, now: datetime) -> Any:
        record = records.by_name.get(claim.request.name)
        if record is not None and record.is_released:
            record = records.by_name[record.name] = replace(record, is_released=False)
        step = next(original(programs, claim, before=record, force=True))
        return step(records, now)

    return (yield grant)


@_store("claim")
def a_held_run_is_recovered(original: Change, programs: RecordPrograms, claim: Claim, **how: Any) -> Any:
    """A recovery takes the lock from a living holder: a take-over."""
    if not claim.recoveries:
        return (yield from original(programs, claim, **how))

    def grant(records: Records, now: datetime) -> Any:
        record = records.by_name.get(claim.request.name)
        if record is not None:
            records.by_name[record.name] = replace(record, lock_until=min(record.lock_until, now), is_released=False)
        step = next(original(programs, claim, before=record, force=True))
        return step(records, now)

    return (yield grant)


@_store("set_end")
def a_release_leaves_no_mark(
    original: Change, programs: RecordPrograms, lease: Lease, lock_for: timedelta, *, releasing: bool
) -> Any:
    """A released run looks like the run of a dead holder when its minimum hold is over."""
    step = next(original(programs, lease, lock_for, releasing=releasing))

    def hold(records: Records, now: datetime) -> Any:
        is_done = step(records, now)
        record = records.by_name.get(lease.name)
        if is_done and releasing and record is not None:
            records.by_name[lease.name] = replace(record, is_released=False)
        return is_done

    return (yield hold)


@_operations("recover")
def a_recovery_takes_any_record_over(
    original: Change, programs: StorePrograms, request: LockRequest, expected: LockRecord
) -> Any:
    """A recovery is a take-over of any record."""
    return (yield from locking.take_over(programs, request))
