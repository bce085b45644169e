"""Programs for a store that can call a function while nothing else uses its records: memory, or a file with a lock.

The client carries out a command by calling it with the records and the time of the store's clock. No other process or
thread may read or change the records during the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import LockRecord, names_to_prune
from shedlock_py.model.run import Run
from shedlock_py.providers.kit.failures import fire_time_too_late
from shedlock_py.providers.kit.fire_times import given_back
from shedlock_py.providers.kit.store_programs import StorePrograms
from shedlock_py.runtime.program import Program

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

_TIMES = ("locked_at", "lock_until", "last_fire_time")


@dataclass
class Records:
    """The lock records of a store."""

    by_name: dict[str, LockRecord] = field(default_factory=dict)
    last_token: int = 0
    """The newest fencing token of all names. It outlives the records: tokens also grow after a record was deleted."""
    runs: dict[str, list[Run]] = field(default_factory=dict)
    """The last runs of each name, the newest run last, if a provider keeps history."""


RecordCommand = Callable[[Records, datetime], Any]
"""A command: a function of the records and the time of the store's clock. It may change the records."""
_Step = Callable[[LockRecord, datetime], LockRecord | None]
"""Returns the changed record, or None if the record stays as it is."""


class RecordPrograms(StorePrograms):
    """Programs with one function per operation. The client calls it with the records."""

    keeps_history: ClassVar[bool] = True

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[RecordCommand, Any, int | None]:
        request = claim.request

        def grant(records: Records, now: datetime) -> int | None:
            record, fire_time = records.by_name.get(request.name), request.fire_time
            newest = record.last_fire_time if record else None
            if fire_time and fire_time > now + self.fire_time_tolerance:
                raise fire_time_too_late("take_over" if force else "acquire", request, self.fire_time_tolerance)
            if record and record.locked_by == claim.locked_by:
                return record.fencing_token  # the command was sent twice
            if force:
                if (record and record.acquisition) != (before and before.acquisition):
                    return None  # the record has changed since it was read
                if claim.recoveries and record and (record.lock_until > now or record.is_released is not False):
                    return None
            elif record and (record.lock_until > now or (fire_time and newest and fire_time <= newest)):
                return None
            if newest and (fire_time is None or fire_time < newest):
                fire_time = newest
            token = records.last_token = max(records.last_token + 1, (now - EPOCH) // MICROSECOND)
            until = now + request.lock_at_most_for
            records.by_name[request.name] = LockRecord(
                request.name, claim.locked_by, now, until, token, fire_time, read_at=now, is_released=False
            )
            if self.history:
                run = Run(request.name, token, claim.locked_by, now, None, None, None, request.fire_time)
                run = replace(run, next_fire_time=request.next_fire_time)
                records.runs[request.name] = [*records.runs.get(request.name, []), run][-self.history :]
            return token

        token: int | None = yield grant
        return token

    def set_end(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[RecordCommand, Any, bool]:
        def set_end(record: LockRecord, now: datetime) -> LockRecord | None:
            if (record.locked_by, record.fencing_token) != (lease.locked_by, lease.fencing_token):
                return None
            if record.lock_until <= now:
                return None
            until = now + lock_for
            return _freed(record, until) if releasing else replace(record, lock_until=until)

        def end_run(records: Records, now: datetime, is_held: bool) -> None:
            runs = records.runs.get(lease.name, [])
            for number, run in enumerate(runs):
                if run.locked_by == lease.locked_by and run.ended is None:
                    outcome = lease.outcome if is_held else "lost"
                    runs[number] = replace(run, ended=now, outcome=outcome, error=lease.error)

        return _changed(lease.name, set_end, end_run if releasing and self.history else None)

    def undo_claim(
        self, name: str, locked_by: str, former_fire_time: datetime | None
    ) -> Program[RecordCommand, Any, bool]:
        def forget_run(records: Records, now: datetime, is_undone: bool) -> None:
            if is_undone and name in records.runs:
                records.runs[name] = [run for run in records.runs[name] if run.locked_by != locked_by]

        return _changed(name, _undone(locked_by, former_fire_time), forget_run)

    def free(self, record: LockRecord) -> Program[RecordCommand, Any, bool]:
        undo = _undone(record.locked_by, given_back(record))

        def freed(found: LockRecord, now: datetime) -> LockRecord | None:
            return undo(found, now) if found.acquisition == record.acquisition else None

        return _changed(record.name, freed)

    def delete_fire_time(self, name: str, fire_time: datetime) -> Program[RecordCommand, Any, bool]:
        def deleted(record: LockRecord, now: datetime) -> LockRecord | None:
            return replace(record, last_fire_time=None) if record.last_fire_time == fire_time else None

        return _changed(name, deleted)

    def record(self, name: str) -> Program[RecordCommand, Any, LockRecord | None]:
        def read(records: Records, now: datetime) -> LockRecord | None:
            record = records.by_name.get(name)
            return record and replace(record, read_at=now)

        record: LockRecord | None = yield read
        return record

    def records(self, prefix: str) -> Program[RecordCommand, Any, list[LockRecord]]:
        found: list[LockRecord] = yield lambda records, now: [
            replace(record, read_at=now) for record in records.by_name.values()
        ]
        return found

    def runs(self, name: str, limit: int) -> Program[RecordCommand, Any, list[Run]]:
        runs: list[Run] = yield lambda records, _: list(records.runs.get(name, []))
        return runs

    def prune(self, unused_for: timedelta, prefix: str = "") -> Program[RecordCommand, Any, int]:
        def delete(records: Records, now: datetime) -> int:
            read = [replace(record, read_at=now) for record in records.by_name.values()]
            old = [name for name in names_to_prune(read, unused_for) if name.startswith(prefix)]
            for name in old:
                del records.by_name[name]
                records.runs.pop(name, None)
            return len(old)

        deleted: int = yield delete
        return deleted


def _undone(locked_by: str, former_fire_time: datetime | None) -> _Step:
    def undo(record: LockRecord, now: datetime) -> LockRecord | None:
        if record.locked_by != locked_by:
            return None
        newest = record.last_fire_time
        if former_fire_time and newest:
            newest = min(newest, former_fire_time)
        return replace(_freed(record, min(record.lock_until, now)), last_fire_time=newest)

    return undo


def _freed(record: LockRecord, lock_until: datetime) -> LockRecord:
    """Return the record after a release. Its token changes, so a later extension does not match it."""
    return replace(record, lock_until=lock_until, fencing_token=(record.fencing_token or 0) + 1, is_released=True)


def _changed(
    name: str, step: _Step, then: Callable[[Records, datetime, bool], None] | None = None
) -> Program[RecordCommand, Any, bool]:
    def change(records: Records, now: datetime) -> bool:
        record = records.by_name.get(name)
        changed = step(record, now) if record else None
        if changed is not None:
            records.by_name[name] = changed
            records.last_token = max(records.last_token, changed.fencing_token or 0)
        if then is not None:
            then(records, now, changed is not None)
        return changed is not None

    is_changed: bool = yield change
    return is_changed


def record_to_json(record: LockRecord) -> dict[str, Any]:
    """Return ``record`` as a JSON object, without its name and ``read_at``."""
    return {
        "locked_by": record.locked_by,
        "locked_at": record.locked_at.isoformat(),
        "lock_until": record.lock_until.isoformat(),
        "fencing_token": record.fencing_token,
        "last_fire_time": record.last_fire_time.isoformat() if record.last_fire_time else None,
        "is_released": record.is_released,
    }


def record_from_json(name: str, fields: dict[str, Any], read_at: datetime) -> LockRecord:
    """Return the record from the JSON object of :func:`record_to_json`.

    :raises ValueError: a field is missing, or has an impossible value.
    """
    try:
        times = {key: _moment(fields[key]) if fields[key] else None for key in _TIMES}
        record = LockRecord(**{**fields, **times}, name=name, read_at=read_at)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"not a lock record: {fields!r:.200}") from error
    has_times = record.locked_at and record.lock_until
    is_odd = type(record.fencing_token) is not int or type(record.locked_by) is not str
    if not has_times or is_odd or record.is_released not in (None, False, True):
        raise ValueError(f"not a lock record: {fields!r:.200}")
    return record


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment.astimezone(UTC)
