"""The operations on SQL: programs that say what to ask the database and decide what the replies mean.

Each operation is one statement (SQLite's acquire, and that of whoever polls: a look and a statement), idempotent per
claim id: a statement that was done but whose reply was lost may be asked again. That is why programs ask again after a
broken connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import MetaData
from sqlalchemy.engine import Dialect

from shedlock_py._program import Program
from shedlock_py.durations import Duration, in_milliseconds, parse_duration
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.providers.sqlalchemy.clock import CLOCKS
from shedlock_py.providers.sqlalchemy.failures import Failure, NotSent, classify, reason
from shedlock_py.providers.sqlalchemy.pollers import Pollers
from shedlock_py.providers.sqlalchemy.schema import EXTRA_COLUMNS, create_table_sql, lock_table
from shedlock_py.providers.sqlalchemy.statements import Statement, Statements, by_name
from shedlock_py.rules import Claim, Clock, Lease, LockRecord, LockRequest, validate_name, validate_prefix

_NO_VALUES: Mapping[str, object] = {}


class Ask(NamedTuple):
    """The command: one statement with its values, to be done in a transaction of its own."""

    statement: Statement
    values: Mapping[str, object] = _NO_VALUES


class Answer(NamedTuple):
    """The reply: the rows, or how many were found or changed, or the number in MySQL's OK packet."""

    rows: Sequence[Sequence[Any]] = ()
    changed: int = 0
    id: int = 0
    repeated: bool = False
    """Asked twice, because the connection broke: the first may have been done."""


