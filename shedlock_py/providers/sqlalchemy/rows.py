"""From rows of the lock table to lock records. A value that means nothing is an error of its name, not of the table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from reprlib import repr as short_repr
from typing import Any

from shedlock_py.errors import ProviderError
from shedlock_py.providers.kit import describe
from shedlock_py.providers.sqlalchemy.clock import SqlClock
from shedlock_py.record import LockRecord

_TOKENS = range(-(2**63), 2**63 - 1)  # of BIGINT, and the next one is, too
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUARTER = timedelta(minutes=15)  # all time zones of today differ by whole ones
_FARTHEST = timedelta(hours=26)
_PRECISION = timedelta(seconds=1)  # of TIMESTAMP without digits after the point


def to_record(row: Sequence[Any], clock: SqlClock, operation: str) -> LockRecord:
    """The record.

    :raises ProviderError: naming the lock and the column whose value means nothing.
    """
    name, locked_by, locked_at, lock_until, fencing_token, last_fire_time, read_at = row
    name = str(name)
    if not isinstance(locked_by, str):
        raise _odd(operation, name, "locked_by", locked_by, "no text")
    return LockRecord(
        name=name,
        locked_by=locked_by,
        locked_at=to_time(locked_at, clock, operation, name, "locked_at"),
        lock_until=to_time(lock_until, clock, operation, name, "lock_until"),
        fencing_token=check_token(fencing_token, operation, name),
        last_fire_time=(
            None if last_fire_time is None else to_time(last_fire_time, clock, operation, name, "last_fire_time")
        ),
        read_at=to_time(read_at, clock, operation, name, "now"),
    )


def to_time(value: object, clock: SqlClock, operation: str, name: str, column: str) -> datetime:
    """The time that ``column`` of the record of ``name`` has.

    :raises ProviderError: it is none.
    """
    moment = clock.from_store(value)
    if moment is None:
        raise _odd(operation, name, column, value, "no time")
    return moment


def check_token(token: object, operation: str, name: str) -> int | None:
    """``token``.

    :raises ProviderError: it is no fencing token of 64 bits.
    """
    if token is None or (isinstance(token, int) and token in _TOKENS):
        return token
    raise _odd(operation, name, "fencing_token", token, "no whole number of 64 bits that can grow")


def _odd(operation: str, name: str, column: str, value: object, what: str) -> ProviderError:
    return ProviderError(
        describe(
            operation,
            name,
            f"{column} in its record is {short_repr(value)}, {what} — correct the record, or delete it while "
            f"nobody runs the job",
        ),
        operation=operation,
        lock_name=name,
    )


def other_zone(record: LockRecord) -> timedelta | None:
    """How far the zone of the session that wrote ``record`` is from this session's; None: not at all, or unknown.

    For tables whose times follow the session's time zone. One statement wrote the token, which has the moment of the
    acquisition, and ``locked_at``. ShedLock for Java writes no token, and an odd token tells nothing.
    """
    is_ours = record.holder != record.locked_by
    if not is_ours or record.fencing_token is None or not 0 <= record.fencing_token < 2**53:
        return None
    shift = record.locked_at - (_EPOCH + timedelta(microseconds=record.fencing_token))
    zones = round(shift / _QUARTER) * _QUARTER
    return zones if zones and abs(zones) <= _FARTHEST and abs(shift - zones) <= _PRECISION else None
