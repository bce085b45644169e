"""The SQL of run history: a table beside the lock table, with one row for each run.

PostgreSQL writes it in the statement of the operation itself, as further subqueries of it. The other databases have no
such statements: there, one more statement follows. So it does everywhere after ``prune``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from sqlalchemy import MetaData

from shedlock_py.model.lease import RunOutcome
from shedlock_py.model.run import Run
from shedlock_py.providers.kit import refused
from shedlock_py.providers.sqlalchemy.claims import WAITED, returning_claim
from shedlock_py.providers.sqlalchemy.errors import RIGHTS, Missing, grant_sql, is_denied, missing
from shedlock_py.providers.sqlalchemy.schema import runs_table_of

if TYPE_CHECKING:
    from sqlalchemy import URL

    from shedlock_py.providers.sqlalchemy.statements import Statement, Statements

NAMES_AT_ONCE = 50
"""Whose runs one statement reads. With fewer names, the last one fills the other parameters."""

_OUTCOMES = get_args(RunOutcome)
_COLUMNS = ("name", "fencing_token", "locked_by", "started", "fire_time", "next_fire_time")
_THIS_NAME = "name = :name"
_THIS_RUN = "name = :name AND locked_by = :locked_by"
_NO_ROW_YET = f"NOT EXISTS (SELECT 1 FROM {{runs}} WHERE {_THIS_RUN})"


def _unlocked(condition: str) -> str:
    """The runs of the name with ``condition``, but for rows that another session has locked.

    PostgreSQL would wait for these in the middle of a statement that has locked the record: jobs would wait, too.
    """
    found = f"SELECT fencing_token FROM {{runs}} WHERE {_THIS_NAME} AND {condition} FOR UPDATE SKIP LOCKED"
    return f"{_THIS_NAME} AND fencing_token = ANY (ARRAY({found}))"


class RunStatements:
    """The statements on the table of runs.

    :param longest_wait: PostgreSQL: in seconds, how long a claim may wait for the table; None: as long as it takes.
    :ivar combined: PostgreSQL: by the text of a statement without history, the one that writes history as well.
    :ivar trimming: PostgreSQL: by the text of one of these, the one that also deletes the oldest runs of the name.
    :ivar following: by the text of a statement without history, the one to be sent after it.
    """

    def __init__(self, plain: Statements, longest_wait: float | None) -> None:
        lock_table, dialect = plain.table, plain.dialect
        table = runs_table_of(lock_table, MetaData())
        self.table = table
        self.table_name = dialect.identifier_preparer.format_table(table)
        self._dialect = dialect
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
        self.combined: dict[str, Statement] = {}
        self.trimming: dict[str, Statement] = {}
        self.following: dict[str, Statement] = {}
        if dialect.name == "postgresql":
            self._combine(longest_wait)
        else:
            self._follow()
        delete = "DELETE FROM {runs} WHERE name NOT IN (SELECT name FROM {table})"
        if dialect.name in ("mysql", "mariadb"):
            # A name may have another collation in a lock table that ShedLock for Java made. MariaDB would compare each
            # run with each record, but for a derived table it makes an index.
            same = "CONVERT(name USING utf8mb4) COLLATE utf8mb4_bin"
            delete = (
                f"DELETE runs FROM {{runs}} AS runs LEFT JOIN (SELECT DISTINCT {same} AS kept FROM {{table}}) AS names "
                f"ON kept = {same} WHERE kept IS NULL"
            )
        self.following[plain.prune.sql] = self._compile(delete, "count")
        made = (self.combined, self.trimming, self.following)
        self.texts = {
            self.read.sql,
            self.read_recent.sql,
            self.probe.sql,
            *(each.sql for some in made for each in some.values()),
        }
        """Errors of these are about history."""

    def _compile(self, sql: str, reply: Any) -> Statement:
        return self._plain.compile(sql, reply, runs=self.table_name)

    def _next_token(self) -> str:
        """For a lock table without tokens."""
        clock = self._clock
        newest = f"(SELECT MAX(fencing_token) FROM {{runs}} WHERE {_THIS_NAME})"
        return f"{clock.greatest}(COALESCE({newest}, 0) + 1, {clock.microseconds})"

    # PostgreSQL. All parts of a statement see the tables as they were before it, so none sees what another one writes.
    # A skip writes nothing, and locks no row: each part depends on the rows of the first one.

    def _combine(self, longest_wait: float | None) -> None:
        plain, now = self._plain, self._clock.now
        # The server waits for a locked table before it executes. By then the caller has sent the plain statement.
        waited = ""
        if longest_wait is not None:
            waited = f"(clock_timestamp() > transaction_timestamp() + interval '{int(longest_wait * 1000)} ms')"
        moment, text, number = self._clock.moment, self._clock.text, self._clock.number
        token = "fencing_token" if plain.extra_columns else self._next_token()
        values = ["name", token, "locked_by", "locked_at", moment.format("fire_time"), moment.format("next_fire_time")]
        begin = (
            # A late copy of a claim may find its record when the lease is over, or released with a minimum hold.
            f", begun AS (INSERT INTO {{runs}} ({', '.join(_COLUMNS)}) SELECT {', '.join(values)} FROM granted "
            f"WHERE lock_until > {now} AND {_NO_ROW_YET} ON CONFLICT DO NOTHING)"
        )
        newest = f"SELECT fencing_token FROM {{runs}} WHERE {_THIS_NAME} ORDER BY fencing_token DESC"
        oldest = (
            f"fencing_token <= ({newest} OFFSET {number.format('kept')} LIMIT 1) AND EXISTS (SELECT 1 FROM granted)"
        )
        trim = f", trimmed AS (DELETE FROM {{runs}} WHERE {_unlocked(oldest)})"
        for (kind, has_fire_time), claim in plain.claims.items():
            claim_sql = plain.claim_sql(kind, has_fire_time)
            for made, history in ((self.combined, begin), (self.trimming, begin + trim)):
                sql = returning_claim(claim_sql, checks_first=True, history=history, waited=waited)
                made[claim.sql] = self._compile(sql, "rows")
        is_known = f"{waited} OR EXISTS (SELECT 1 FROM done)" if waited else "EXISTS (SELECT 1 FROM done)"
        outcome = f"CASE WHEN {is_known} THEN {text.format('outcome')} ELSE 'lost' END"
        this_run = "locked_by = :locked_by AND ended IS NULL"
        if plain.extra_columns:  # the index then finds it at once; a late copy of its claim has a later token
            this_run = f"fencing_token >= {number.format('fencing_token')} AND {this_run}"
        sent = "timezone('utc', transaction_timestamp())"
        ended = f"CASE WHEN {waited} THEN {sent} ELSE {now} END" if waited else now
        end = f"UPDATE {{runs}} SET ended = {ended}, outcome = {outcome}, error = {text.format('error')}"
        self._combine_change(plain.release, f"{end} WHERE {_unlocked(this_run)}", waited)
        is_undone = "locked_by = :locked_by AND EXISTS (SELECT 1 FROM done)"
        self._combine_change(plain.undo, f"DELETE FROM {{runs}} WHERE {_unlocked(is_undone)}")

    def _combine_change(self, plain: Statement, history: str, waited: str = "") -> None:
        """:param waited: the condition under which only history is written."""
        change, reply = plain.template, "SELECT 1 FROM done"
        if waited:
            change = f"{change} AND NOT {waited}"
            reply = f"SELECT COALESCE(({reply}), CASE WHEN {waited} THEN {WAITED} END)"
        sql = f"WITH done AS ({change} RETURNING 1), noted AS ({history}) {reply}"
        self.combined[plain.sql] = self._compile(sql, "rows")

    # MySQL, MariaDB and SQLite

    def _follow(self) -> None:
        plain = self._plain
        begin = self._compile(self._begin_run(), "count")
        self.following = {claim.sql: begin for claim in plain.claims.values()}
        self.following[plain.release.sql] = self._compile(
            f"UPDATE {{runs}} SET ended = {self._clock.now}, outcome = :outcome, error = :error "
            f"WHERE {_THIS_RUN} AND ended IS NULL",
            "count",
        )
        self.following[plain.undo.sql] = self._compile(f"DELETE FROM {{runs}} WHERE {_THIS_RUN}", "count")

    def _begin_run(self) -> str:
        """Insert the run of the claim that the record has now; in place of the oldest, if there are enough."""
        token = "record.fencing_token" if self._plain.extra_columns else self._next_token()
        # A copy that waited for a locked table may come after an undo. Its clock is that of before the wait.
        still_held = " AND record.lock_until >= record.locked_at + INTERVAL :hold_ms * 1000 MICROSECOND"
        if self._plain.dialect.name == "sqlite":  # which has no server that executes it later
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

    def hint(self, error: Exception, url: URL | None = None) -> str | None:
        """What the user can do about an error of the table of runs."""
        if is_denied(error):
            grant = grant_sql(self._dialect, self.table_name, None, url, f"{RIGHTS}, DELETE")
            return f"as the owner of the table or an administrator: {grant}"
        if missing(error) is Missing.TABLE:
            return (
                f"create the table {self.table_name} once, with provider.create_schema(), or add runs_table(metadata) "
                f"to your migrations; from a shell: shedlock schema --create"
            )
        if missing(error) is Missing.COLUMN:
            return f"drop the table {self.table_name}, and create it with provider.create_schema()"
        return None

    def to_run(self, row: Sequence[Any]) -> Run:
        """A run as the database returned it.

        :raises ProviderError: it has a value that means nothing.
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
