"""The table of lock records: ShedLock's four columns, and two of our own that it ignores."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, MetaData, String, Table
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles


class LockName(String):
    """VARCHAR(64) compared byte by byte."""


@compiles(LockName, "mysql", "mariadb")
def _byte_by_byte(type_: LockName, compiler: Any, **options: Any) -> str:
    # MySQL's default folds case, and its older binary collations ignore trailing spaces.
    collation = "utf8mb4_nopad_bin" if compiler.dialect.is_mariadb else "utf8mb4_0900_bin"
    return f"VARCHAR({type_.length}) CHARACTER SET utf8mb4 COLLATE {collation}"


def lock_table(metadata: MetaData, name: str = "shedlock", schema: str | None = None) -> Table:
    """The lock table as a SQLAlchemy ``Table`` in ``metadata``: for Alembic's ``target_metadata``, or ``create_all``.

    All times are UTC without a zone, as ShedLock for Java writes them with ``usingDbTime()``.
    """
    # MySQL's DATETIME has whole seconds unless told; TIMESTAMP would move with the session's time zone.
    time = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
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
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
    )


EXTRA_COLUMNS = ("fencing_token", "last_fire_time")
