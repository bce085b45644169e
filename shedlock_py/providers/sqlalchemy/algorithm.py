"""The operations on SQL: statements, and the programs that decide what the replies mean.

Each operation is one statement (SQLite's acquire: a look and a statement), idempotent per claim id: a statement that
was done but whose reply was lost may be asked again. That is why programs ask again after a broken connection.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlalchemy import MetaData, text
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateTable

from shedlock_py._program import Program
from shedlock_py.durations import Duration, in_milliseconds, parse_duration
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.providers.sqlalchemy.clock import CLOCKS
from shedlock_py.providers.sqlalchemy.failures import Failure, NotSent, classify, reason
from shedlock_py.providers.sqlalchemy.schema import EXTRA_COLUMNS, lock_table
from shedlock_py.rules import Claim, Clock, Lease, LockRecord, LockRequest, validate_name


@dataclass(frozen=True)
class Statement:
    """SQL text in the driver's own parameter style, compiled once."""

    sql: str
    order: tuple[str, ...] | None
    """The names of the parameters in their order, for drivers that take a sequence."""
    replies_with: Literal["rows", "count", "id"]

    def bind(self, values: Mapping[str, object]) -> Any:
        if self.order is None:
            return values
        return tuple(values[name] for name in self.order)


@dataclass(frozen=True)
class Ask:
    """The command: one statement with its values, to be done in a transaction of its own."""

    statement: Statement
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The reply: the rows, or how many were changed, or the number in MySQL's OK packet."""

    rows: Sequence[Sequence[Any]] = ()
    count: int = 0
    id: int = 0
    repeated: bool = False
    """Asked twice, because the connection broke: the first may have been done."""


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

MOST_TRIES = 6  # for statements that the database undid because of another; one of the two always gets through
REPEAT_SECONDS = 5  # no other try after this: the database may have waited for a lock before it undid the statement