MOST_TRIES = 6  # for statements that the database undid because of another (one of the two always gets through) or when
# it ended their sessions
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
        self._redact = redact
        self._schema = schema
        self._looks_always = dialect.name == "sqlite"
        self._pollers = Pollers(clock)
        self._table = lock_table(MetaData(), table_name, schema)
        self._sql = Statements(dialect, self._table, extra_columns)
        self._columns_checked = self._sql.moves_with_zone is None
        self.table_name, self.verify_sql = self._sql.table_name, self._sql.verify_sql

    # The programs

    def acquire(self, request: LockRequest) -> Program[Ask, Answer, Lease | None]:
        if not self._columns_checked:
            yield from self._check_columns("acquire", request)
        # SQLite has one writer at a time: a skip should only read. On the others looking costs a round trip if it finds
        # the lock free, and half of what asking for the lock costs if it does not.
        if self._looks_always or self._pollers.has(request.name):
            looked = yield from self._ask("acquire", request.name, Ask(self._sql.look, self._identity(request)))
            if looked.changed > 0 or looked.rows:
                return None
        claim = Claim(request, self._clock)
        lease = yield from self._claim(claim, "acquire", self._sql.acquire, self._claim_values(claim))
        self._pollers.note(request.name, is_refused=lease is None)
        return lease

    def take_over(self, request: LockRequest) -> Program[Ask, Answer, Lease]:
        if not self._columns_checked:
            yield from self._check_columns("take_over", request)
        claim = Claim(request, self._clock)
        lease = yield from self._claim(claim, "take_over", self._sql.take_over, self._claim_values(claim))
        if lease is None:
            raise ProviderError("the database refused a take-over", operation="take_over", lock_name=request.name)
        return lease

    def _check_columns(self, operation: str, request: LockRequest) -> Program[Ask, Answer, None]:
        """Once, before the first claim: whether the times in the table mean the same to every session.

        A column that follows the session's time zone is two moments for two sessions: both got the lock.
        """
        if self._sql.moves_with_zone is None:
            return
        names = {"table": self._table.name, "schema": self._schema, "formatted": self.table_name}
        answer = yield from self._ask(operation, request.name, Ask(self._sql.moves_with_zone, names))
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

    def _identity(self, request: LockRequest) -> dict[str, object]:
        """What is to be locked: the run of one fire time, or any."""
        if request.fire_time is not None and not self.extra_columns:
            raise ConfigurationError("a fire time needs the column last_fire_time: not with extra_columns=False")
        fire_time = request.fire_time and self._sql.clock.to_store(request.fire_time)
        return {"name": request.name, "fire_time": fire_time}

    def _claim_values(self, claim: Claim) -> dict[str, object]:
        hold_ms = in_milliseconds(claim.request.lock_at_most_for)
        return {**self._identity(claim.request), "locked_by": claim.locked_by, "hold_ms": hold_ms}

    def _claim(
        self, claim: Claim, operation: str, statement: Statement, values: dict[str, object]
    ) -> Program[Ask, Answer, Lease | None]:
        def undo() -> Ask:
            return Ask(self._sql.release, {**values, "hold_ms": 0})

        answer = yield from self._ask(operation, claim.request.name, Ask(statement, values), undo)
        number = answer.id if statement.replies_with == "id" else answer.rows[0][0] if answer.rows else 0
        if not number:
            return None
        return claim.granted(number if self.extra_columns else None)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Program[Ask, Answer, Lease | None]:
        extension = lease.begin_extension(lock_at_most_for)
        if lease.has_ended():
            return None
        values = {**identifiers(lease), "hold_ms": in_milliseconds(extension.lock_for)}
        answer = yield from self._ask("extend", lease.name, Ask(self._sql.extend, values))
        if not answer.changed:
            lease.lose()
            return None
        return extension.granted(repeated=answer.repeated)

    def release(self, lease: Lease) -> Program[Ask, Answer, bool]:
        if lease.has_ended():
            return False
        was_trusted = lease.is_trusted()
        values = {**identifiers(lease), "hold_ms": in_milliseconds(lease.begin_release())}
        answer = yield from self._ask("release", lease.name, Ask(self._sql.release, values))
        # If the first of two did it, the second finds nothing to do.
        is_done = bool(answer.changed) or (answer.repeated and was_trusted)
        if is_done:
            lease.end()
        else:
            lease.lose()
        return is_done

    def force_release(self, name: str) -> Program[Ask, Answer, bool]:
        answer = yield from self._ask(
            "force_release", name, Ask(self._sql.force_release, {"name": validate_name(name)})
        )
        return bool(answer.changed)

    def prune(self, unused_for: Duration) -> Program[Ask, Answer, int]:
        unused = in_milliseconds(parse_duration(unused_for, "unused_for", zero=True))
        answer = yield from self._ask("prune", None, Ask(self._sql.prune, {"hold_ms": -unused}))
        return answer.changed

    def record(self, name: str) -> Program[Ask, Answer, LockRecord | None]:
        answer = yield from self._ask("record", name, Ask(self._sql.record, {"name": validate_name(name)}))
        return self._to_record(answer.rows[0]) if answer.rows else None

    def records(self, prefix: str) -> Program[Ask, Answer, list[LockRecord]]:
        validate_prefix(prefix)
        answer = yield from self._ask("records", None, Ask(self._sql.records, {"size": len(prefix), "prefix": prefix}))
        records = [self._to_record(row) for row in answer.rows]
        # Again here: a table of ShedLock for Java on MySQL may have a collation that folds case.
        return sorted((record for record in records if record.name.startswith(prefix)), key=lambda record: record.name)

    def _to_record(self, row: Sequence[Any]) -> LockRecord:
        name, locked_by, locked_at, lock_until, fencing_token, last_fire_time, read_at = row
        moment = self._sql.clock.from_store
        return LockRecord(
            name=name,
            locked_by=locked_by,
            locked_at=moment(locked_at),
            lock_until=moment(lock_until),
            fencing_token=fencing_token,
            last_fire_time=moment(last_fire_time) if last_fire_time is not None else None,
            read_at=moment(read_at),
        )

    def create_table_sql(self) -> str:
        return create_table_sql(self._table, self.dialect)

    def create_schema(self, dialect: Dialect) -> Program[Ask, Answer, None]:
        """Look, create, look again: several processes may do it at once, and some may not create tables at all.

        ``dialect`` is that of the engine which asks: it knows, once it has looked, whether this is MySQL or MariaDB.
        """
        try:
            yield from self._ask("create_schema", None, Ask(self._sql.probe))
        except ProviderError as error:
            if not isinstance(error.__cause__, Exception) or classify(error.__cause__) is not Failure.NO_TABLE:
                raise
        else:
            return
        ddl = create_table_sql(self._table, dialect)
        if self.dialect.name == "postgresql":
            # One at a time: CREATE TABLE IF NOT EXISTS fails when two do it at once.
            ddl = f"DO $shedlock$ BEGIN PERFORM pg_advisory_xact_lock({_SCHEMA_LOCK}); {ddl}; END $shedlock$"
        failure: ProviderError | None = None
        try:
            yield from self._ask("create_schema", None, Ask(Statement(ddl, "count", ddl, by_name)))
        except ProviderError as error:
            failure = error
        try:
            yield from self._ask("create_schema", None, Ask(self._sql.probe))
        except ProviderError:
            if failure is not None:
                raise failure from failure.__cause__
            raise

    # Asking, and what errors mean

    def _ask(
        self, operation: str, lock_name: str | None, ask: Ask, undo: Callable[[], Ask] | None = None
    ) -> Program[Ask, Answer, Answer]:
        """Ask the database; ask again where that can help, which is safe because statements are idempotent.

        ``undo`` is asked, once, when it stays unknown whether ``ask`` was done.
        """
        tries, broken, repeated, started = 1, False, False, self._clock()
        while True:
            try:
                answer = yield ask
                return answer._replace(repeated=True) if repeated else answer
            except Exception as error:
                failure = classify(error)
                is_late = self._clock() - started >= REPEAT_SECONDS
                if failure in (Failure.CONFLICT, Failure.ENDED) and tries < MOST_TRIES and not is_late:
                    tries += 1
                    repeated = repeated or (failure is Failure.ENDED and not isinstance(error, NotSent))
                    continue
                if failure is Failure.GONE and not broken:
                    broken = repeated = True  # a pooled connection may be older than the server; a new one tells
                    continue
                is_unknown = failure in _OUTCOME_UNKNOWN and not isinstance(error, NotSent)
                if undo is not None and (repeated or is_unknown):
                    # Nobody will use what may have been granted. If it cannot be undone now, it ends by itself.
                    with suppress(Exception):
                        yield undo()
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
        if 'prepared statement "' in message:
            message += (
                " — a pooler such as PgBouncer in transaction mode does not keep prepared statements: take "
                "postgresql+psycopg; an engine of yours needs connect_args={'prepare_threshold': None}"
            )
        answered = failure in (Failure.NO_TABLE, Failure.NO_SCHEMA, Failure.NO_COLUMN, Failure.REFUSED)
        kind = ProviderError if answered else ProviderUnreachable
        return kind(message, operation=operation, lock_name=lock_name)


def identifiers(lease: Lease) -> dict[str, object]:
    """What tells the record of exactly this acquisition."""
    return {"name": lease.name, "locked_by": lease.locked_by, "fencing_token": lease.fencing_token}


Redact = Callable[[str], str]
_logger = logging.getLogger("shedlock_py")
_SCHEMA_LOCK = 7461353825  # any number that nobody else is likely to use

_OUTCOME_UNKNOWN = (Failure.GONE, Failure.ENDED, Failure.UNREACHABLE, Failure.FOREIGN)
