"""The two providers: one for threads, one for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, text
from sqlalchemy.engine import Connection, Engine

from shedlock_py.errors import ConfigurationError, LeaseLostError
from shedlock_py.model.booleans import parse_boolean
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.lease import Lease
from shedlock_py.providers.kit import (
    OPTIONS,
    AsyncProgramProvider,
    Limits,
    ProgramProvider,
    duration_in,
    parse_limits,
    split_options,
)
from shedlock_py.providers.sqlalchemy.engines import Sessions, parse_url, shown_url
from shedlock_py.providers.sqlalchemy.errors import explained_conflicts
from shedlock_py.providers.sqlalchemy.sql_clients import (
    AsyncUrlClient,
    AsyncUserEngineClient,
    UrlClient,
    UserEngineClient,
)
from shedlock_py.providers.sqlalchemy.sql_programs import SqlPrograms, identifiers
from shedlock_py.providers.sqlalchemy.sqlite_files import missing_file
from shedlock_py.runtime.versions import sql_install_line

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine  # late elsewhere: loads the ORM


_POOL = (
    "a connection of your engine: the pool is used up, or the database does not reply; keep pool_timeout below a sixth "
    "of lock_at_most_for"
)


class _SqlProvider:
    """The base of both providers."""

    programs: SqlPrograms
    _client: Any

    def create_table_sql(self) -> str:
        """The statement with which :meth:`create_schema` makes the lock table. The database is not connected.

        For users who run DDL themselves. For a ``mysql://`` URL it suits MySQL and MariaDB alike. With ``history``
        there are two, with a semicolon between them.
        """
        return self.programs.create_table_sql()

    @property
    def has_fire_times(self) -> bool:
        """Whether the table has a column for them: not with ``extra_columns=False``."""
        return self.programs.extra_columns

    @property
    def waits_for(self) -> str | None:
        """A text while requests wait for a connection of a user's engine. SQLAlchemy waits 30 s for its pool."""
        return _POOL if self._client.is_waiting_for_pool() else None

    def _missing_file(self) -> str | None:
        """The path of the SQLite file, if it does not exist."""
        return missing_file(self._client.engine.url)


class SqlAlchemyLockProvider(_SqlProvider, ProgramProvider):
    """Locks in a table of a SQL database: SQLite (a file), PostgreSQL, MySQL and MariaDB.

    :param engine_or_url: the application's own ``Engine``, which the provider never closes; or a URL, for which the
        provider opens a small engine. The provider takes connections of its own from the pool, never your session or
        transaction, and holds none while a task runs.
    :param table_name: the lock table; make it with :meth:`create_schema` or add :func:`lock_table` to your migrations.
    :param schema: the database schema of the table.
    :param extra_columns: False for a table of ShedLock for Java as it is: leases have no fencing token (None), and
        fire times are refused.
    :param timeout: how long an operation may take, everything included (default: 5 s); for URLs only, which may also
        contain it (``?timeout=3s``).
    :param fire_time_tolerance: how far a fire time may lie in the future of the database's clock.
    :param history: how many runs of each lock name to keep, for :meth:`runs`, in the table ``<table_name>_runs``.
    :param idle_timeout: after how long an idle connection is closed (default: 60 s), so that a serverless database can
        sleep between two runs; for URLs only, which may also contain it (``?idle_timeout=5m``).
    :param prepare: True lets psycopg prepare the statements that a connection repeats. They are then faster, but fail
        behind a pooler such as PgBouncer in transaction mode. For URLs only (``?prepare=yes``).
    :raises ConfigurationError: a URL, driver or dialect that cannot work.
    """

    programs: SqlPrograms

    def __init__(
        self,
        engine_or_url: Engine | URL | str,
        *,
        table_name: str = "shedlock",
        schema: str | None = None,
        extra_columns: bool = True,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
        history: int | None = None,
        idle_timeout: Duration | None = None,
        prepare: bool | None = None,
    ) -> None:
        if hasattr(engine_or_url, "sync_engine"):
            raise ConfigurationError("this is an AsyncEngine: give it to AsyncSqlAlchemyLockProvider")
        if isinstance(engine_or_url, Engine) and engine_or_url.dialect.is_async:
            raise ConfigurationError(
                "this engine has an async driver: give an AsyncEngine to AsyncSqlAlchemyLockProvider"
            )
        url, limits, sessions = _limits(engine_or_url, timeout, fire_time_tolerance, history, idle_timeout, prepare)
        client: UserEngineClient | UrlClient
        if isinstance(url, Engine):
            client = UserEngineClient(url)
        else:
            client = UrlClient(parse_url(url, is_async=False), sessions)
        super().__init__(_programs(client, table_name, schema, extra_columns, limits), client)

    def verify(self, lease: Lease, connection: Connection) -> None:
        """Make sure, inside your own transaction, that ``lease`` is still held; call it as the *last* statement.

        Locks the record against a successor until you commit (PostgreSQL, MySQL, MariaDB; SQLite has one writer
        anyway), so a stale holder rolls back. First instead of last, it would block the extension of the lease.
        Begin and commit the transaction inside the guard: the release of the lease waits for it.

        On PostgreSQL the transaction must be at READ COMMITTED, its default. At REPEATABLE READ and SERIALIZABLE a
        transaction sees, and locks, rows as they were when it began: each heartbeat since then makes this fail
        ("could not serialize access due to concurrent update"). So it does on MariaDB from 11.6.2, and wherever
        ``innodb_snapshot_isolation`` is on. Without a heartbeat (``keep_alive=False``) it works at every level.

        :raises LeaseLostError: the lease has ended; roll back.
        """
        self._drive(self.programs.locate(), "verify", lease.name)
        with explained_conflicts():
            _require(lease, connection.execute(text(self.programs.verify_sql), identifiers(lease)).first())


