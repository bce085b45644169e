"""The SQL text of each operation, compiled once for one table of one database."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

from sqlalchemy import Table, text
from sqlalchemy.engine import Dialect

from shedlock_py.providers.sqlalchemy.clock import CLOCKS
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


_OF_COLUMN = "table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table AND column_name = 'lock_until'"
_MYSQL_MOVES = f"SELECT data_type = 'timestamp' FROM information_schema.columns WHERE {_OF_COLUMN}"
# Whether the times follow the session's time zone: one row, or none if there is no table.
_MOVES_WITH_ZONE = {
    "postgresql": (
        "SELECT atttypid = CAST('timestamptz' AS regtype) FROM pg_attribute "
        "WHERE attrelid = to_regclass(CAST(:formatted AS text)) AND attname = 'lock_until'"
    ),
    "mysql": _MYSQL_MOVES,
    "mariadb": _MYSQL_MOVES,
}


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
        now = self.clock.now
        ours = "name = :name AND locked_by = :locked_by"
        # A claim that was asked for twice may be granted a second time, for nobody, long after its lease has ended and
        # others had the lock: with a later token. (A table without tokens cannot tell.)
        this_lease = f"{ours} AND fencing_token = :fencing_token" if extra_columns else ours
        self.acquire = self._upsert(by_force=False)
        dual = "" if dialect.name in ("postgresql", "sqlite") else " FROM DUAL"
        self.take_over_absent = self._upsert(by_force=True)
        self.take_over = self._replace()
        self.is_too_late = self._compile(f"SELECT 1{dual} WHERE {self.clock.fire_time} > {{until}}", "rows")
        where = f"FROM {{table}} WHERE name = :name AND {self._held_or_ran()}"
        # PostgreSQL counts what it finds, and a row of nothing is enough for that. SQLite's driver does not count, nor
        # do those of MySQL with a cursor that an application wants unbuffered.
        if dialect.name == "postgresql":
            self.look = self._compile(f"SELECT {where}", "count")
        else:
            self.look = self._compile(f"SELECT 1 {where}", "rows")
        hold = "UPDATE {{table}} SET lock_until = {{until}} WHERE {which} AND lock_until > {now}"
        self.extend = self._compile(hold.format(which=this_lease, now=now), "count")
        # By the claim alone: what was granted for nobody is better free.
        self.release = self._compile(hold.format(which=ours, now=now), "count")
        self.undo = self._undo(ours)
        self.forget_fire_time = self._compile(
            "UPDATE {table} SET last_fire_time = NULL WHERE name = :name AND last_fire_time IS NOT NULL", "count"
        )
        self.force_release = self._compile(
            f"UPDATE {{table}} SET lock_until = {now} WHERE name = :name AND lock_until > {now}", "count"
        )
        self.prune = self._compile("DELETE FROM {table} WHERE lock_until <= {until}", "count")
        extra = ", ".join(EXTRA_COLUMNS if self._extra_columns else ("NULL", "NULL"))
        select = f"SELECT name, locked_by, locked_at, lock_until, {extra}, {now} FROM {{table}}"
        self.record = self._compile(f"{select} WHERE name = :name", "rows")
        size = "CAST(:size AS integer)" if self._dialect.name == "postgresql" else ":size"
        self.records = self._compile(f"{select} WHERE substr(name, 1, {size}) = :prefix", "rows")
        self.probe = self._compile(f"{select} WHERE 1 = 0", "rows")
        locate = _LOCATE.get(dialect.name)
        self.locate = self._compile(locate, "rows") if locate else None
        moves = _MOVES_WITH_ZONE.get(dialect.name)
        self.moves_with_zone = self._compile(moves, "rows") if moves else None
        share = {"postgresql": " FOR SHARE", "sqlite": ""}.get(self._dialect.name, " LOCK IN SHARE MODE")
        self.verify_sql = f"SELECT 1 FROM {self.table_name} WHERE {this_lease} AND lock_until > {now}{share}"

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

    def _held_or_ran(self) -> str:
        """The lock is held, or this fire time has been granted."""
        ran = f" OR last_fire_time >= {self.clock.fire_time}" if self._extra_columns else ""
        return f"(lock_until > {self.clock.now}{ran})"

    def _upsert(self, *, by_force: bool) -> Statement:
        """Acquire in one statement: insert the record if it is absent, update it if it may be granted.

        A claim that finds itself in the record was granted already, and its reply was lost: it keeps its token, and
        the time that it may have been extended to meanwhile.
        """
        has_returning = self._dialect.name in ("postgresql", "sqlite")
        return self._upsert_returning(by_force) if has_returning else self._mysql_upsert(by_force)

    def _granted(self, record: str, by_force: bool) -> str:
        if by_force:
            return f"({record}locked_by = :locked_by)"
        clock = self.clock
        newer = f" AND ({record}last_fire_time < {clock.fire_time}) IS NOT FALSE" if self._extra_columns else ""
        return f"({record}locked_by = :locked_by OR ({record}lock_until <= {clock.now}{newer}))"

    def _next_token(self, record: str) -> str:
        clock = self.clock
        return (
            f"CASE WHEN {record}locked_by = :locked_by THEN {record}fencing_token "
            f"ELSE {clock.greatest}(COALESCE({record}fencing_token, 0) + 1, {clock.microseconds}) END"
        )

    def _newest_fire_time(self, record: str) -> str:
        clock = self.clock
        stored, given = f"{record}last_fire_time", clock.fire_time
        return f"COALESCE({clock.greatest}({stored}, {given}), {stored}, {given})"

    def _undo(self, ours: str) -> Statement:
        now, fire_time = self.clock.now, self.clock.fire_time
        changes = f"lock_until = CASE WHEN lock_until > {now} THEN {now} ELSE lock_until END"
        if self._extra_columns:
            changes += (
                f", last_fire_time = CASE WHEN last_fire_time > {fire_time} THEN {fire_time} ELSE last_fire_time END"
            )
        return self._compile(f"UPDATE {{table}} SET {changes} WHERE {ours}", "count")

    def _replace(self) -> Statement:
        """Take over exactly the record that was read. A repeated copy finds its own claim, and changes nothing."""
        clock = self.clock
        is_mine = "locked_by = :locked_by"
        began = f"CASE WHEN {is_mine} THEN locked_at ELSE {clock.now} END"
        changes = f"lock_until = CASE WHEN {is_mine} THEN lock_until ELSE {{until}} END, locked_at = {began}, "
        is_same = "locked_by = :before_locked_by AND locked_at = :before_locked_at"
        token, reply = "1", "1"
        if self._extra_columns:
            token, reply = self._next_token(""), "fencing_token"
            changes += f"last_fire_time = {self._newest_fire_time('')}, "
            before_token = "CAST(:before_token AS bigint)" if self._dialect.name == "postgresql" else ":before_token"
            is_same += f" AND COALESCE(fencing_token, -1) = COALESCE({before_token}, -1)"
        which = f"name = :name AND ({is_mine} OR ({is_same}))"
        if self._dialect.name in ("postgresql", "sqlite"):
            changes += f"fencing_token = {token}, " if self._extra_columns else ""
            return self._compile(
                f"UPDATE {{table}} SET {changes}locked_by = :locked_by WHERE {which} RETURNING {reply}", "rows"
            )
        if self._extra_columns:
            changes = f"fencing_token = LAST_INSERT_ID({token}), {changes}locked_by = :locked_by"
        else:
            changes += "locked_by = IF(LAST_INSERT_ID(1) = 1, :locked_by, NULL)"
        return self._compile(f"UPDATE {{table}} SET {changes} WHERE {which}", "id")

    def _upsert_returning(self, by_force: bool) -> Statement:
        """PostgreSQL and SQLite."""
        clock = self.clock
        columns, values = "name, lock_until, locked_at, locked_by", f":name, {{until}}, {clock.now}, :locked_by"
        if self._dialect.name == "postgresql":
            values = f"CAST(:name AS varchar), {{until}}, {clock.now}, CAST(:locked_by AS varchar)"
        is_mine = "record.locked_by = :locked_by"
        changes = (
            f"lock_until = CASE WHEN {is_mine} THEN record.lock_until ELSE {{until}} END, "
            f"locked_at = CASE WHEN {is_mine} THEN record.locked_at ELSE {clock.now} END, locked_by = :locked_by"
        )
        reply = "1"
        if self._extra_columns:
            columns += ", fencing_token, last_fire_time"
            values += f", {clock.microseconds}, {clock.fire_time}"
            changes += (
                f", fencing_token = {self._next_token('record.')}, last_fire_time = {self._newest_fire_time('record.')}"
            )
            reply = "fencing_token"
        # PostgreSQL locks the row and writes to its log for each ON CONFLICT, granted or not: skips must not get there.
        skips_here = self._dialect.name == "postgresql" and not by_force
        refused = f"SELECT 1 FROM {{table}} WHERE name = :name AND locked_by <> :locked_by AND {self._held_or_ran()}"
        source = f"NOT EXISTS ({refused})" if skips_here else "1 = 1"
        return self._compile(
            f"INSERT INTO {{table}} AS record ({columns}) SELECT {values} WHERE {source} "
            f"ON CONFLICT (name) DO UPDATE SET {changes} WHERE {self._granted('record.', by_force)} RETURNING {reply}",
            "rows",
        )

    def _mysql_upsert(self, by_force: bool) -> Statement:
        """MySQL has no RETURNING. LAST_INSERT_ID(x) sends the number x back with the reply: the token, 0 if refused.

        Columns are assigned from left to right, and a condition sees those assigned before it (unless the mode
        SIMULTANEOUS_ASSIGNMENT is on). This order is right both ways: once locked_by is ours, so is the lock.
        """
        clock, granted = self.clock, self._granted("", by_force)
        began = f"IF(locked_by = :locked_by, locked_at, {clock.now})"
        columns = "name, lock_until, locked_by"
        values = ":name, {until}, :locked_by"
        if self._extra_columns:
            columns += ", fencing_token, last_fire_time, locked_at"
            values += f", LAST_INSERT_ID({clock.microseconds}), :fire_time, {clock.now}"
            changes = (
                # 0 first: NULL + f() would not call f.
                f"fencing_token = IF({granted}, LAST_INSERT_ID({self._next_token('')}), "
                f"LAST_INSERT_ID(0) + fencing_token), "
                f"locked_at = IF({granted}, {began}, locked_at), "
                f"locked_by = IF({granted}, :locked_by, locked_by), "
                f"last_fire_time = IF({granted}, {self._newest_fire_time('')}, last_fire_time), "
            )
        else:
            columns += ", locked_at"
            values += f", IF(LAST_INSERT_ID(1) = 1, {clock.now}, NULL)"
            changes = (
                f"locked_at = IF(LAST_INSERT_ID(IF({granted}, 1, 0)) = 1, {began}, locked_at), "
                f"locked_by = IF({granted}, :locked_by, locked_by), "
            )
        # What was granted before may have been extended or released meanwhile: it keeps its time.
        if by_force:
            changes = changes[:-2]
        else:
            until = "GREATEST(lock_until, {until})"
            if self._extra_columns:
                # Whose it was cannot be told from locked_by any more. But a token of before now was not given now.
                was_mine = f"locked_by = :locked_by AND fencing_token < {clock.microseconds}"
                until = f"IF({was_mine}, lock_until, {until})"
            changes = f"{changes}lock_until = IF({granted}, {until}, lock_until)"
        return self._compile(
            f"INSERT INTO {{table}} ({columns}) VALUES ({values}) ON DUPLICATE KEY UPDATE {changes}", "id"
        )
