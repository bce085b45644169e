"""The real statements for SQLite, in a real SQLite in memory, with a clock that the caller sets."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Hashable
from datetime import timedelta
from typing import Any

from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from shedlock_py.providers.kit import StorePrograms, carry_out
from shedlock_py.providers.sqlalchemy.errors import translated
from shedlock_py.providers.sqlalchemy.sql_programs import SqlPrograms
from shedlock_py.providers.sqlalchemy.statements import SqlCommand, SqlReply
from shedlock_py.runtime.program import drive
from tests.simulation.stores.times import EPOCH, ExactTime

_COLUMNS = "name, lock_until, locked_at, locked_by, fencing_token, last_fire_time"


class _Clock:
    """The store's clock. The connection refers to it, and not to the store, which closes the connection."""

    now_us = 0

    def __call__(self) -> str:
        return (EPOCH + timedelta(microseconds=self.now_us)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


class SqlModelStore(ExactTime):
    """Replaces each ``'now'`` of a statement by a call of :class:`_Clock`. SQLite does everything else."""

    def __init__(self) -> None:
        self._dialect = SQLiteDialect_pysqlite(dbapi=sqlite3)
        self.programs: StorePrograms = SqlPrograms(self._dialect, "shedlock", None, True, lambda: self._dialect)
        self.connection = sqlite3.connect(
            ":memory:", isolation_level=None, cached_statements=64, check_same_thread=False
        )
        weakref.finalize(self, self.connection.close)  # Python 3.13 warns if a connection was never closed
        self._clock = _Clock()
        self.connection.create_function("model_now", 0, self._clock)
        self._sql: dict[str, str] = {}
        schema = carry_out(self.programs, "create_schema", None, self.programs.create_schema())
        drive(schema, lambda command: self.execute(command, 0))

    def execute(self, command: SqlCommand, now_us: int) -> SqlReply:
        passes = command.check is None or command.check.passes(self.execute(command.check.command, now_us).rows[0])
        statement, values, self._clock.now_us = command.statement, command.values, now_us
        sql = self._sql.get(statement.sql)
        if sql is None:
            sql = self._sql[statement.sql] = statement.sql.replace("'now'", "model_now()")
        if "now_us" in values:  # the machine's clock, read by the program when it made the command
            values = {**values, "now_us": now_us}
        try:
            cursor = self.connection.execute(sql, [values[name] for name in statement.names or ()])
            rows = cursor.fetchall()
        except sqlite3.Error as error:
            raise translated(error, self._dialect, sql) from error
        # The claim must refuse by itself what the read refuses: another claim may come in between.
        assert passes or not rows, "the read before a claim refused what the claim granted"
        return SqlReply(rows) if statement.reply == "rows" else SqlReply(changed=cursor.rowcount)

    def snapshot(self) -> Hashable:
        return tuple(self.connection.execute(f"SELECT {_COLUMNS} FROM shedlock ORDER BY name"))

    def restore(self, snapshot: Hashable) -> None:
        rows: Any = snapshot
        self.connection.execute("DELETE FROM shedlock")
        self.connection.executemany(f"INSERT INTO shedlock ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", rows)
