"""The operations on SQL: programs that yield statements and decide what the replies mean.

Each operation is one statement (SQLite's acquire reads first), idempotent per claim id: the kit may send a statement
again that was carried out and whose reply was lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import MetaData
from sqlalchemy.engine import Dialect

from shedlock_py._program import Program
from shedlock_py.durations import in_milliseconds
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.lease import Claim, Lease
from shedlock_py.providers.kit import Failure, StorePrograms, describe, fire_time_too_late
from shedlock_py.providers.sqlalchemy.claims import TOO_LATE, Kind
from shedlock_py.providers.sqlalchemy.clock import CLOCKS
from shedlock_py.providers.sqlalchemy.columns import TIMES, refusal, warning, written_elsewhere
from shedlock_py.providers.sqlalchemy.errors import Missing, classify, missing, reason
from shedlock_py.providers.sqlalchemy.rows import check_token, other_zone, to_record, to_time
from shedlock_py.providers.sqlalchemy.schema import create_schema_sql, create_table_sql, lock_table
from shedlock_py.providers.sqlalchemy.statements import Statement, Statements, by_name
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest

_NO_VALUES: Mapping[str, object] = {}


class SqlCommand(NamedTuple):
    """The command: one statement with its values, to be carried out in a transaction of its own."""

    statement: Statement
    values: Mapping[str, object] = _NO_VALUES
    can_grant: bool = False
    """A lock, if the statement is carried out."""
    is_of_holder: bool = False
    """Extends, releases or undoes what was granted. A connection is kept free for these."""


class SqlReply(NamedTuple):
    """The reply: the rows, or how many were found or changed, or the number in MySQL's OK packet."""

    rows: Sequence[Sequence[Any]] = ()
    changed: int = 0
    id: int = 0


T = TypeVar("T")
SqlProgram = Program[SqlCommand, SqlReply, T]


