"""The SQL of run history: a table with one row for each run, beside the lock table.

After a claim, a release, an undo and a prune, a second statement writes history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from sqlalchemy import MetaData

from shedlock_py.model.lease import RunOutcome
from shedlock_py.model.run import Run
from shedlock_py.providers.kit import refused
from shedlock_py.providers.sqlalchemy.schema import runs_table_of

if TYPE_CHECKING:
    from shedlock_py.providers.sqlalchemy.statements import Statement, Statements

NAMES_AT_ONCE = 50
"""The number of names that one statement reads. The last name fills the parameters that are left."""

_OUTCOMES = get_args(RunOutcome)
_COLUMNS = ("name", "fencing_token", "locked_by", "started", "fire_time", "next_fire_time")
_THIS_NAME = "name = :name"
_THIS_RUN = "name = :name AND locked_by = :locked_by"
_NO_ROW_YET = f"NOT EXISTS (SELECT 1 FROM {{runs}} WHERE {_THIS_RUN})"


class RunStatements:
    """The statements on the table of runs.

    :ivar begin: sent after a claim.
    :ivar end: sent after a release.
    :ivar remove: sent after an undo.
    :ivar prune: sent after a prune of the lock table.
    """

    def __init__(self, plain: Statements) -> None:
        lock_table, dialect = plain.table, plain.dialect
        table = runs_table_of(lock_table, MetaData())
        self.table = table
        self.table_name = dialect.identifier_preparer.format_table(table)
        self._plain = plain
        self._clock = plain.clock
        shown = [self._clock.shown.format(time) for time in ("started", "ended", "fire_time", "next_fire_time")]
        size = self._clock.number.format("size")
        columns = ", ".join(["name, fencing_token, locked_by, outcome, error", *shown])
        self.read = self._compile(
            f"SELECT {columns} FROM {{runs}} WHERE {_THIS_NAME} ORDER BY fencing_token DESC LIMIT {size}", "rows"
        )
        place = "ROW_NUMBER() OVER (PARTITION BY name ORDER BY fencing_token DESC)"
        ranked = f"SELECT runs.*, {place} AS place FROM {{runs}} AS runs"
        some = ", ".join(f":name_{number}" for number in range(NAMES_AT_ONCE))
        self.read_recent = self._compile(
            f"SELECT {columns} FROM ({ranked} WHERE name IN ({some})) AS newest WHERE place <= {size}", "rows"
        )
        self.probe = self._compile(f"SELECT {columns} FROM {{runs}} WHERE 1 = 0", "rows")
        self.begin = self._compile(self._begin_run(), "count")
        text = self._clock.text
        # The time when it was sent: the statement may wait for the table.
        sent = "timezone('utc', transaction_timestamp())" if dialect.name == "postgresql" else self._clock.now
        self.end = self._compile(
            f"UPDATE {{runs}} SET ended = {sent}, outcome = {text.format('outcome')}, "
            f"error = {text.format('error')} WHERE {_THIS_RUN} AND ended IS NULL",
            "count",
        )
        self.remove = self._compile(f"DELETE FROM {{runs}} WHERE {_THIS_RUN}", "count")
        delete = "DELETE FROM {runs} WHERE name NOT IN (SELECT name FROM {table})"
        if dialect.name in ("mysql", "mariadb"):
            # In a lock table of ShedLock for Java, the name may have another collation. MariaDB would compare each run
            # with each record. A derived table has an index.
            same = "CONVERT(name USING utf8mb4) COLLATE utf8mb4_bin"
            delete = (
                f"DELETE runs FROM {{runs}} AS runs LEFT JOIN (SELECT DISTINCT {same} AS kept FROM {{table}}) AS names "
                f"ON kept = {same} WHERE kept IS NULL"
            )
        self.prune = self._compile(delete, "count")

    def _compile(self, sql: str, reply: Any) -> Statement:
        return self._plain.compile(sql, reply, runs=self.table_name)

    def _next_token(self) -> str:
        """For a lock table without tokens."""
        clock = self._clock
        newest = f"(SELECT MAX(fencing_token) FROM {{runs}} WHERE {_THIS_NAME})"
        return f"{clock.greatest}(COALESCE({newest}, 0) + 1, {clock.microseconds})"

    def _begin_run(self) -> str:
        """Insert the run of the claim in the record. If enough runs are kept, it replaces the oldest run."""
        token = "record.fencing_token" if self._plain.extra_columns else self._next_token()
        if self._plain.dialect.name == "postgresql":
            return self._begin_run_and_trim(token)
        # A copy that waited for a locked table may come after an undo. Its clock shows the time before the wait.
        still_held = " AND record.lock_until >= record.locked_at + INTERVAL :hold_ms * 1000 MICROSECOND"
        if self._plain.dialect.name == "sqlite":  # no server can execute the statement later
            still_held = ""
        oldest = f"(SELECT CASE WHEN COUNT(*) >= :kept THEN MIN(fencing_token) END FROM {{runs}} WHERE {_THIS_NAME})"
        run = (
            f"SELECT record.name AS name, record.locked_by AS locked_by, record.locked_at AS started, "
            f"{token} AS token, {oldest} AS oldest FROM {{table}} AS record "
            f"WHERE record.name = :name AND record.locked_by = :locked_by AND {_NO_ROW_YET}{still_held}"
        )
        insert = (
            f"INSERT INTO {{runs}} ({', '.join(_COLUMNS)}) SELECT run.name, COALESCE(run.oldest, run.token), "
            f"run.locked_by, run.started, :fire_time, :next_fire_time FROM ({run}) AS run"
        )
        changes = {"locked_by": ":locked_by", "started": "run.started", "ended": "NULL", "outcome": "NULL"}
        changes |= {"error": "NULL", "fire_time": ":fire_time", "next_fire_time": ":next_fire_time"}
        if self._plain.dialect.name == "sqlite":
            changes["started"] = "excluded.started"
            changes["fencing_token"] = (
                f"(SELECT fencing_token FROM {{table}} WHERE {_THIS_NAME})"
                if self._plain.extra_columns
                else self._next_token()
            )
            clause = "WHERE 1 = 1 ON CONFLICT (name, fencing_token) DO UPDATE SET"
        else:
            changes["fencing_token"] = "run.token"
            clause = "ON DUPLICATE KEY UPDATE"
        return f"{insert} {clause} {', '.join(f'{column} = {value}' for column, value in changes.items())}"

    def _begin_run_and_trim(self, token: str) -> str:
        """Return the insert for PostgreSQL. Both parts see the table from before the statement."""
        clock, number = self._clock, self._clock.number
        times = [clock.moment.format(time) for time in ("fire_time", "next_fire_time")]
        insert = (
            f"INSERT INTO {{runs}} ({', '.join(_COLUMNS)}) SELECT record.name, {token}, record.locked_by, "
            f"record.locked_at, {', '.join(times)} FROM {{table}} AS record "
            f"WHERE record.name = :name AND record.locked_by = :locked_by AND {_NO_ROW_YET} "
            f"AND record.lock_until > {clock.now} ON CONFLICT DO NOTHING RETURNING 1"
        )
        newest = f"SELECT fencing_token FROM {{runs}} WHERE {_THIS_NAME} ORDER BY fencing_token DESC"
        oldest = f"({newest} OFFSET {number.format('kept')} - 1 LIMIT 1)"
        return (
            f"WITH begun AS ({insert}) DELETE FROM {{runs}} WHERE {_THIS_NAME} AND fencing_token <= {oldest} "
            f"AND EXISTS (SELECT 1 FROM begun)"
        )

    def to_run(self, row: Sequence[Any]) -> Run:
        """Return the run in ``row``.

        :raises ProviderError: it has an impossible value.
        """
        name, token, locked_by, outcome, error, *times = row
        moments = [None if time is None else self._clock.from_store(time) for time in times]
        is_odd = any(time is not None and moment is None for time, moment in zip(times, moments, strict=True))
        started, ended, fire_time, next_fire_time = moments
        is_text = isinstance(locked_by, str) and isinstance(error, str | None)
        if is_odd or started is None or not is_text or not isinstance(token, int) or outcome not in (None, *_OUTCOMES):
            raise refused(
                "runs",
                str(name),
                f"the run with fencing token {token!r:.60} in table {self.table_name} has a value that it cannot have",
                hint="correct the row, or delete it",
            )
        return Run(str(name), token, locked_by, started, ended, outcome, error, fire_time, next_fire_time)
