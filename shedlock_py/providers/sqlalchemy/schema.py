"""The table of lock records: ShedLock's four columns, and two more that ShedLock ignores."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, MetaData, String, Table
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable


class LockName(String):
    """VARCHAR(64) compared byte by byte."""


@compiles(LockName, "mysql", "mariadb")
def _byte_by_byte(type_: LockName, compiler: Any, **options: Any) -> str:
    # MySQL's default folds case, and its older binary collations ignore trailing spaces.
    dialect = compiler.dialect
    if dialect.is_mariadb:
        collate = "COLLATE utf8mb4_nopad_bin"
    elif dialect.server_version_info is not None:
        collate = "COLLATE utf8mb4_0900_bin"
    else:
        # Not connected yet, so the server may be either: each executes its part and takes the other for a comment.
        # MariaDB leaves out what is for MySQL 5.7 to 9.
        collate = "/*!50700 COLLATE utf8mb4_0900_bin *//*M! COLLATE utf8mb4_nopad_bin */"
    return f"VARCHAR({type_.length}) CHARACTER SET utf8mb4 {collate}"


def lock_table(metadata: MetaData, name: str = "shedlock", schema: str | None = None) -> Table:
    """The lock table as a SQLAlchemy ``Table`` in ``metadata``: for Alembic's ``target_metadata``, or ``create_all``.

    All times are UTC without a zone, as ShedLock for Java writes them with ``usingDbTime()``.
    """
    # MySQL's DATETIME has whole seconds by default; TIMESTAMP follows the session's time zone.
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


def create_table_sql(table: Table, dialect: Dialect) -> str:
    """The statement that creates ``table`` if it is missing, as ``dialect`` writes it."""
    statement = str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
    # Without tabs: psql completes words at a tab when the statement is pasted into it.
    return "\n".join(re.sub(r"^\t", "    ", line).rstrip() for line in statement.strip().split("\n"))


def create_schema_sql(table: Table, dialect: Dialect) -> str:
    """The statement with which a provider creates ``table``, also if other processes do it at the same time."""
    ddl = create_table_sql(table, dialect)
    if dialect.name != "postgresql":
        return ddl
    # One at a time: PostgreSQL's CREATE TABLE IF NOT EXISTS fails when two do it at once.
    body = f"BEGIN PERFORM pg_advisory_xact_lock({_SCHEMA_LOCK}); {ddl}; END"
    tag = "$shedlock$"
    while tag in body:  # the name of the table would end the body
        tag = f"{tag[:-1]}_$"
    return f"DO {tag} {body} {tag}"


_SCHEMA_LOCK = 7461353825  # a number that other programs are unlikely to use

EXTRA_COLUMNS = ("fencing_token", "last_fire_time")
