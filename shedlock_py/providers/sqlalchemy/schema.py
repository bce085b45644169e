"""The table of lock records: ShedLock's four columns, and two columns that ShedLock ignores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, MetaData, String, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from shedlock_py.errors import ProviderError
from shedlock_py.model.record import LockRecord
from shedlock_py.model.run import LONGEST_ERROR
from shedlock_py.providers.kit import Check, refused

EXTRA_COLUMNS = ("fencing_token", "last_fire_time")
RUNS = "_runs"
"""The table of runs has the name of the lock table and this suffix."""
_SCHEMA_LOCK = 7461353825  # a number that other programs probably do not use


class LockName(String):
    """VARCHAR(64) compared byte by byte."""


@compiles(LockName, "mysql", "mariadb")
def _byte_by_byte(type_: LockName, compiler: Any, **options: Any) -> str:
    # MySQL's default ignores case, and its older binary collations ignore trailing spaces.
    dialect = compiler.dialect
    if dialect.is_mariadb:
        collate = "COLLATE utf8mb4_nopad_bin"
    elif dialect.server_version_info is not None:
        collate = "COLLATE utf8mb4_0900_bin"
    else:
        # Not connected yet, so the server may be MySQL or MariaDB. Each executes its part and reads the other part as a
        # comment. MariaDB ignores comments for MySQL 5.7 to 9.
        collate = "/*!50700 COLLATE utf8mb4_0900_bin *//*M! COLLATE utf8mb4_nopad_bin */"
    return f"VARCHAR({type_.length}) CHARACTER SET utf8mb4 {collate}"


def lock_table(metadata: MetaData, name: str = "shedlock", schema: str | None = None) -> Table:
    """Return the lock table as a ``Table`` in ``metadata``: for Alembic's ``target_metadata``, or ``create_all``.

    All times are UTC without a zone, as ShedLock for Java writes them with ``usingDbTime()``.
    """
    from sqlalchemy.dialects import mysql  # imported late: its drivers take a tenth of the start of `shedlock run`

    # MySQL's DATETIME has whole seconds by default; TIMESTAMP follows the session's time zone.
    time = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    options = {"engine": "InnoDB", "charset": "utf8mb4"}
    of_mysql = {f"{dialect}_{key}": value for dialect in ("mysql", "mariadb") for key, value in options.items()}
    return _lock_table(metadata, name, schema, time, of_mysql)


def lock_table_of(dialect: Dialect, name: str, schema: str | None) -> Table:
    """Return the lock table for statements of one dialect."""
    if dialect.name in ("mysql", "mariadb"):
        return lock_table(MetaData(), name, schema)
    return _lock_table(MetaData(), name, schema, DateTime(), {})


def _lock_table(
    metadata: MetaData, name: str, schema: str | None, time: TypeEngine[datetime], options: dict[str, Any]
) -> Table:
    return Table(
        name,
        metadata,
        Column("name", LockName(64), primary_key=True),
        Column("lock_until", time, nullable=False),
        Column("locked_at", time, nullable=False),
        Column("locked_by", String(255), nullable=False),
        Column("fencing_token", BigInteger, nullable=True),  # nullable: ShedLock for Java inserts without it
        Column("last_fire_time", time, nullable=True),
        schema=schema,
        **options,
    )


def runs_table(metadata: MetaData, name: str = "shedlock", schema: str | None = None) -> Table:
    """Return the table of run history, for a provider with ``history``. Use it like :func:`lock_table`.

    :param name: name of the lock table. The table of runs is called ``<name>_runs``.
    """
    return runs_table_of(lock_table(MetaData(), name, schema), metadata)


def runs_table_of(locks: Table, metadata: MetaData) -> Table:
    """Return the table of run history beside the lock table ``locks``, for the same databases."""
    time = locks.c.locked_at.type
    return Table(
        f"{locks.name}{RUNS}",
        metadata,
        Column("name", LockName(64), primary_key=True),
        Column("fencing_token", BigInteger, primary_key=True, autoincrement=False),
        Column("locked_by", String(255), nullable=False),
        Column("started", time, nullable=False),
        Column("ended", time, nullable=True),
        Column("outcome", String(16), nullable=True),
        Column("error", String(LONGEST_ERROR), nullable=True),
        Column("fire_time", time, nullable=True),
        Column("next_fire_time", time, nullable=True),
        schema=locks.schema,
        **locks.dialect_kwargs,
    )


def create_table_sql(table: Table, dialect: Dialect) -> str:
    """Return the statement that creates ``table`` if it is missing."""
    statement = str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
    # Without tabs: in a pasted statement, psql reads a tab as a request to complete the word.
    return "\n".join(re.sub(r"^\t", "    ", line).rstrip() for line in statement.strip().split("\n"))


def create_schema_sql(table: Table, dialect: Dialect) -> str:
    """Return the statement with which a provider creates ``table``. Several processes may execute it at once."""
    ddl = create_table_sql(table, dialect)
    if dialect.name != "postgresql":
        return ddl
    # One process at a time: concurrent CREATE TABLE IF NOT EXISTS can fail in PostgreSQL.
    body = f"BEGIN PERFORM pg_advisory_xact_lock({_SCHEMA_LOCK}); {ddl}; END"
    tag = "$shedlock$"
    while tag in body:  # otherwise the name of the table would end the body
        tag = f"{tag[:-1]}_$"
    return f"DO {tag} {body} {tag}"


# Some columns follow the session's time zone: two sessions can read different times. PostgreSQL's timestamptz is
# refused. MySQL's TIMESTAMP, which ShedLock for Java uses, causes a warning: it works while all sessions have the same
# time_zone.

# Columns that round are refused: a lease would end before its holder stops, a force release would not find the
# `locked_at` that it has read, and a fire time that is rounded down would be granted twice. ShedLock for Java has
# milliseconds, and fire times have microseconds.

_DIGITS = {"lock_until": 3, "locked_at": 3, "last_fire_time": 6}
TIME_COLUMNS = tuple(_DIGITS)
NAME_COLUMN = "name"
_MYSQL = (
    "SELECT column_name, data_type = 'timestamp', datetime_precision, collation_name FROM information_schema.columns "
    "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table "
    f"AND column_name IN {(*TIME_COLUMNS, NAME_COLUMN)}"
)
COLUMN_TYPES = {
    "postgresql": (
        "SELECT attname, atttypid = CAST('timestamptz' AS regtype), NULLIF(atttypmod, -1), NULL FROM pg_attribute "
        f"WHERE attrelid = to_regclass(CAST(:formatted AS text)) AND attname IN {TIME_COLUMNS}"
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
"""Queries that reply with a row for each time column.

