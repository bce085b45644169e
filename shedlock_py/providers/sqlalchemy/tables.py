"""The tables of a provider: their place, the types of their columns, and their creation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import URL, MetaData, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.events import logger
from shedlock_py.providers.kit import Check, Failure, StorePrograms
from shedlock_py.providers.sqlalchemy.clock import CLOCKS
from shedlock_py.providers.sqlalchemy.engines import names_of, secrets_of
from shedlock_py.providers.sqlalchemy.errors import Missing, classify, grant_sql, hint, is_denied, missing
from shedlock_py.providers.sqlalchemy.runs import RunStatements
from shedlock_py.providers.sqlalchemy.schema import (
    RUNS,
    create_schema_sql,
    create_table_sql,
    folding_check,
    folding_collation,
    folding_warning,
    lock_table_of,
    odd_columns,
    refusal,
    rounding_refusal,
    runs_table_of,
    warning,
)
from shedlock_py.providers.sqlalchemy.statements import SqlCommand, SqlReply, Statement, Statements
from shedlock_py.runtime.program import Program

T = TypeVar("T")
SqlProgram = Program[SqlCommand, SqlReply, T]


class SqlTables(StorePrograms):
    """The lock table and the table of runs, for the programs.

    :param make_dialect: returns the dialect of an engine that has connected: the DDL of MySQL and MariaDB differ.
    :param default_schema: the default schema of every session, such as the database in a MySQL URL. None if only the
        database knows it.
    :param url: URL of the engine, for names in hints and for passwords to mask.
    :param prepares_nothing: the driver is psycopg without ``prepare=yes``.
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
        url: URL | None = None,
        prepares_nothing: bool = False,
        **options: Any,
    ) -> None:
        if url is not None:
            options |= {"passwords": secrets_of(url), "names": names_of(url)}
        super().__init__(**options)
        if dialect.name not in CLOCKS:
            raise ConfigurationError(
                f"SQL dialect {dialect.name!r} is not supported; supported are {', '.join(CLOCKS)}"
            )
        for name in (table_name, schema or ""):
            if not _is_usable(name):
                raise ConfigurationError(
                    f"{name!r} cannot name the lock table or its schema: for drivers, % and : are special"
                )
        if "." in table_name:  # ShedLock for Java accepts this; here it would name a table of the default schema
            where, _, table = table_name.rpartition(".")
            raise ConfigurationError(
                f"table_name={table_name!r} has a dot: name the schema by itself: schema={where!r}, "
                f"table_name={table!r}"
            )
        self.dialect = dialect
        self.extra_columns = extra_columns
        self.prepares_nothing = prepares_nothing
        self._make_dialect = make_dialect
        self._schema = schema
        self._url = url
        longest = dialect.max_identifier_length - (len(RUNS) if self.history else 0)
        if len(table_name.encode(errors="surrogatepass")) > longest:  # PostgreSQL would cut the name
            why = f", as history is kept in {table_name}{RUNS}" if self.history else ""
            raise ConfigurationError(
                f"the name of the lock table may have {longest} bytes at most{why}: {table_name!r}"
            )
        self._given_table = lock_table_of(dialect, table_name, schema)
        self.table_name = dialect.identifier_preparer.format_table(self._given_table)
        """The name as the user wrote it."""
        if dialect.name == "sqlite":
            default_schema = "main"  # SQLite would search temporary tables first
        if schema is None and default_schema is not None and _is_usable(default_schema):
            self._use_table(lock_table_of(dialect, table_name, default_schema))
        else:
            self._use_table(self._given_table)
        self._is_located = schema is not None or default_schema is not None or self._sql.locate is None
        self._is_prepared = self._is_located and self._sql.column_types is None
        self._columns_in_session_zone: Sequence[str] = ()

    # The place of the table and the types of its columns are read once

    def locate(self, *, is_urgent: bool = False) -> SqlProgram[None]:
        """Find the schema of the table from the default of sessions.

        The application may have sent ``SET search_path`` or ``USE`` on a connection of its pool.
        """
        if self._is_located or self._sql.locate is None:
            return
        [[schema, is_there]] = (
            yield SqlCommand(self._sql.locate, {"formatted": self.table_name}, is_urgent=is_urgent)
        ).rows
        if schema is not None and not schema.startswith("pg_temp") and _is_usable(schema):
            self._use_table(lock_table_of(self.dialect, self._table.name, schema))
        self._is_located = bool(is_there)  # if it is created later, it may be in another schema of the search path

    def _use_table(self, table: Table) -> None:
        self._table = table
        self._sql = Statements(self.dialect, table, self.extra_columns)
        self._runs = RunStatements(self._sql) if self.history else None

    def _prepare(self, operation: str, lock_name: str | None) -> SqlProgram[None]:
        """Locate the table and check its time columns, before any time is written or compared."""
        yield from self.locate()
        if self._is_prepared or self._sql.column_types is None:
            return
        reply = yield self._column_types()
        if not reply.rows:
            return  # the table does not exist yet
        used = [row for row in reply.rows if self.extra_columns or row[0].lower() != "last_fire_time"]
        in_session_zone, rounded = odd_columns(used)
        if in_session_zone and self.dialect.name == "postgresql":
            raise refusal(operation, lock_name, self.table_name, in_session_zone)
        if rounded:
            raise rounding_refusal(operation, lock_name, self.table_name, rounded, in_session_zone, self.dialect)
        if in_session_zone:
            logger.warning("%s", warning(self.table_name, in_session_zone))
        if collation := folding_collation(reply.rows):
            logger.warning("%s", folding_warning(self.table_name, collation, self.dialect))
        self._columns_in_session_zone = in_session_zone
        self._is_prepared = self._is_located

    def name_checks(self) -> SqlProgram[list[Check]]:
        """Check for ``shedlock doctor`` whether the table compares lock names byte by byte."""
        if self._sql.column_types is None or self.dialect.name == "postgresql":
            return []
        rows = (yield self._column_types()).rows
        return [folding_check(self.table_name, folding_collation(rows), self.dialect)] if rows else []

    def _column_types(self) -> SqlCommand:
        assert self._sql.column_types is not None
        names = {"table": self._table.name, "schema": self._table.schema, "formatted": self._sql.table_name}
        return SqlCommand(self._sql.column_types, names)

    # The schema

    def create_table_sql(self) -> str:
        tables = [self._given_table]
        if self.history:
            tables.append(runs_table_of(self._given_table, MetaData()))
        return ";\n".join(create_table_sql(table, self.dialect) for table in tables)

    def create_schema(self) -> SqlProgram[None]:
        yield from self.locate()
        yield from self._create(self._table, self._sql.probe)
        if self._runs is not None:
            yield from self._create(self._runs.table, self._runs.probe)
            self.resume_history()  # it may have paused because the table was missing

    def _create(self, table: Table, probe: Statement) -> SqlProgram[None]:
        """Probe, create, and probe again: other processes may do this now, and this user may not create tables."""
        try:
            yield SqlCommand(probe)
            return
        except ProviderError as error:
            if missing(error.__cause__) is not Missing.TABLE:
                raise self._not_created(error, table) from error.__cause__
        failure: ProviderError | None = None
        try:
            yield SqlCommand(Statement(create_schema_sql(table, self._make_dialect()), "count"))
        except ProviderError as error:
            failure = error
        try:
            yield SqlCommand(probe)
        except ProviderError:
            if failure is None:
                raise
            raise self._not_created(failure, table) from failure.__cause__

    def _not_created(self, error: ProviderError, table: Table) -> ProviderError:
        if isinstance(error, ProviderUnreachable) or (error.hint is not None and not is_denied(error.__cause__)):
            return error
        name = self.dialect.identifier_preparer.format_table(table)
        hint = (
            f"let a privileged user create {name}, or grant this user access to it: shedlock schema prints the SQL; "
            f"then {self.grant_sql(name)}"
        )
        return ProviderError(error.message, operation=error.operation, hint=hint)

    def grant_sql(self, table_name: str) -> str:
        """Return the statement that gives this user the rights for jobs on the table."""
        return grant_sql(self.dialect, table_name, self._schema, self._url)

    # The meaning of errors

    def classify(self, error: Exception) -> Failure:
        return classify(error)

    def text_of(self, error: Exception) -> str:
        original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        if isinstance(original, UnicodeEncodeError):  # its text quotes a character of the password
            return f"{original.encoding} cannot encode a character of the lock name, the user name or the password"
        return str(original) or ("no reply in time" if isinstance(original, TimeoutError) else type(original).__name__)

    def is_all_said(self, error: Exception) -> bool:
        return missing(error) in (Missing.TABLE, Missing.SCHEMA)

    def hint(self, error: Exception) -> str | None:
        statement = getattr(error, "statement", None) or ""
        if self._runs is not None and self._runs.table_name in statement:
            return hint(error, self.dialect, self._runs.table_name, self._schema, self._url, is_runs=True)
        return hint(error, self.dialect, self.table_name, self._schema, self._url)


def _is_usable(name: str) -> bool:
    """Return False if ``name`` contains ``%`` or ``:``, which are special for drivers."""
    return "%" not in name and ":" not in name