class SqlPrograms(StorePrograms):
    """The programs for one table of one database.

    :param default_schema: that of every session, such as the database in the URL of MySQL; None: the database knows.
    :param make_dialect: the dialect of an engine that has seen the server: MySQL's and MariaDB's DDL differ.
    :param options: see :class:`StorePrograms`.
    """

    def __init__(
        self,
        dialect: Dialect,
        table_name: str,
        schema: str | None,
        extra_columns: bool,
        redact: Redact,
        make_dialect: Callable[[], Dialect],
        default_schema: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
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
        self._make_dialect = make_dialect
        self._redact = redact
        self._schema = schema
        self._as_given = self._table = lock_table(MetaData(), table_name, schema)
        self._sql = Statements(dialect, self._table, extra_columns)
        self.table_name = self._sql.table_name
        """As the user calls it."""
        if dialect.name == "sqlite":
            default_schema = "main"  # or a temporary table of the same name would be found first
        if schema is None and default_schema is not None and not set("%:") & set(default_schema):
            self._address(default_schema)
        self._is_located = schema is not None or default_schema is not None
        self._in_session_zone: Sequence[str] | None = None if self._sql.columns else ()

    def is_write(self, command: SqlCommand) -> bool:
        return command.can_grant

    # The programs

    def locate(self, *, is_of_holder: bool = False) -> SqlProgram[None]:
        """Find out, once, in which schema the table is by the default of sessions.

        A connection of the application's pool may have been sent ``SET search_path`` or ``USE`` since.
        """
        if self._is_located or self._sql.locate is None:
            return
        [[schema, is_there]] = (
            yield SqlCommand(self._sql.locate, {"formatted": self.table_name}, is_of_holder=is_of_holder)
        ).rows
        if schema is not None and not schema.startswith("pg_temp") and not set("%:") & set(schema):
            self._address(schema)
        self._is_located = bool(is_there)  # else it may be there next time, in another schema of the search path

    def _address(self, schema: str) -> None:
        self._table = lock_table(MetaData(), self._table.name, schema)
        self._sql = Statements(self.dialect, self._table, self.extra_columns)

    @property
    def verify_sql(self) -> str:
        return self._sql.verify_sql

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> SqlProgram[int | None]:
        request, operation = claim.request, "take_over" if force else "acquire"
        values = self._claim_values(claim)
        yield from self._check_columns(operation, request.name)
        kind = Kind.ACQUIRE
        if force:
            kind = Kind.TAKE_OVER_ABSENT if before is None else Kind.TAKE_OVER
        if before is not None:
            values["before_locked_by"] = before.locked_by
            values["before_locked_at"] = self._sql.clock.to_store(before.locked_at)
            values["before_token"] = before.fencing_token
        if self._sql.look is not None and (yield from self._is_held(operation, request, values)) and not force:
            return None
        statement = self._sql.claim(kind, has_fire_time=request.fire_time is not None)
        reply = yield SqlCommand(statement, values, can_grant=True)
        token = reply.id if statement.replies_with == "id" else reply.rows[0][0] if reply.rows else 0
        if token == TOO_LATE:
            raise fire_time_too_late(operation, request, self.fire_time_tolerance)
        if not token:
            return None
        if not self.extra_columns:
            return 0
        try:
            return check_token(token, operation, request.name)
        except ProviderError:
            yield from self.undo_claim(request.name, claim.locked_by, request.fire_time and request.fire_time - _BEFORE)
            raise

    def _is_held(self, operation: str, request: LockRequest, values: Mapping[str, object]) -> SqlProgram[bool]:
        """Whether the lock is held, or the fire time was granted: SQLite has one writer at a time, so a skip reads.

        SQLite takes any value in any column, and compares text with whatever it finds.
        """
        reply = yield SqlCommand(self._sql.look or self._sql.record, values)
        is_held, is_late, name, lock_until, fencing_token, last_fire_time = reply.rows[0]
        if is_late:
            raise fire_time_too_late(operation, request, self.fire_time_tolerance)
        if name is None:
            return False
        to_time(lock_until, self._sql.clock, operation, request.name, "lock_until")
        check_token(fencing_token, operation, request.name)
        if last_fire_time is not None:
            to_time(last_fire_time, self._sql.clock, operation, request.name, "last_fire_time")
        return bool(is_held)

    def _check_columns(self, operation: str, lock_name: str | None) -> SqlProgram[None]:
        """Once, before the first time is written or compared: whether it means the same to every session."""
        yield from self.locate()
        if self._in_session_zone is not None or self._sql.columns is None:
            return
        names = {"table": self._table.name, "schema": self._table.schema, "formatted": self._sql.table_name}
        reply = yield SqlCommand(self._sql.columns, names)
        if not reply.rows:
            return  # no table; it may be there next time
        columns = [column for column in TIMES if any(name == column and follows for name, follows in reply.rows)]
        if columns and self.dialect.name == "postgresql":
            raise refusal(operation, lock_name, self.table_name, columns)
        if columns:
            _logger.warning("%s", warning(self.table_name, columns))
        self._in_session_zone = columns

    def _claim_values(self, claim: Claim) -> dict[str, object]:
        request = claim.request
        if request.fire_time is not None and not self.extra_columns:
            raise ConfigurationError("a fire time needs the column last_fire_time: not with extra_columns=False")
        return {
            "name": request.name,
            "locked_by": claim.locked_by,
            "hold_ms": in_milliseconds(request.lock_at_most_for),
            "tolerance_ms": in_milliseconds(self.fire_time_tolerance),
            "fire_time": request.fire_time and self._sql.clock.to_store(request.fire_time),
            "now_us": time.time_ns() // 1000,  # for SQLite, which has no finer clock of its own than milliseconds
        }

    def hold(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> SqlProgram[bool]:
        yield from self.locate(is_of_holder=True)
        values = {**identifiers(lease), "hold_ms": in_milliseconds(lock_for)}
        reply = yield SqlCommand(self._sql.release if releasing else self._sql.extend, values, is_of_holder=True)
        return bool(reply.changed)

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> SqlProgram[bool]:
        yield from self.locate(is_of_holder=True)
        former = former_fire_time and self._sql.clock.to_store(former_fire_time)
        values = {"name": name, "locked_by": locked_by, "former_fire_time": former}
        reply = yield SqlCommand(self._sql.undo, values, is_of_holder=True)
        return bool(reply.changed)

    def force_release(self, name: str) -> SqlProgram[bool]:
        yield from self._check_columns("force_release", name)
        if self._in_session_zone:
            yield from self._read("force_release", name)
        reply = yield SqlCommand(self._sql.force_release, {"name": name})
        return bool(reply.changed)

    def forget_fire_time(self, name: str) -> SqlProgram[bool]:
        if not self.extra_columns:
            raise ConfigurationError("a fire time needs the column last_fire_time: not with extra_columns=False")
        yield from self.locate()
        reply = yield SqlCommand(self._sql.forget_fire_time, {"name": name})
        return bool(reply.changed)

    def prune(self, unused_for: timedelta) -> SqlProgram[int]:
        yield from self._check_columns("prune", None)
        if self._in_session_zone:
            yield from self._read_all("prune", "")
        reply = yield SqlCommand(self._sql.prune, {"hold_ms": -in_milliseconds(unused_for)})
        return reply.changed

    def record(self, name: str) -> SqlProgram[LockRecord | None]:
        return (yield from self._read("record", name))

    def records(self, prefix: str) -> SqlProgram[list[LockRecord]]:
        return (yield from self._read_all("records", prefix))

    def _read(self, operation: str, name: str) -> SqlProgram[LockRecord | None]:
        yield from self._check_columns(operation, name)
        reply = yield SqlCommand(self._sql.record, {"name": name})
        if not reply.rows:
            return None
        record = to_record(reply.rows[0], self._sql.clock, operation)
        self._check_zone(operation, record)
        return record

    def _read_all(self, operation: str, prefix: str) -> SqlProgram[list[LockRecord]]:
        """All records with a prefix, but for those that mean nothing: they must not hide the others."""
        yield from self._check_columns(operation, None)
        reply = yield SqlCommand(self._sql.records, {"size": len(prefix), "prefix": prefix})
        records, odd = [], []
        for row in reply.rows:
            try:
                records.append(to_record(row, self._sql.clock, operation))
            except ProviderError as error:
                odd.append(str(error))
        if odd:
            _logger.warning("left out of the records of table %s: %s", self.table_name, "; ".join(odd))
        for record in records:
            self._check_zone(operation, record)
        return records

    def _check_zone(self, operation: str, record: LockRecord) -> None:
        shift = other_zone(record) if self._in_session_zone else None
        if shift is not None:
            raise written_elsewhere(operation, record.name, shift, self.table_name, self._in_session_zone or ())

    def create_table_sql(self) -> str:
        return create_table_sql(self._as_given, self.dialect)

    def create_schema(self) -> SqlProgram[None]:
        """Look, create, look again: several processes may do it at once, and some may not create tables at all."""
        yield from self.locate()
        try:
            yield SqlCommand(self._sql.probe)
        except ProviderError as error:
            if missing(error.__cause__) is not Missing.TABLE:
                raise
        else:
            return
        ddl = create_schema_sql(self._table, self._make_dialect())
        failure: ProviderError | None = None
        try:
            yield SqlCommand(Statement(ddl, "count", ddl, by_name))
        except ProviderError as error:
            failure = error
        try:
            yield SqlCommand(self._sql.probe)
        except ProviderError:
            if failure is not None:
                raise failure from failure.__cause__
            raise

    # What errors mean

    def classify(self, error: Exception) -> Failure:
        return classify(error)

    def explain(self, error: Exception, failure: Failure, operation: str, lock_name: str | None) -> ProviderError:
        message = describe(operation, lock_name, self._redact(reason(error)))
        lack = missing(error)
        if lack is Missing.TABLE:
            message += (
                f" — create the table {self.table_name} once, with provider.create_schema() or "
                f"provider_from_url(url).create_schema(), or add lock_table(metadata) to your migrations"
            )
        if lack is Missing.SCHEMA and self._schema is not None:
            schema = self.dialect.identifier_preparer.quote_schema(self._schema)
            message += f" — create the schema once: CREATE SCHEMA {schema}"
        if lack is Missing.COLUMN:
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
        kind = ProviderError if failure is Failure.REFUSED else ProviderUnreachable
        return kind(message, operation=operation, lock_name=lock_name)


def identifiers(lease: Lease) -> dict[str, object]:
    """What tells the record of exactly this acquisition."""
    return {"name": lease.name, "locked_by": lease.locked_by, "fencing_token": lease.fencing_token}


Redact = Callable[[str], str]
_logger = logging.getLogger("shedlock_py")
_BEFORE = timedelta(microseconds=1)
