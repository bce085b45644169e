"""The operations on SQL: programs that yield statements and decide what the replies mean.

Each operation is one statement (SQLite's acquire reads first), idempotent per claim id: the kit may repeat a statement
that was carried out and whose reply was lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import MetaData
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from shedlock_py._program import Program
from shedlock_py.durations import in_milliseconds
from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.lease import Claim, Lease
from shedlock_py.providers.kit import Failure, StorePrograms, fire_time_too_late
from shedlock_py.providers.sqlalchemy.claims import TOO_LATE, ClaimKind
from shedlock_py.providers.sqlalchemy.clock import CLOCKS, check_token, to_record, to_time
from shedlock_py.providers.sqlalchemy.errors import Missing, classify, hint, missing
from shedlock_py.providers.sqlalchemy.schema import (
    TIME_COLUMNS,
    create_schema_sql,
    create_table_sql,
    lock_table,
    other_zone_error,
    refusal,
    warning,
    zone_shift,
)
from shedlock_py.providers.sqlalchemy.statements import Statement, Statements
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest

_NO_VALUES: Mapping[str, object] = {}


class SqlCommand(NamedTuple):
    """One statement with its values, to be carried out in a transaction of its own."""

    statement: Statement
    values: Mapping[str, object] = _NO_VALUES
    can_grant: bool = False
    """The statement may grant a lock."""
    is_of_holder: bool = False
    """The statement extends, releases or undoes what was granted. One connection of the pool is kept for these."""


class SqlReply(NamedTuple):
    """The rows; or how many rows were found or changed; or the number in MySQL's OK packet."""

    rows: Sequence[Sequence[Any]] = ()
    changed: int = 0
    id: int = 0


T = TypeVar("T")
SqlProgram = Program[SqlCommand, SqlReply, T]


