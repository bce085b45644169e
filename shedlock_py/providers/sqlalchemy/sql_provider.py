"""The provider for threads and the provider for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import URL
from sqlalchemy.engine import Engine

from shedlock_py.errors import ConfigurationError
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
from shedlock_py.providers.sqlalchemy.sql_programs import SqlPrograms
from shedlock_py.providers.sqlalchemy.sqlite_files import missing_file
from shedlock_py.providers.sqlalchemy.transactions import check_lease, verify_in, verify_in_async
from shedlock_py.runtime.versions import sql_install_line

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # imported late elsewhere: loads the ORM


_POOL = (
    "a connection of your engine: the pool is used up, or the database does not reply; keep pool_timeout below a sixth "
    "of lock_at_most_for"
)


class _SqlProvider:
    programs: SqlPrograms
    _client: Any

    def create_table_sql(self) -> str:
        """Return the statement with which :meth:`create_schema` creates the lock table. This does not connect.

        For users who run DDL themselves. For a ``mysql://`` URL it works on MySQL and MariaDB. With ``history`` there
        are two statements, with a semicolon between them.
        """
        return self.programs.create_table_sql()

    @property
    def has_fire_times(self) -> bool:
        """True if the table has a column for fire times. False with ``extra_columns=False``."""
        return self.programs.extra_columns

    @property
    def waits_for(self) -> str | None:
        """A text while requests wait for a connection of a user's engine. SQLAlchemy waits 30 s for its pool."""
        return _POOL if self._client.is_waiting_for_pool() else None

    def _missing_file(self) -> str | None:
        """Return the path of the SQLite file if it does not exist."""
        return missing_file(self._client.engine.url)


class SqlAlchemyLockProvider(_SqlProvider, ProgramProvider):
    """Locks in a table of a SQL database: SQLite (a file), PostgreSQL, MySQL and MariaDB.

    :param engine_or_url: the application's ``Engine``, which the provider never closes; or a URL, for which the
        provider opens a small engine. The provider takes its own connections from the pool. It never uses your session
        or transaction, and holds no connection while a task runs.
    :param table_name: the lock table. Create it with :meth:`create_schema`, or add :func:`lock_table` to your
        migrations.
    :param schema: the database schema of the table.
    :param extra_columns: False for an unchanged table of ShedLock for Java: leases have no fencing token (None), and
        fire times are refused.
    :param timeout: the time limit of a whole operation (default: 5 s). Only for URLs, which may also contain it
        (``?timeout=3s``).
    :param fire_time_tolerance: how far a fire time may be ahead of the database's clock.
    :param history: the number of runs to keep for each lock name in the table ``<table_name>_runs``, for :meth:`runs`.
    :param idle_timeout: the time after which an idle connection is closed (default: 60 s), so that a serverless
        database can sleep between two runs. Only for URLs, which may also contain it (``?idle_timeout=5m``).
    :param prepare: True lets psycopg prepare the statements that a connection repeats. They are faster, but fail behind
        a pooler such as PgBouncer in transaction mode. Only for URLs (``?prepare=yes``).
    :raises ConfigurationError: the URL, the driver or the dialect cannot work.
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

    def verify(self, lease: Lease, connection: object) -> None:
        """Check in your own transaction that ``lease`` is still held. Call it as the *last* statement.

        It locks the record against a successor until you commit, so a stale holder rolls back. As the first statement,
        it would block the extension of the lease. Begin and commit the transaction inside the guard: the release of the
        lease waits for it.

        On PostgreSQL the transaction needs READ COMMITTED, the default level. At REPEATABLE READ and SERIALIZABLE, a
        transaction sees and locks rows as they were when it began. Any later heartbeat then makes this fail ("could not
        serialize access due to concurrent update"). MariaDB from 11.6.2 fails in the same way, and so does every server
        with ``innodb_snapshot_isolation``. Without a heartbeat (``keep_alive=False``) every level works.

        :param connection: the connection of the transaction, to the database of the locks: ``Connection`` or
            ``Session`` of SQLAlchemy, ``django.db.connection``, or a connection or cursor of psycopg, psycopg2,
            PyMySQL, mysqlclient or sqlite3.
        :raises LeaseLostError: the lease has ended. Roll back.
        :raises ConfigurationError: another object, or a connection in autocommit mode.
        """
        check_lease(lease)
        self._drive(self.programs.locate(), "verify", lease.name)
        with explained_conflicts():
            verify_in(connection, self.programs, lease)


class AsyncSqlAlchemyLockProvider(_SqlProvider, AsyncProgramProvider):
    """:class:`SqlAlchemyLockProvider` for asyncio: with your ``AsyncEngine``, or a URL.

    A provider from a URL can be used in several event loops, in turn or at once: each has its own small engine.
    SQLAlchemy allows your ``AsyncEngine`` only in one event loop.
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
            from sqlalchemy.ext.asyncio import AsyncEngine  # imported late: loads the ORM
        except ImportError as error:  # SQLAlchemy was installed without its extra "asyncio"
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

    async def verify(self, lease: Lease, connection: object) -> None:
        """See :meth:`SqlAlchemyLockProvider.verify`.

        :param connection: ``AsyncConnection`` or ``AsyncSession`` of SQLAlchemy, or a connection of asyncpg, psycopg
            (``AsyncConnection``), aiomysql, asyncmy or aiosqlite.
        """
        check_lease(lease)
        await self._drive(self.programs.locate(), "verify", lease.name)
        with explained_conflicts():
            await verify_in_async(connection, self.programs, lease)


_OPTIONS = (*OPTIONS, "idle_timeout", "prepare")


def _limits(
    engine_or_url: Any,
    timeout: Duration | None,
    tolerance: Duration | None,
    history: int | None,
    idle_timeout: Duration | None,
    prepare: bool | None,
) -> tuple[Any, Limits, Sessions]:
    """Return the engine or the URL, without the provider's options, and these options."""
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
        url.database if url.get_backend_name() in ("mysql", "mariadb") else None,  # a schema of MySQL is a database
        url=url,
        prepares_nothing=client.prepares_nothing,
        **limits,
    )
    client.shown = f"{programs.table_name} at {shown_url(url)}"
    return programs