class AsyncSqlAlchemyLockProvider(_SqlProvider, AsyncProgramProvider):
    """:class:`SqlAlchemyLockProvider` for asyncio: an ``AsyncEngine`` of yours, or a URL.

    A provider made from a URL may be used from several event loops, one after the other or at once: each has its own
    small engine. An ``AsyncEngine`` of yours belongs to one loop, as SQLAlchemy says.
    """

    programs: SqlPrograms

    def __init__(
        self,
        engine_or_url: AsyncEngine | URL | str,
        *,
        table_name: str = "shedlock",
        schema: str | None = None,
        extra_columns: bool = True,
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
        history: int | None = None,
        idle_timeout: Duration | None = None,
        prepare: bool | None = None,
    ) -> None:
        try:
            from sqlalchemy.ext.asyncio import AsyncEngine  # late: loads the ORM
        except ImportError as error:  # SQLAlchemy was installed without its extra
            scheme = engine_or_url.partition("://")[0] if isinstance(engine_or_url, str) else ""
            line = sql_install_line(scheme, is_async=True)
            raise ConfigurationError(f"SQLAlchemy needs the package 'greenlet' for asyncio: {line}") from error
        if isinstance(engine_or_url, Engine):
            raise ConfigurationError("this is not an AsyncEngine: give it to SqlAlchemyLockProvider")
        url, limits, sessions = _limits(engine_or_url, timeout, fire_time_tolerance, history, idle_timeout, prepare)
        client: AsyncUserEngineClient | AsyncUrlClient
        if isinstance(url, AsyncEngine):
            client = AsyncUserEngineClient(url)
        else:
            client = AsyncUrlClient(parse_url(url, is_async=True), sessions)
        super().__init__(_programs(client, table_name, schema, extra_columns, limits), client)

    async def verify(self, lease: Lease, connection: AsyncConnection) -> None:
        """See :meth:`SqlAlchemyLockProvider.verify`."""
        await self._drive(self.programs.locate(), "verify", lease.name)
        with explained_conflicts():
            _require(lease, (await connection.execute(text(self.programs.verify_sql), identifiers(lease))).first())


_OPTIONS = (*OPTIONS, "idle_timeout", "prepare")


def _limits(
    engine_or_url: Any,
    timeout: Duration | None,
    tolerance: Duration | None,
    history: int | None,
    idle_timeout: Duration | None,
    prepare: bool | None,
) -> tuple[Any, Limits, Sessions]:
    """The engine, or the URL without the options of the provider; and these options."""
    url, in_url = engine_or_url, dict[str, str]()
    if isinstance(url, str):
        url, in_url = split_options(url, _OPTIONS)
    elif isinstance(url, URL):
        in_url = {name: value for name, value in url.query.items() if name in _OPTIONS and isinstance(value, str)}
        url = url.difference_update_query(in_url)
    is_managed = isinstance(url, str | URL)
    if not is_managed and (idle_timeout is not None or prepare is not None):
        raise ConfigurationError("idle_timeout= and prepare= are for URLs: set up your own engine where you make it")
    limits = parse_limits(timeout, tolerance, in_url, is_managed=is_managed, history=history)
    if idle_timeout is None:
        idle_timeout = duration_in(in_url, "idle_timeout", "60s")
    prepares = parse_boolean(in_url.get("prepare", "no") if prepare is None else prepare, "prepare")
    idle_seconds = parse_duration(idle_timeout, "idle_timeout").total_seconds()
    return url, limits, Sessions(limits["timeout"] or 0, idle_seconds, prepares)


def _programs(client: Any, table_name: str, schema: str | None, extra_columns: bool, limits: Limits) -> SqlPrograms:
    url: URL = client.engine.url
    programs = SqlPrograms(
        client.engine.dialect,
        table_name,
        schema,
        extra_columns,
        client.dialect,
        url.database if url.get_backend_name() in ("mysql", "mariadb") else None,  # MySQL's schemas are databases
        url=url,
        prepares_nothing=client.prepares_nothing,
        **limits,
    )
    client.shown = f"{programs.table_name} at {shown_url(url)}"
    return programs


def _require(lease: Lease, row: object) -> None:
    if row is None:
        raise LeaseLostError(f"lock {lease.name!r}: this lease has ended or was taken over; roll back")