class SqlAlgorithm:
    """The programs for one table of one database. ``clock`` is the holder's monotonic clock."""

    def __init__(
        self, dialect: Dialect, table_name: str, schema: str | None, extra_columns: bool, clock: Clock, redact: Redact
    ) -> None:
        if dialect.name not in CLOCKS:
            raise ConfigurationError(
                f"SQL dialect {dialect.name!r} is not supported; supported are {', '.join(CLOCKS)}"
            )
        for name in (table_name, schema or ""):
            if "%" in name or ":" in name:
                raise ConfigurationError(
                    f"{name!r} cannot name the lock table or its schema: drivers give % and : a meaning"
                )
        self.dialect = dialect
        self.extra_columns = extra_columns
        self._clock = clock
        self._sql_clock = CLOCKS[dialect.name]
        self._redact = redact
        self._schema = schema
        self._columns_checked = dialect.name not in _MOVES_WITH_ZONE
        self._table = lock_table(MetaData(), table_name, schema)
        self.table_name = dialect.identifier_preparer.format_table(self._table)
        self._prepare_statements()

    # The statements

    def _prepare_statements(self) -> None:
        now = self._sql_clock.now
        ours = "name = :name AND locked_by = :locked_by"
        self._acquire = self._upsert(by_force=False)
        self._take_over = self._upsert(by_force=True)
        self._look = self._compile(f"SELECT 1 FROM {{table}} WHERE {self._refused()}", "rows")
        self._hold = self._compile(
            f"UPDATE {{table}} SET lock_until = {{until}} WHERE {ours} AND lock_until > {now}", "count"
        )
        self._force_release = self._compile(
            f"UPDATE {{table}} SET lock_until = {now} WHERE name = :name AND lock_until > {now}", "count"
        )
        self._prune = self._compile("DELETE FROM {table} WHERE lock_until <= {until}", "count")
        extra = ", ".join(EXTRA_COLUMNS if self.extra_columns else ("NULL", "NULL"))
        select = f"SELECT name, locked_by, locked_at, lock_until, {extra}, {now} FROM {{table}}"
        self._record = self._compile(f"{select} WHERE name = :name", "rows")
        size = "CAST(:size AS integer)" if self.dialect.name == "postgresql" else ":size"
        self._records = self._compile(f"{select} WHERE substr(name, 1, {size}) = :prefix", "rows")
        self._probe = self._compile(f"{select} WHERE 1 = 0", "rows")
        if self.dialect.name in _MOVES_WITH_ZONE:
            self._moves_with_zone = self._compile(_MOVES_WITH_ZONE[self.dialect.name], "rows")
        share = {"postgresql": " FOR SHARE", "sqlite": ""}.get(self.dialect.name, " LOCK IN SHARE MODE")
        self.verify_sql = f"SELECT 1 FROM {self.table_name} WHERE {ours} AND lock_until > {now}{share}"

    def _compile(self, sql: str, replies_with: Literal["rows", "count", "id"]) -> Statement:
        filled = sql.format(table=self.table_name, until=self._sql_clock.until)
        compiled = text(filled).compile(dialect=self.dialect)
        order = getattr(compiled, "positiontup", None)
        return Statement(str(compiled), tuple(order) if order is not None else None, replies_with)

    def _refused(self) -> str:
        """When an acquire is refused: the lock is held by another claim, or this fire time has been granted."""
        ran = f" OR last_fire_time >= {self._sql_clock.fire_time}" if self.extra_columns else ""
        return f"name = :name AND locked_by <> :locked_by AND (lock_until > {self._sql_clock.now}{ran})"

    def _upsert(self, *, by_force: bool) -> Statement:
        """Acquire in one statement: insert the record if it is absent, update it if it may be granted.

        A claim that finds itself in the record was granted already, and its reply was lost: it keeps its token.
        """
        has_returning = self.dialect.name in ("postgresql", "sqlite")
        return self._upsert_returning(by_force) if has_returning else self._mysql_upsert(by_force)

    def _granted(self, record: str, by_force: bool) -> str:
        if by_force:
            return "(1 = 1)"
        clock = self._sql_clock
        newer = f" AND ({record}last_fire_time < {clock.fire_time}) IS NOT FALSE" if self.extra_columns else ""
        return f"({record}locked_by = :locked_by OR ({record}lock_until <= {clock.now}{newer}))"

    def _next_token(self, record: str) -> str:
        clock = self._sql_clock
        return (
            f"CASE WHEN {record}locked_by = :locked_by THEN {record}fencing_token "
            f"ELSE {clock.greatest}(COALESCE({record}fencing_token, 0) + 1, {clock.microseconds}) END"
        )

    def _newest_fire_time(self, record: str) -> str:
        clock = self._sql_clock
        stored, given = f"{record}last_fire_time", clock.fire_time
        return f"COALESCE({clock.greatest}({stored}, {given}), {stored}, {given})"

    def _upsert_returning(self, by_force: bool) -> Statement:
        """PostgreSQL and SQLite."""
        clock = self._sql_clock
        columns, values = "name, lock_until, locked_at, locked_by", f":name, {{until}}, {clock.now}, :locked_by"
        if self.dialect.name == "postgresql":
            values = f"CAST(:name AS varchar), {{until}}, {clock.now}, CAST(:locked_by AS varchar)"
        changes = f"lock_until = {{until}}, locked_at = {clock.now}, locked_by = :locked_by"
        reply = "1"
        if self.extra_columns:
            columns += ", fencing_token, last_fire_time"
            values += f", {clock.microseconds}, {clock.fire_time}"
            changes += (
                f", fencing_token = {self._next_token('record.')}, last_fire_time = {self._newest_fire_time('record.')}"
            )
            reply = "fencing_token"
        # PostgreSQL locks the row and writes to its log for each ON CONFLICT, granted or not: skips must not get there.
        skips_here = self.dialect.name == "postgresql" and not by_force
        source = f"NOT EXISTS (SELECT 1 FROM {{table}} WHERE {self._refused()})" if skips_here else "1 = 1"
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
        clock, granted = self._sql_clock, self._granted("", by_force)
        columns = "name, lock_until, locked_by"
        values = ":name, {until}, :locked_by"
        if self.extra_columns:
            columns += ", fencing_token, last_fire_time, locked_at"
            values += f", LAST_INSERT_ID({clock.microseconds}), :fire_time, {clock.now}"
            changes = (
                # 0 first: NULL + f() would not call f.
                f"fencing_token = IF({granted}, LAST_INSERT_ID({self._next_token('')}), "
                f"LAST_INSERT_ID(0) + fencing_token), "
                f"locked_at = IF({granted}, {clock.now}, locked_at), "
                f"locked_by = IF({granted}, :locked_by, locked_by), "
                f"last_fire_time = IF({granted}, {self._newest_fire_time('')}, last_fire_time), "
            )
        else:
            columns += ", locked_at"
            values += f", IF(LAST_INSERT_ID(1) = 1, {clock.now}, NULL)"
            changes = (
                f"locked_at = IF(LAST_INSERT_ID(IF({granted}, 1, 0)) = 1, {clock.now}, locked_at), "
                f"locked_by = IF({granted}, :locked_by, locked_by), "
            )
        return self._compile(
            f"INSERT INTO {{table}} ({columns}) VALUES ({values}) "
            f"ON DUPLICATE KEY UPDATE {changes}lock_until = IF({granted}, {{until}}, lock_until)",
            "id",
        )

    # The programs

    def acquire(self, request: LockRequest) -> Program[Ask, Answer, Lease | None]:
        yield from self._check_columns("acquire", request)
        claim = Claim(request, self._clock)
        values = self._claim_values(claim)
        if self.dialect.name == "sqlite":
            # SQLite has one writer at a time: a skip should only read.
            looked = yield from self._ask("acquire", request.name, Ask(self._look, values))
            if looked.rows:
                return None
        return (yield from self._claim(claim, "acquire", self._acquire, values))

    def take_over(self, request: LockRequest) -> Program[Ask, Answer, Lease]:
        yield from self._check_columns("take_over", request)
        claim = Claim(request, self._clock)
        lease = yield from self._claim(claim, "take_over", self._take_over, self._claim_values(claim))
        if lease is None:
            raise ProviderError("the database refused a take-over", operation="take_over", lock_name=request.name)
        return lease

    def _check_columns(self, operation: str, request: LockRequest) -> Program[Ask, Answer, None]:
        """Once, before the first claim: whether the times in the table mean the same to every session.

        A column that follows the session's time zone is two moments for two sessions: both got the lock.
        """
        if request.fire_time is not None and not self.extra_columns:
            raise ConfigurationError("a fire time needs the column last_fire_time: not with extra_columns=False")
        if self._columns_checked:
            return
        names = {"table": self._table.name, "schema": self._schema, "formatted": self.table_name}
        answer = yield from self._ask(operation, request.name, Ask(self._moves_with_zone, names))
        if not answer.rows:
            return  # no table; it may be there next time
        if not answer.rows[0][0]:
            self._columns_checked = True
            return
        times = ("lock_until", "locked_at", *(("last_fire_time",) if self.extra_columns else ()))
        if self.dialect.name == "postgresql":
            changes = ", ".join(f"ALTER COLUMN {time} TYPE timestamp USING {time} AT TIME ZONE 'UTC'" for time in times)
            raise ProviderError(
                f"{operation} of lock {request.name!r}: the times of table {self.table_name} are timestamptz, which "
                f"sessions of different time zones would not understand alike: two would get the lock — "
                f"ALTER TABLE {self.table_name} {changes}",
                operation=operation,
                lock_name=request.name,
            )
        self._columns_checked = True
        changes = ", ".join(
            f"MODIFY {time} DATETIME(6) {'NULL' if time in EXTRA_COLUMNS else 'NOT NULL'}" for time in times
        )
        _logger.warning(
            "the times of table %s are TIMESTAMP: sessions with different time_zone settings would not understand them "
            "alike, and two would get the lock; nor can it store the hour that a time zone leaves out in spring — "
            "with time_zone = '+00:00': ALTER TABLE %s %s",
            self.table_name,
            self.table_name,
            changes,
        )

    def _claim_values(self, claim: Claim) -> dict[str, object]:
        request = claim.request
        return {
            "name": request.name,
            "locked_by": claim.locked_by,
            "hold_ms": in_milliseconds(request.lock_at_most_for),
            "fire_time": self._sql_clock.to_store(request.fire_time),
        }

    def _claim(
        self, claim: Claim, operation: str, statement: Statement, values: dict[str, object]
    ) -> Program[Ask, Answer, Lease | None]:
        undo = Ask(self._hold, {**values, "hold_ms": 0})
        answer = yield from self._ask(operation, claim.request.name, Ask(statement, values), undo)
        number = answer.id if statement.replies_with == "id" else answer.rows[0][0] if answer.rows else 0
        if not number:
            return None
        return claim.granted(number if self.extra_columns else None)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Program[Ask, Answer, Lease | None]:
        extension = lease.begin_extension(lock_at_most_for)
        if lease.has_ended():
            return None
        values = {"name": lease.name, "locked_by": lease.locked_by, "hold_ms": in_milliseconds(extension.lock_for)}
        answer = yield from self._ask("extend", lease.name, Ask(self._hold, values))
        if not answer.count:
            lease.lose()
            return None
        return extension.granted()

    def release(self, lease: Lease) -> Program[Ask, Answer, bool]:
        if lease.has_ended():
            return False
        was_trusted = lease.is_trusted()
        values = {"name": lease.name, "locked_by": lease.locked_by, "hold_ms": in_milliseconds(lease.begin_release())}
        answer = yield from self._ask("release", lease.name, Ask(self._hold, values))
        # If the first of two did it, the second finds nothing to do.
        is_done = bool(answer.count) or (answer.repeated and was_trusted)
        if is_done:
            lease.end()
        else:
            lease.lose()
        return is_done

    def force_release(self, name: str) -> Program[Ask, Answer, bool]:
        answer = yield from self._ask("force_release", name, Ask(self._force_release, {"name": validate_name(name)}))
        return bool(answer.count)

    def prune(self, unused_for: Duration) -> Program[Ask, Answer, int]:
        unused = in_milliseconds(parse_duration(unused_for, "unused_for", zero=True))
        answer = yield from self._ask("prune", None, Ask(self._prune, {"hold_ms": -unused}))
        return answer.count

    def record(self, name: str) -> Program[Ask, Answer, LockRecord | None]:
        answer = yield from self._ask("record", name, Ask(self._record, {"name": validate_name(name)}))
        return self._to_record(answer.rows[0]) if answer.rows else None

    def records(self, prefix: str) -> Program[Ask, Answer, list[LockRecord]]:
        _check_prefix(prefix)
        answer = yield from self._ask("records", None, Ask(self._records, {"size": len(prefix), "prefix": prefix}))
        records = [self._to_record(row) for row in answer.rows]
        # Again here: a table of ShedLock for Java on MySQL may have a collation that folds case.
        return sorted((record for record in records if record.name.startswith(prefix)), key=lambda record: record.name)

    def _to_record(self, row: Sequence[Any]) -> LockRecord:
        name, locked_by, locked_at, lock_until, fencing_token, last_fire_time, read_at = row
        moment = self._sql_clock.from_store
        return LockRecord(
            name=name,
            locked_by=locked_by,
            locked_at=moment(locked_at),
            lock_until=moment(lock_until),
            fencing_token=fencing_token,
            last_fire_time=moment(last_fire_time) if last_fire_time is not None else None,
            read_at=moment(read_at),
        )

    def create_schema(self, dialect: Dialect) -> Program[Ask, Answer, None]:
        """Look, create, look again: several processes may do it at once, and some may not create tables at all.

        ``dialect`` is that of the engine which asks: it knows, once it has looked, whether this is MySQL or MariaDB.
        """
        try:
            yield from self._ask("create_schema", None, Ask(self._probe))
        except ProviderError as error:
            if not isinstance(error.__cause__, Exception) or classify(error.__cause__) is not Failure.NO_TABLE:
                raise
        else:
            return
        ddl = str(CreateTable(self._table, if_not_exists=True).compile(dialect=dialect)).strip()
        if self.dialect.name == "postgresql":
            # One at a time: CREATE TABLE IF NOT EXISTS fails when two do it at once.
            ddl = f"DO $shedlock$ BEGIN PERFORM pg_advisory_xact_lock({_SCHEMA_LOCK}); {ddl}; END $shedlock$"
        failure: ProviderError | None = None
        try:
            yield from self._ask("create_schema", None, Ask(Statement(ddl, None, "count")))
        except ProviderError as error:
            failure = error
        try:
            yield from self._ask("create_schema", None, Ask(self._probe))
        except ProviderError:
            if failure is not None:
                raise failure from failure.__cause__
            raise

    # Asking, and what errors mean

    def _ask(
        self, operation: str, lock_name: str | None, ask: Ask, undo: Ask | None = None
    ) -> Program[Ask, Answer, Answer]:
        """Ask the database; ask again where that can help, which is safe because statements are idempotent.

        ``undo`` is asked, once, when it stays unknown whether ``ask`` was done.
        """
        tries, broken, started = 1, False, self._clock()
        while True:
            try:
                answer = yield ask
                return replace(answer, repeated=broken)
            except Exception as error:
                failure = classify(error)
                is_late = self._clock() - started >= REPEAT_SECONDS
                if failure is Failure.CONFLICT and tries < MOST_TRIES and not is_late:
                    tries += 1
                    continue
                if failure is Failure.GONE and not broken:
                    broken = True  # a pooled connection may be older than the server; a new one tells
                    continue
                was_sent = broken or not isinstance(error, NotSent)
                if undo is not None and was_sent and failure in _OUTCOME_UNKNOWN:
                    # Nobody will use what may have been granted. If it cannot be undone now, it ends by itself.
                    with suppress(Exception):
                        yield undo
                if failure is Failure.FOREIGN:
                    raise
                cause = error.__cause__ if isinstance(error, NotSent) else error
                raise self._explained(error, failure, operation, lock_name) from cause

    def _explained(self, error: Exception, failure: Failure, operation: str, lock_name: str | None) -> ProviderError:
        what = f"{operation} of lock {lock_name!r}" if lock_name is not None else operation
        message = f"{what}: {self._redact(reason(error))}"
        if failure is Failure.NO_TABLE:
            message += (
                f" — create the table {self.table_name} once, with provider.create_schema() or "
                f"provider_from_url(url).create_schema(), or add lock_table(metadata) to your migrations"
            )
        if failure is Failure.NO_SCHEMA and self._schema is not None:
            schema = self.dialect.identifier_preparer.quote_schema(self._schema)
            message += f" — create the schema once: CREATE SCHEMA {schema}"
        if failure is Failure.NO_COLUMN:
            time = "DATETIME(6)" if self.dialect.name in ("mysql", "mariadb") else "TIMESTAMP"
            message += (
                f" — add the missing columns: ALTER TABLE {self.table_name} ADD COLUMN fencing_token BIGINT; "
                f"ALTER TABLE {self.table_name} ADD COLUMN last_fire_time {time}; or go without fencing tokens and "
                f"fire times on a table of ShedLock for Java: extra_columns=False"
            )
        answered = failure in (Failure.NO_TABLE, Failure.NO_SCHEMA, Failure.NO_COLUMN, Failure.REFUSED)
        kind = ProviderError if answered else ProviderUnreachable
        return kind(message, operation=operation, lock_name=lock_name)


def _check_prefix(prefix: object) -> None:
    """A prefix need not be a name: any text that a name could have in it, or nothing."""
    if not isinstance(prefix, str):
        raise ConfigurationError(f"prefix must be a string, not {prefix!r}")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in prefix):
        raise ConfigurationError(f"prefix has a control character or a lone surrogate: {prefix!r}")


Redact = Callable[[str], str]
_logger = logging.getLogger("shedlock_py")
_SCHEMA_LOCK = 7461353825  # any number that nobody else is likely to use

_OUTCOME_UNKNOWN = (Failure.GONE, Failure.UNREACHABLE, Failure.FOREIGN)