class SqlPrograms(StorePrograms):
    """The programs for one table of one database.

    :param make_dialect: the dialect of an engine that has connected: the DDL of MySQL and MariaDB differ.
    :param default_schema: that of every session, such as the database in a URL of MySQL; None: the database knows.
    :param options: see :class:`StorePrograms`.
    """

    def __init__(
        self,
        dialect: Dialect,
        table_name: str,
        schema: str | None,
        extra_columns: bool,
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
            if not _is_usable(name):
                raise ConfigurationError(
                    f"{name!r} cannot name the lock table or its schema: drivers give % and : a meaning"
                )
        self.dialect = dialect
        self.extra_columns = extra_columns
        self._make_dialect = make_dialect
        self._schema = schema
        self._given_table = self._table = lock_table(MetaData(), table_name, schema)
        self._sql = Statements(dialect, self._table, extra_columns)
        self.table_name = self._sql.table_name
        """As the user wrote it."""
        if dialect.name == "sqlite":
            default_schema = "main"  # SQLite would search temporary tables first
        if schema is None and default_schema is not None and _is_usable(default_schema):
            self._use_schema(default_schema)
        self._is_located = schema is not None or default_schema is not None or self._sql.locate is None
        self._is_prepared = self._is_located and self._sql.column_types is None
        self._columns_in_session_zone: Sequence[str] = ()

    def is_write(self, command: SqlCommand) -> bool:
        return command.can_grant

    # The place of the table and the types of its columns, found out once

    def locate(self, *, is_of_holder: bool = False) -> SqlProgram[None]:
        """Find the schema of the table by the default of sessions.

        The application may have sent ``SET search_path`` or ``USE`` on a connection of its pool.
        """
        if self._is_located or self._sql.locate is None:
            return
        [[schema, is_there]] = (
            yield SqlCommand(self._sql.locate, {"formatted": self.table_name}, is_of_holder=is_of_holder)
        ).rows
        if schema is not None and not schema.startswith("pg_temp") and _is_usable(schema):
            self._use_schema(schema)
        self._is_located = bool(is_there)  # a table that is created later may be in another schema of the search path

    def _use_schema(self, schema: str) -> None:
        self._table = lock_table(MetaData(), self._table.name, schema)
        self._sql = Statements(self.dialect, self._table, self.extra_columns)

    def _prepare(self, operation: str, lock_name: str | None) -> SqlProgram[None]:
        """Before the first time is written or compared: locate the table, and check the types of its time columns."""
        yield from self.locate()
        if self._is_prepared or self._sql.column_types is None:
            return
        names = {"table": self._table.name, "schema": self._table.schema, "formatted": self._sql.table_name}
        reply = yield SqlCommand(self._sql.column_types, names)
        if not reply.rows:
            return  # no table yet
        columns = [column for column in TIME_COLUMNS if any(name == column and is_so for name, is_so in reply.rows)]
        if columns and self.dialect.name == "postgresql":
            raise refusal(operation, lock_name, self.table_name, columns)
        if columns:
            _logger.warning("%s", warning(self.table_name, columns))
        self._columns_in_session_zone = columns
        self._is_prepared = self._is_located

    # The operations

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> SqlProgram[int | None]:
        request, operation = claim.request, "take_over" if force else "acquire"
        values = self._claim_values(claim, before)
        if not self._is_prepared:
            yield from self._prepare(operation, request.name)
        if self._sql.read_before_claim is not None:
            reply = yield SqlCommand(self._sql.read_before_claim, values)
            if self._is_held(operation, request, reply.rows[0]) and not force:
                return None
        kind = ClaimKind.ACQUIRE
        if force:
            kind = ClaimKind.TAKE_OVER_ABSENT if before is None else ClaimKind.TAKE_OVER
        statement = self._sql.claims[kind, request.fire_time is not None]
        reply = yield SqlCommand(statement, values, can_grant=True)
        token = reply.id if statement.reply == "id" else reply.rows[0][0] if reply.rows else 0
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

    def _is_held(self, operation: str, request: LockRequest, row: Sequence[Any]) -> bool:
        """On SQLite: whether the lock is held, or the fire time was granted. Elsewhere the claim itself finds out.

        SQLite has one writer at a time, so a skip must not write. SQLite also takes any value in any column, and
        compares it with text, so the values are checked here.
        """
        is_held, is_late, name, lock_until, fencing_token, last_fire_time = row
        if is_late:
            raise fire_time_too_late(operation, request, self.fire_time_tolerance)
        if name is not None:
            to_time(lock_until, self._sql.clock, operation, request.name, "lock_until")
            check_token(fencing_token, operation, request.name)
            if last_fire_time is not None:
                to_time(last_fire_time, self._sql.clock, operation, request.name, "last_fire_time")
        return bool(is_held)

    def _claim_values(self, claim: Claim, before: LockRecord | None) -> dict[str, object]:
        request, to_store = claim.request, self._sql.clock.to_store
        if request.fire_time is not None:
            self._require_fire_times()
        values: dict[str, object] = {
            "name": request.name,
            "locked_by": claim.locked_by,
            "hold_ms": in_milliseconds(request.lock_at_most_for),
            "tolerance_ms": in_milliseconds(self.fire_time_tolerance),
            "fire_time": request.fire_time and to_store(request.fire_time),
            "now_us": time.time_ns() // 1000,  # for SQLite, whose own clock has milliseconds only
        }
        if before is not None:
            values["before_locked_by"] = before.locked_by
            values["before_locked_at"] = to_store(before.locked_at)
            values["before_token"] = before.fencing_token
        return values

    def _require_fire_times(self) -> None:
        if not self.extra_columns:
            raise ConfigurationError("a fire time needs the column last_fire_time: not with extra_columns=False")

    def hold(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> SqlProgram[bool]:
        if not self._is_located:
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

    def forget_fire_time(self, name: str) -> SqlProgram[bool]:
        self._require_fire_times()
        yield from self.locate()
        reply = yield SqlCommand(self._sql.forget_fire_time, {"name": name})
        return bool(reply.changed)

    def prune(self, unused_for: timedelta) -> SqlProgram[int]:
        yield from self._prepare("prune", None)
        if self._columns_in_session_zone:
            yield from self.records("", "prune")
        reply = yield SqlCommand(self._sql.prune, {"hold_ms": -in_milliseconds(unused_for)})
        return reply.changed

    def record(self, name: str, operation: str = "record") -> SqlProgram[LockRecord | None]:
        yield from self._prepare(operation, name)
        reply = yield SqlCommand(self._sql.record, {"name": name})
        if not reply.rows:
            return None
        record = to_record(reply.rows[0], self._sql.clock, operation)
        self._check_zone(operation, record)
        return record

    def records(self, prefix: str, operation: str = "records") -> SqlProgram[list[LockRecord]]:
        """All records with a prefix. A record with an odd value is left out, with a warning, and hides no others."""
        yield from self._prepare(operation, None)
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
        columns = self._columns_in_session_zone
        shift = zone_shift(record) if columns else None
        if shift is not None:
            raise other_zone_error(operation, record.name, shift, self.table_name, columns)

    # The schema

    def create_table_sql(self) -> str:
        return create_table_sql(self._given_table, self.dialect)

    def create_schema(self) -> SqlProgram[None]:
        """Probe, create, probe again: several processes may do it at once, and some may not create tables at all."""
        yield from self.locate()
        try:
            yield SqlCommand(self._sql.probe)
            return
        except ProviderError as error:
            if missing(error.__cause__) is not Missing.TABLE:
                raise
        failure: ProviderError | None = None
        try:
            yield SqlCommand(Statement(create_schema_sql(self._table, self._make_dialect()), "count"))
        except ProviderError as error:
            failure = error
        try:
            yield SqlCommand(self._sql.probe)
        except ProviderError:
            if failure is None:
                raise
            raise failure from failure.__cause__

    @property
    def verify_sql(self) -> str:
        return self._sql.verify_sql

    # The meaning of errors

    def classify(self, error: Exception) -> Failure:
        return classify(error)

    def text_of(self, error: Exception) -> str:
        original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        return str(original) or ("no reply in time" if isinstance(original, TimeoutError) else type(original).__name__)

    def hint(self, error: Exception) -> str | None:
        return hint(error, self.dialect, self.table_name, self._schema)


def identifiers(lease: Lease) -> dict[str, object]:
    """The values that identify the record of exactly this acquisition."""
    return {"name": lease.name, "locked_by": lease.locked_by, "fencing_token": lease.fencing_token}


def _is_usable(name: str) -> bool:
    """Drivers give % and : a meaning."""
    return "%" not in name and ":" not in name


_logger = logging.getLogger("shedlock_py")
_BEFORE = timedelta(microseconds=1)