The row has the name of the column, whether it follows the session's zone, and how many digits of a second it stores
(NULL: all). On MySQL and MariaDB, another row is for the lock name, and its last value is the collation. If the table
does not exist, the reply has no rows.
"""

# An ALTER in a session of another zone would shift every time: held locks would become free, or free locks held.
_ALTER = (
    "run this in a session whose time zone is that of the applications that wrote the rows (locked_at must read as UTC)"
)


def odd_columns(rows: Sequence[Sequence[Any]]) -> tuple[list[str], list[str]]:
    """Return the columns that follow the session's zone, and the columns that round, in the order of ``TIME_COLUMNS``.

    :param rows: the reply to the statement of ``COLUMN_TYPES``.
    """
    types = {name.lower(): (in_zone, digits) for name, in_zone, digits, _ in rows}  # MySQL's column names ignore case
    there = [column for column in TIME_COLUMNS if column in types]
    in_zone = [column for column in there if types[column][0]]
    return in_zone, [column for column in there if types[column][1] is not None and types[column][1] < _DIGITS[column]]


def folding_collation(rows: Sequence[Sequence[Any]]) -> str | None:
    """Return the collation of the lock name if it makes different names equal.

    MySQL's default collation does, so the table of ShedLock for Java has such a collation.
    """
    collation = next((collation for name, _, _, collation in rows if name.lower() == NAME_COLUMN), None)
    is_exact = collation is None or collation == "binary" or collation.endswith(("_bin", "_cs"))
    return None if is_exact else str(collation)


def folding_warning(table: str, collation: str, dialect: Dialect) -> str:
    return f"{_folding(table, collation)}: {folding_cure(table, dialect)}"


def _folding(table: str, collation: str) -> str:
    return (
        f"table {table} compares lock names by the collation {collation}: names that differ only in case or accents, "
        f"such as Job and job, are one lock"
    )


def folding_cure(table: str, dialect: Dialect) -> str:
    return f"run ALTER TABLE {table} MODIFY name {LockName(64).compile(dialect=dialect)} NOT NULL"


def folding_check(table: str, collation: str | None, dialect: Dialect) -> Check:
    """Return the line of ``shedlock doctor``."""
    if collation is None:
        return Check("lock names", "ok", "case and accents count")
    return Check("lock names", "warning", _folding(table, collation), folding_cure(table, dialect))


def rounding_refusal(
    operation: str, lock_name: str | None, table: str, columns: Sequence[str], in_zone: Sequence[str], dialect: Dialect
) -> ProviderError:
    """Return the error for times that store too few digits of a second.

    :param in_zone: the columns that follow the session's zone.
    """
    remedy = (_postgresql_remedy if dialect.name == "postgresql" else _mysql_remedy)(table, columns)
    return refused(
        operation,
        lock_name,
        f"the times {', '.join(columns)} of table {table} are rounded, as their columns store too few digits of a "
        f"second: two holders could get the lock, or one fire time could be granted twice",
        hint=f"{_ALTER}: {remedy}" if set(columns) & set(in_zone) else f"run {remedy}",
    )


def refusal(operation: str, lock_name: str | None, table: str, columns: Sequence[str]) -> ProviderError:
    """Return the error for a table of PostgreSQL."""
    return refused(
        operation,
        lock_name,
        f"the times of table {table} are timestamptz: sessions in different time zones read them differently, so two "
        f"holders could get the lock",
        hint=f"{_ALTER}: {_postgresql_remedy(table, columns)}",
    )


def _postgresql_remedy(table: str, columns: Sequence[str]) -> str:
    return f"ALTER TABLE {table} {', '.join(f'ALTER COLUMN {column} TYPE timestamp' for column in columns)}"


def warning(table: str, columns: Sequence[str]) -> str:
    """Return the warning about a table of MySQL or MariaDB."""
    return (
        f"the times of table {table} are TIMESTAMP: sessions with different time_zone settings read them differently, "
        f"so two holders could get the lock; and TIMESTAMP cannot store the hour skipped when daylight saving time "
        f"begins — {_ALTER}: {_mysql_remedy(table, columns)}"
    )


def other_zone_error(
    operation: str, lock_name: str, shift: timedelta, table: str, columns: Sequence[str]
) -> ProviderError:
    """Return the error for a record that another time zone wrote, on MySQL or MariaDB."""
    return refused(
        operation,
        lock_name,
        f"its record was written in a time zone {-shift / timedelta(hours=1):+g} h from this session's, and the times "
        f"of table {table} are TIMESTAMP, so this session cannot tell whether the lock is held. Connect with "
        f"the time_zone of the applications, or change the columns",
        hint=f"{_ALTER}: {_mysql_remedy(table, columns)}",
    )


def _mysql_remedy(table: str, columns: Sequence[str]) -> str:
    changes = ", ".join(
        f"MODIFY {column} DATETIME(6) {'NULL' if column == 'last_fire_time' else 'NOT NULL'}" for column in columns
    )
    return f"ALTER TABLE {table} {changes}"


def zone_shift(record: LockRecord) -> timedelta | None:
    """Return the offset between the zones of the session that wrote ``record`` and this session. None if 0 or unknown.

    The same statement wrote ``locked_at``, which follows the zone, and the token, which contains the time of the
    acquisition. ShedLock for Java writes no token. A token of another origin contains no time.
    """
    is_from_this_library = record.holder != record.locked_by
    if not is_from_this_library or record.fencing_token is None or not 0 <= record.fencing_token < 2**53:
        return None
    shift = record.locked_at - (_EPOCH + timedelta(microseconds=record.fencing_token))
    zones = round(shift / _ZONE_STEP) * _ZONE_STEP
    return zones if zones and abs(zones) <= _FARTHEST and abs(shift - zones) <= _TOLERANCE else None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZONE_STEP = timedelta(minutes=15)  # today's time zones differ by multiples of it
_FARTHEST = timedelta(hours=26)
_TOLERANCE = timedelta(seconds=1)  # between the token and locked_at of one statement
