"""Columns whose times follow the time zone of the session: two moments for two sessions, and both would get the lock.

PostgreSQL's ``timestamptz`` is refused. MySQL's ``TIMESTAMP``, which ShedLock for Java uses, is warned about: it works
while all sessions have the same ``time_zone``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from shedlock_py.errors import ProviderError
from shedlock_py.providers.kit import describe

TIMES = ("lock_until", "locked_at", "last_fire_time")
_NAMES = str(TIMES)
_MYSQL = (
    "SELECT column_name, data_type = 'timestamp' FROM information_schema.columns "
    f"WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table AND column_name IN {_NAMES}"
)
FOLLOWS_ZONE = {
    "postgresql": (
        "SELECT attname, atttypid = CAST('timestamptz' AS regtype) FROM pg_attribute "
        f"WHERE attrelid = to_regclass(CAST(:formatted AS text)) AND attname IN {_NAMES}"
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
"""A row for each column with times: its name, and whether it does. No rows: there is no table."""

# Converted in the session of another zone, every time is shifted: a lock that is held is free, or the other way round.
_WHERE = "run this in a session with the time zone of those that wrote the rows, in which locked_at reads as UTC"


def refusal(operation: str, lock_name: str | None, table: str, columns: Sequence[str]) -> ProviderError:
    """The error for a table of PostgreSQL."""
    changes = ", ".join(f"ALTER COLUMN {column} TYPE timestamp" for column in columns)
    return ProviderError(
        describe(
            operation,
            lock_name,
            f"the times of table {table} are timestamptz, which sessions of different time zones would not understand "
            f"alike: two would get the lock — {_WHERE}: ALTER TABLE {table} {changes}",
        ),
        operation=operation,
        lock_name=lock_name,
    )


def warning(table: str, columns: Sequence[str]) -> str:
    """The warning about a table of MySQL or MariaDB."""
    return (
        f"the times of table {table} are TIMESTAMP: sessions with different time_zone settings would not understand "
        f"them alike, and two would get the lock; nor can it store the hour that a time zone leaves out in spring — "
        f"{_cure(table, columns)}"
    )


def written_elsewhere(
    operation: str, lock_name: str, shift: timedelta, table: str, columns: Sequence[str]
) -> ProviderError:
    """The error for a record of such a table whose times were written in another time zone than they are read in."""
    hours = shift / timedelta(hours=1)
    return ProviderError(
        describe(
            operation,
            lock_name,
            f"its record was written in a time zone {-hours:+g} h from this session's, and the times of table {table} "
            f"are TIMESTAMP: whether it is held is not known here. Connect with the time_zone of the applications, or "
            f"change the columns — {_cure(table, columns)}",
        ),
        operation=operation,
        lock_name=lock_name,
    )


def _cure(table: str, columns: Sequence[str]) -> str:
    changes = ", ".join(
        f"MODIFY {column} DATETIME(6) {'NULL' if column == 'last_fire_time' else 'NOT NULL'}" for column in columns
    )
    return f"{_WHERE}: ALTER TABLE {table} {changes}"
