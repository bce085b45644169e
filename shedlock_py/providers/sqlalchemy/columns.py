"""Columns whose times follow the time zone of the session: two sessions can read them as different moments.

PostgreSQL's ``timestamptz`` is refused. MySQL's ``TIMESTAMP``, which ShedLock for Java uses, causes a warning: it works
while all sessions have the same ``time_zone``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from shedlock_py.errors import ProviderError
from shedlock_py.providers.kit import refused
from shedlock_py.record import LockRecord

TIME_COLUMNS = ("lock_until", "locked_at", "last_fire_time")
_MYSQL = (
    "SELECT column_name, data_type = 'timestamp' FROM information_schema.columns "
    f"WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table AND column_name IN {TIME_COLUMNS}"
)
COLUMN_TYPES = {
    "postgresql": (
        "SELECT attname, atttypid = CAST('timestamptz' AS regtype) FROM pg_attribute "
        f"WHERE attrelid = to_regclass(CAST(:formatted AS text)) AND attname IN {TIME_COLUMNS}"
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
"""A row for each time column: its name, and whether it follows the zone of the session. No rows: there is no table."""

# An ALTER in a session of another zone would shift every time: a held lock would be free, or a free one held.
_ALTER = "run this in a session with the time zone of those that wrote the rows, in which locked_at reads as UTC"


def refusal(operation: str, lock_name: str | None, table: str, columns: Sequence[str]) -> ProviderError:
    """The error for a table of PostgreSQL."""
    changes = ", ".join(f"ALTER COLUMN {column} TYPE timestamp" for column in columns)
    return refused(
        operation,
        lock_name,
        f"the times of table {table} are timestamptz, which sessions of different time zones would not understand "
        f"alike: two would get the lock",
        hint=f"{_ALTER}: ALTER TABLE {table} {changes}",
    )


def warning(table: str, columns: Sequence[str]) -> str:
    """The warning about a table of MySQL or MariaDB."""
    return (
        f"the times of table {table} are TIMESTAMP: sessions with different time_zone settings would not understand "
        f"them alike, and two would get the lock; nor can it store the hour that a time zone leaves out in spring — "
        f"{_mysql_hint(table, columns)}"
    )


def other_zone_error(
    operation: str, lock_name: str, shift: timedelta, table: str, columns: Sequence[str]
) -> ProviderError:
    """The error for a record of MySQL or MariaDB that another time zone wrote."""
    return refused(
        operation,
        lock_name,
        f"its record was written in a time zone {-shift / timedelta(hours=1):+g} h from this session's, and the times "
        f"of table {table} are TIMESTAMP: whether it is held is not known here. Connect with the time_zone of the "
        f"applications, or change the columns",
        hint=_mysql_hint(table, columns),
    )


def _mysql_hint(table: str, columns: Sequence[str]) -> str:
    changes = ", ".join(
        f"MODIFY {column} DATETIME(6) {'NULL' if column == 'last_fire_time' else 'NOT NULL'}" for column in columns
    )
    return f"{_ALTER}: ALTER TABLE {table} {changes}"


def zone_shift(record: LockRecord) -> timedelta | None:
    """How far the zone of the session that wrote ``record`` is from this session's; None: not at all, or unknown.

    One statement wrote the token, which has the moment of the acquisition, and ``locked_at``, which follows the zone.
    ShedLock for Java writes no token, and a token with another origin shows no moment.
    """
    is_from_this_library = record.holder != record.locked_by
    if not is_from_this_library or record.fencing_token is None or not 0 <= record.fencing_token < 2**53:
        return None
    shift = record.locked_at - (_EPOCH + timedelta(microseconds=record.fencing_token))
    zones = round(shift / _ZONE_STEP) * _ZONE_STEP
    return zones if zones and abs(zones) <= _FARTHEST and abs(shift - zones) <= _PRECISION else None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZONE_STEP = timedelta(minutes=15)  # all time zones of today differ by multiples of it
_FARTHEST = timedelta(hours=26)
_PRECISION = timedelta(seconds=1)  # of TIMESTAMP without fractions
