"""From rows of the lock table to lock records. A value without meaning is an error of its record, not of the table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from reprlib import repr as short_repr
from typing import Any

from shedlock_py.errors import ProviderError
from shedlock_py.providers.kit import refused
from shedlock_py.providers.sqlalchemy.clock import SqlClock
from shedlock_py.record import LockRecord

_TOKENS = range(-(2**63), 2**63 - 1)  # values of BIGINT whose successor is one, too


def to_record(row: Sequence[Any], clock: SqlClock, operation: str) -> LockRecord:
    """The record.

    :raises ProviderError: naming the lock and the column whose value means nothing.
    """
    name, locked_by, locked_at, lock_until, fencing_token, last_fire_time, read_at = row
    name = str(name)
    if not isinstance(locked_by, str):
        raise _odd_value(operation, name, "locked_by", locked_by, "no text")

    def time(column: str, value: object) -> datetime:
        return to_time(value, clock, operation, name, column)

    return LockRecord(
        name=name,
        locked_by=locked_by,
        locked_at=time("locked_at", locked_at),
        lock_until=time("lock_until", lock_until),
        fencing_token=check_token(fencing_token, operation, name),
        last_fire_time=None if last_fire_time is None else time("last_fire_time", last_fire_time),
        read_at=time("now", read_at),
    )


def to_time(value: object, clock: SqlClock, operation: str, name: str, column: str) -> datetime:
    """The time in ``column`` of the record of ``name``.

    :raises ProviderError: the value is no time.
    """
    moment = clock.from_store(value)
    if moment is None:
        raise _odd_value(operation, name, column, value, "no time")
    return moment


def check_token(token: object, operation: str, name: str) -> int | None:
    """``token``.

    :raises ProviderError: it is no fencing token of 64 bits.
    """
    if token is None or (isinstance(token, int) and token in _TOKENS):
        return token
    raise _odd_value(operation, name, "fencing_token", token, "no whole number of 64 bits that can grow")


def _odd_value(operation: str, name: str, column: str, value: object, problem: str) -> ProviderError:
    return refused(
        operation,
        name,
        f"{column} in its record is {short_repr(value)}, {problem}",
        hint="correct the record, or delete it while nobody runs the job",
    )
