"""Fire times that are given back, so that they can be granted again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shedlock_py.model.record import ONCE, LockRecord

_BEFORE = timedelta(microseconds=1)
_EARLIEST = datetime.min.replace(tzinfo=UTC) + _BEFORE


def former_of(fire_time: datetime | None) -> datetime | None:
    """Return the ``former_fire_time`` of ``undo_claim`` that gives ``fire_time`` back.

    The store does not know the earlier fire time. One microsecond before ``fire_time`` is enough: the store can grant
    ``fire_time`` again, but no earlier fire time.
    """
    return None if fire_time is None else max(fire_time, _EARLIEST) - _BEFORE


def given_back(record: LockRecord) -> datetime | None:
    """Return the ``former_fire_time`` of ``undo_claim`` for an operator who frees ``record``.

    The fire time of a ``run_once`` key is given back, because its task has not succeeded.
    """
    is_key_in_use = record.last_fire_time == ONCE and record.is_released is False and not record.is_of_operator
    return former_of(ONCE) if is_key_in_use else None
