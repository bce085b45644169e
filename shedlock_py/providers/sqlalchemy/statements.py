"""The SQL text of each operation, compiled once for one table of one database."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

from sqlalchemy import Table, text
from sqlalchemy.engine import Dialect

from shedlock_py.providers.sqlalchemy.claims import Kind, MySqlSql, ReturningSql
from shedlock_py.providers.sqlalchemy.clock import CLOCKS
from shedlock_py.providers.sqlalchemy.columns import FOLLOWS_ZONE
from shedlock_py.providers.sqlalchemy.schema import EXTRA_COLUMNS


@dataclass(frozen=True)
class Statement:
    """SQL text in the driver's own parameter style, compiled once."""

    sql: str
    replies_with: Literal["rows", "count", "id"]
    text: str | bytes
    """As the driver wants it. Psycopg would encode and hash a str each time: a tenth of a skip."""
    bind: Callable[[Mapping[str, object]], Any]
    """Its parameters, by their names, as the driver wants them."""


# The schema of the table by the session's default, and whether the table is there.
_LOCATE = {
    # reset_val is the search path that the session began with: of the URL, the role or the database. A temporary table
    # would be found first, unless pg_temp is named.
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


def in_order(names: Sequence[str]) -> Callable[[Mapping[str, object]], Any]:
    """For drivers that take a sequence."""
    match names:
        case []:
            return lambda values: ()
        case [name]:
            return lambda values: (values[name],)
        case _:
            return itemgetter(*names)


def by_name(values: Mapping[str, object]) -> Mapping[str, object]:
    return values


_NAMED = re.compile(r"%\((\w+)\)s")
"""A parameter in the style "pyformat"."""


class Statements:
    """One :class:`Statement` for each thing that is done to the lock table."""

    def __init__(self, dialect: Dialect, table: Table, extra_columns: bool) -> None:
        self._dialect = dialect
        self._extra_columns = extra_columns
        self.clock = CLOCKS[dialect.name]
        self.table_name = dialect.identifier_preparer.format_table(table)
        now, moment = self.clock.now, self.clock.moment
        ours = "name = :name AND locked_by = :locked_by"
        # A claim that was sent twice may be granted a second time, for nobody, long after its lease has ended and
        # others had the lock: with a later token. (A table without tokens cannot tell.)
        this_lease = f"{ours} AND fencing_token = :fencing_token" if extra_columns else ours
        self._claims = {
            (kind, has_fire_time): self._claim(kind, has_fire_time)
            for kind in Kind
            for has_fire_time in ((False, True) if extra_columns else (False,))
        }
        self.look = self._look() if dialect.name == "sqlite" else None
        hold = "UPDATE {{table}} SET lock_until = {{until}} WHERE {which} AND lock_until > {now}"
        self.extend = self._compile(hold.format(which=this_lease, now=now), "count")
        # By the claim alone: what was granted for nobody is better free.
        self.release = self._compile(hold.format(which=ours, now=now), "count")
        undone = f"lock_until = {self.clock.least}(lock_until, {now})"
        if extra_columns:
            former = moment.format("former_fire_time")
            undone += f", last_fire_time = CASE WHEN last_fire_time > {former} THEN {former} ELSE last_fire_time END"
        self.undo = self._compile(f"UPDATE {{table}} SET {undone} WHERE {ours}", "count")
        self.forget_fire_time = self._compile(
            "UPDATE {table} SET last_fire_time = NULL WHERE name = :name AND last_fire_time IS NOT NULL", "count"
        )
        self.force_release = self._compile(
            f"UPDATE {{table}} SET lock_until = {now} WHERE name = :name AND lock_until > {now}", "count"
        )
        self.prune = self._compile("DELETE FROM {table} WHERE lock_until <= {until}", "count")
        times = [self.clock.shown.format(column) for column in ("locked_at", "lock_until")]
        extra = ["fencing_token", self.clock.shown.format("last_fire_time")] if extra_columns else ["NULL", "NULL"]
        select = f"SELECT name, locked_by, {', '.join([*times, *extra])}, {now} FROM {{table}}"
        self.record = self._compile(f"{select} WHERE name = :name", "rows")
        size = "CAST(:size AS integer)" if dialect.name == "postgresql" else ":size"
        self.records = self._compile(f"{select} WHERE substr(name, 1, {size}) = :prefix", "rows")
        self.probe = self._compile(f"{select} WHERE 1 = 0", "rows")
        locate = _LOCATE.get(dialect.name)
        self.locate = self._compile(locate, "rows") if locate else None
        columns = FOLLOWS_ZONE.get(dialect.name)
        self.columns = self._compile(columns, "rows") if columns else None
        share = {"postgresql": " FOR SHARE", "sqlite": ""}.get(dialect.name, " LOCK IN SHARE MODE")
        self.verify_sql = f"SELECT 1 FROM {self.table_name} WHERE {this_lease} AND lock_until > {now}{share}"

    def claim(self, kind: Kind, *, has_fire_time: bool) -> Statement:
        """The statement that claims a lock."""
        return self._claims[kind, has_fire_time]

    def _claim(self, kind: Kind, has_fire_time: bool) -> Statement:
        options = {"extra_columns": self._extra_columns, "has_fire_time": has_fire_time}
        if self._dialect.name not in ("postgresql", "sqlite"):
            return self._compile(MySqlSql(self.clock, kind, **options).sql(), "id")
        # PostgreSQL locks the row and writes to its log for each ON CONFLICT, granted or not: skips must not get there.
        looks_itself = self._dialect.name == "postgresql"
        sql = ReturningSql(self.clock, kind, **options).sql(skips_first=looks_itself, refuses_late=looks_itself)
        return self._compile(sql, "rows")

    def _look(self) -> Statement:
        """SQLite reads before it claims, as it has one writer at a time: a row, also if there is no record."""
        ran = f" OR last_fire_time >= {self.clock.fire_time}" if self._extra_columns else ""
        extra = ", ".join(EXTRA_COLUMNS if self._extra_columns else ("NULL", "NULL"))
        return self._compile(
            f"SELECT lock_until > {self.clock.now}{ran}, {self.clock.is_late}, name, lock_until, {extra} "
            f"FROM (SELECT 1) LEFT JOIN {{table}} ON name = :name",
            "rows",
        )

    def _compile(self, sql: str, replies_with: Literal["rows", "count", "id"]) -> Statement:
        filled = sql.format(table=self.table_name, until=self.clock.until)
        compiled = text(filled).compile(dialect=self._dialect)
        order: Sequence[str] | None = getattr(compiled, "positiontup", None)
        sql = str(compiled)
        names = _NAMED.findall(sql)
        if names and len(set(names)) == len(names):
            # Drivers that can take both sort a mapping anew for each call, which is a tenth of a skip. What occurs more
            # than once they would send more than once.
            sql, order = _NAMED.sub("%s", sql), names
        # Else in the connection's character set, which psycopg knows.
        as_bytes = sql.isascii() and self._dialect.driver in ("psycopg", "psycopg_async")
        wanted = sql.encode() if as_bytes else sql
        return Statement(sql, replies_with, wanted, by_name if order is None else in_order(order))
