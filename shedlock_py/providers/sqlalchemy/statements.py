"""The SQL text of each operation, compiled for one table of one database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sqlalchemy import Table, text
from sqlalchemy.engine import Dialect

from shedlock_py.providers.sqlalchemy.claims import ClaimKind, ClaimSql, mysql_insert, mysql_update, returning_claim
from shedlock_py.providers.sqlalchemy.clock import CLOCKS
from shedlock_py.providers.sqlalchemy.schema import COLUMN_TYPES, EXTRA_COLUMNS

ReplyKind = Literal["rows", "count", "id", "backend"]
"""The reply to a statement:

- rows: all rows
- count: the number of changed rows
- id: the number in MySQL's OK packet
- backend: all rows, and the process id that psycopg received at connect
"""


@dataclass(frozen=True)
class Statement:
    """SQL text in the parameter style of the driver."""

    sql: str
    reply: ReplyKind
    names: Sequence[str] | None = None
    """The order of the parameters, for drivers that take a sequence. None if the driver takes a mapping."""


_NO_VALUES: Mapping[str, object] = {}


class SqlCommand(NamedTuple):
    """One statement with its values, executed in its own transaction."""

    statement: Statement
    values: Mapping[str, object] = _NO_VALUES
    can_grant: bool = False
    """The statement may grant a lock."""
    is_urgent: bool = False
    """The statement extends, releases or undoes a grant. The pool reserves a connection for such statements."""
    is_history: bool = False
    """The statement only writes history."""
    check: FirstRead | None = None
    """A read before the statement, on the same connection."""


class FirstRead(NamedTuple):
    """A read, and a function that decides on its row. If it returns False, the command ends with an empty reply."""

    command: SqlCommand
    passes: Callable[[Sequence[Any]], bool]


class SqlReply(NamedTuple):
    """The rows, the number of found or changed rows, or the number of a :data:`ReplyKind`."""

    rows: Sequence[Sequence[Any]] = ()
    changed: int = 0
    id: int = 0


# Every statement that frees a lock makes its token odd. So the record shows that the lock was freed, even if it is
# freed twice. And a later extension does not match: neither during a minimum hold, nor on MySQL, where the clock of a
# statement that waited for the row shows the statement's start.
# A token near the greatest BIGINT is not changed. It is never granted.
RELEASED_TOKEN = (
    f"fencing_token = CASE WHEN (fencing_token & 1) = 0 AND fencing_token < {2**63 - 2} THEN fencing_token + 1 "
    f"ELSE fencing_token END"
)

# Replies with one row: the default schema of the session, and whether the table is in it.
_LOCATE = {
    # reset_val is the search path at the start of the session, from the URL, the role or the database. Without pg_temp
    # at its end, PostgreSQL searches temporary tables first.
    "postgresql": (
        "WITH session AS MATERIALIZED (SELECT set_config('search_path', "
        "CASE WHEN reset_val = '' THEN 'pg_temp' ELSE reset_val || ', pg_temp' END, true) AS path "
        "FROM pg_settings WHERE name = 'search_path') "
        "SELECT COALESCE(nspname, current_schema()), nspname IS NOT NULL FROM session "
        "LEFT JOIN pg_class ON pg_class.oid = to_regclass(CAST(:formatted AS text) || left(session.path, 0)) "
        "LEFT JOIN pg_namespace ON pg_namespace.oid = relnamespace"
    ),
    "mysql": "SELECT DATABASE(), DATABASE() IS NOT NULL",
    "mariadb": "SELECT DATABASE(), DATABASE() IS NOT NULL",
}


class Statements:
    """One :class:`Statement` for each operation on the lock table."""

    def __init__(self, dialect: Dialect, table: Table, extra_columns: bool) -> None:
        self.dialect = dialect
        self.table = table
        self.extra_columns = extra_columns
        self.clock = CLOCKS[dialect.name]
        self.table_name = dialect.identifier_preparer.format_table(table)
        now = self.clock.now
        this_claim = "name = :name AND locked_by = :locked_by"
        # A late copy of an acquire can be granted again after the lease has ended, with a later token. An extension
        # must not match that record. (Without a token column, the two records look the same.)
        this_lease = f"{this_claim} AND fencing_token = :fencing_token" if extra_columns else this_claim
        hold = "UPDATE {{table}} SET lock_until = {{until}}{frees} WHERE {which} AND lock_until > {now}"
        self.extend = self.compile(hold.format(frees="", which=this_lease, now=now), "count")
        # A release compares no token, so it also frees a lock that a late copy was granted.
        frees = f", {RELEASED_TOKEN}" if extra_columns else ""
        self.release = self.compile(hold.format(frees=frees, which=this_claim, now=now), "count")
        self.undo = self.compile(f"UPDATE {{table}} SET {self._undone()} WHERE {this_claim}", "count")
        # ShedLock for Java locks again with the same locked_by, so locked_by does not identify the record.
        same_time = self.clock.same_time
        is_as_read = f"{this_claim} AND {same_time.format('locked_at', self.clock.moment.format('locked_at'))}"
        if extra_columns:
            is_as_read += f" AND fencing_token {self.clock.is_same} {self.clock.number.format('fencing_token')}"
        self.free = self.compile(f"UPDATE {{table}} SET {self._undone()} WHERE {is_as_read}", "count")
        is_newest = f"name = :name AND {same_time.format('last_fire_time', self.clock.fire_time)}"
        # With explicit_defaults_for_timestamp=OFF, MySQL adds ON UPDATE CURRENT_TIMESTAMP to a table's first TIMESTAMP,
        # lock_until in a table of ShedLock for Java. Only an assignment keeps its value.
        forgotten = "last_fire_time = NULL, lock_until = lock_until"
        self.delete_fire_time = self.compile(f"UPDATE {{table}} SET {forgotten} WHERE {is_newest}", "count")
        # Do not delete the keys of run_once.
        once = self.clock.moment.format("once")
        no_key = f" AND (last_fire_time IS NULL OR last_fire_time <> {once})" if extra_columns else ""
        size = "CAST(:size AS integer)" if dialect.name == "postgresql" else ":size"
        # In some modes of MariaDB, an empty text is NULL, as in Oracle.
        has_prefix = f"{size} = 0 OR substr(name, 1, {size}) = :prefix"
        self.prune = self.compile(
            f"DELETE FROM {{table}} WHERE lock_until <= {{until}}{no_key} AND ({has_prefix})", "count"
        )
        select = self._select()
        self.record = self.compile(f"{select} WHERE name = :name", "rows")
        self.records = self.compile(f"{select} WHERE {has_prefix}", "rows")
        self.probe = self.compile(f"{select} WHERE 1 = 0", "rows")
        is_held = f"{this_lease} AND lock_until > {now}"
        if dialect.name == "sqlite":  # it has no locks of rows: a write locks the file, also where BEGIN is implicit
            self.verify_sql = (
                f"UPDATE {self.table_name} SET lock_until = lock_until WHERE {is_held} RETURNING 1 AS is_held"
            )
        else:
            share = "FOR SHARE" if dialect.name == "postgresql" else "LOCK IN SHARE MODE"
            self.verify_sql = f"SELECT 1 AS is_held FROM {self.table_name} WHERE {is_held} {share}"
        # Only for some databases.
        self.read_before_claim = self.compile(self._read_before_claim(), "rows") if dialect.name == "sqlite" else None
        locate, column_types = _LOCATE.get(dialect.name), COLUMN_TYPES.get(dialect.name)
        self.locate = self.compile(locate, "rows") if locate else None
        self.column_types = self.compile(column_types, "rows") if column_types else None
        self.claims = {
            (kind, has_fire_time): self._claim(kind, has_fire_time)
            for kind in ClaimKind
            for has_fire_time in ((False, True) if extra_columns else (False,))
        }

    def _claim(self, kind: ClaimKind, has_fire_time: bool) -> Statement:
        claim = ClaimSql(self.clock, kind, self.extra_columns, has_fire_time)
        if self.dialect.name in ("postgresql", "sqlite"):
            # For each ON CONFLICT, PostgreSQL locks the row and writes to its log, granted or not. So the statement
            # must find out first whether it is a skip. On SQLite, read_before_claim does this.
            return self.compile(returning_claim(claim, checks_first=self.dialect.name == "postgresql"), "rows")
        is_update = kind in (ClaimKind.TAKE_OVER, ClaimKind.RECOVER)
        return self.compile(mysql_update(claim) if is_update else mysql_insert(claim), "id")

    def _freed(self) -> str:
        changes = f"lock_until = {self.clock.least}(lock_until, {self.clock.now})"
        return f"{changes}, {RELEASED_TOKEN}" if self.extra_columns else changes

    def _undone(self) -> str:
        if not self.extra_columns:
            return self._freed()
        former = self.clock.moment.format("former_fire_time")
        fire_time = f"CASE WHEN last_fire_time > {former} THEN {former} ELSE last_fire_time END"
        return f"{self._freed()}, last_fire_time = {fire_time}"

    def _select(self) -> str:
        shown = self.clock.shown
        extra = f"fencing_token, {shown.format('last_fire_time')}" if self.extra_columns else "NULL, NULL"
        times = f"{shown.format('locked_at')}, {shown.format('lock_until')}"
        return f"SELECT name, locked_by, {times}, {extra}, {self.clock.now} FROM {{table}}"

    def _read_before_claim(self) -> str:
        """It replies with one row, even if the record does not exist."""
        ran = f" OR last_fire_time >= {self.clock.fire_time}" if self.extra_columns else ""
        extra = ", ".join(EXTRA_COLUMNS if self.extra_columns else ("NULL", "NULL"))
        return (  # a claim that is repeated finds its own grant, which is not another holder's
            f"SELECT (lock_until > {self.clock.now}{ran}) AND locked_by IS NOT :locked_by, {self.clock.is_late}, name, "
            f"lock_until, {extra} FROM (SELECT 1) LEFT JOIN {{table}} ON name = :name"
        )

    def compile(self, template: str, reply: ReplyKind, **names: str) -> Statement:
        """Compile ``template``, with more values for its placeholders in ``names``."""
        sql = template.format(table=self.table_name, until=self.clock.until, **names)
        compiled = text(sql).compile(dialect=self.dialect)
        return Statement(str(compiled), reply, getattr(compiled, "positiontup", None))
