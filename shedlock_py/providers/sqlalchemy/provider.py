"""The two providers: one for threads, one for asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, text
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.util import greenlet_spawn

from shedlock_py._clock import monotonic
from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError, LeaseLostError
from shedlock_py.lease import Lease
from shedlock_py.providers.kit import (
    OPTIONS,
    AsyncProgramProvider,
    Permits,
    ProgramProvider,
    parse_timeout,
    parse_tolerance,
    split_options,
)
from shedlock_py.providers.sqlalchemy.connections import Connections
from shedlock_py.providers.sqlalchemy.engines import (
    FOR_ALL,
    POOL_SIZE,
    open_async_engine,
    open_engine,
    parse_url,
    refuse_private_database,
    refuse_shared_connection,
)
from shedlock_py.providers.sqlalchemy.files import with_absolute_path
from shedlock_py.providers.sqlalchemy.forks import Inherited, keep_for_ever
from shedlock_py.providers.sqlalchemy.loops import LoopEngine
from shedlock_py.providers.sqlalchemy.opening import connect_in_time
from shedlock_py.providers.sqlalchemy.programs import SqlCommand, SqlPrograms, SqlReply, identifiers
from shedlock_py.providers.sqlalchemy.snapshots import explained_conflicts
from shedlock_py.providers.sqlalchemy.watchdog import end_at

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
    )  # brings the ORM along: half of the time of importing


class SqlAlchemyLockProvider(ProgramProvider):
    """Locks in a table of a SQL database: SQLite (a file), PostgreSQL, MySQL and MariaDB.

    :param engine_or_url: the application's own ``Engine``, which we borrow and never close; or a URL, for which we
        open a small engine. We use connections of our own from the pool, never your session or transaction, and hold
        none while a task runs.
    :param table_name: the lock table; make it with :meth:`create_schema` or add :func:`lock_table` to your migrations.
    :param schema: the database schema of the table.
    :param extra_columns: False for a table of ShedLock for Java as it is: leases have no fencing token (None), and
        fire times are refused.
    :param timeout: how long an operation may take, everything included (5 s unless told); for URLs only, where it may
        stand as well (``?timeout=3s``).
    :param fire_time_tolerance: how far a fire time may lie in the future of the database's clock.
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
    ) -> None:
        if hasattr(engine_or_url, "sync_engine"):
            raise ConfigurationError("this is an AsyncEngine: give it to AsyncSqlAlchemyLockProvider")
        if isinstance(engine_or_url, Engine) and engine_or_url.dialect.is_async:
            raise ConfigurationError(
                "this engine has an async driver: give an AsyncEngine to AsyncSqlAlchemyLockProvider"
            )
        in_url: dict[str, str] = {}
        if isinstance(engine_or_url, Engine):
            engine = engine_or_url
            seconds = parse_timeout(timeout, None, is_managed=False)
        else:
            url, in_url = _split_options(engine_or_url)
            seconds = parse_timeout(timeout, in_url.get("timeout"), is_managed=True)
            engine = open_engine(with_absolute_path(parse_url(url, is_async=False)), seconds or 0)
        refuse_private_database(engine.url)
        refuse_shared_connection(engine)
        self._engine = engine
        programs = SqlPrograms(
            engine.dialect,
            table_name,
            schema,
            extra_columns,
            _redactor(engine.url),
            lambda: engine.dialect,
            _default_schema(engine.url),
            clock=monotonic,
            timeout=seconds,
            fire_time_tolerance=parse_tolerance(fire_time_tolerance, in_url.get("fire_time_tolerance")),
        )
        self._sql_client = _Client(engine, is_managed=seconds is not None)
        super().__init__(programs, self._sql_client)

    def create_table_sql(self) -> str:
        """The statement with which :meth:`create_schema` makes the lock table, without asking the database.

        For people who run DDL themselves. For a ``mysql://`` URL it suits MySQL and MariaDB alike.
        """
        return self.programs.create_table_sql()

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
        self.run(self.programs.carry_out("verify", lease.name, self.programs.locate()))
        with explained_conflicts():
            row = connection.execute(text(self.programs.verify_sql), identifiers(lease)).first()
        _require(lease, row)

    def close(self) -> None:
        """Close the connections that we opened ourselves; those of a borrowed engine stay as they are."""
        self._sql_client.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.programs.table_name} at {_shown(self._engine.url)}>"


class _Client:
    """Carries statements out, for threads."""

    def __init__(self, engine: Engine, *, is_managed: bool) -> None:
        self._is_managed = is_managed
        has_server = is_managed and engine.dialect.name != "sqlite"
        if has_server:
            connect_in_time(engine)
        self._connections = Connections(engine, is_managed, end_at if has_server else None)
        self._inherited = Inherited(engine)
        self._permits = Permits(POOL_SIZE)
        self._permits_for_all = Permits(FOR_ALL)

    def execute(self, ask: SqlCommand, timeout: float | None) -> SqlReply:
        if timeout is None:
            self._inherited.abandon()
            return self._connections.ask(self._connections.take(None), ask, None)
        until = monotonic() + timeout
        may_go = nullcontext() if ask.is_of_holder else self._permits_for_all.one_until(until)
        with may_go, self._permits.one_until(until):
            self._inherited.abandon()
            return self._connections.ask(self._connections.take(until), ask, until)

    def close(self) -> None:
        if self._is_managed:
            try:
                self._inherited.abandon()
            except RuntimeError:
                return  # a forked child that could not use them, and has none
            self._connections.close()


class AsyncSqlAlchemyLockProvider(AsyncProgramProvider):
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
    ) -> None:
        from sqlalchemy.ext.asyncio import AsyncEngine  # late: loads the ORM

        if isinstance(engine_or_url, Engine):
            raise ConfigurationError("this is not an AsyncEngine: give it to SqlAlchemyLockProvider")
        in_url: dict[str, str] = {}
        self._sql_client: _AsyncClient | _LoopsClient
        if isinstance(engine_or_url, AsyncEngine):
            engine = engine_or_url
            seconds = parse_timeout(timeout, None, is_managed=False)
            refuse_private_database(engine.url)
            refuse_shared_connection(engine.sync_engine)
            self._sql_client = _AsyncClient(engine)
        else:
            url, in_url = _split_options(engine_or_url)
            seconds = parse_timeout(timeout, in_url.get("timeout"), is_managed=True)
            engine = open_async_engine(with_absolute_path(parse_url(url, is_async=True)), seconds or 0)
            self._sql_client = _LoopsClient(engine, seconds or 0)
        self._engine = engine
        programs = SqlPrograms(
            engine.dialect,
            table_name,
            schema,
            extra_columns,
            _redactor(engine.url),
            self._sql_client.dialect,
            _default_schema(engine.url),
            clock=monotonic,
            timeout=seconds,
            fire_time_tolerance=parse_tolerance(fire_time_tolerance, in_url.get("fire_time_tolerance")),
        )
        super().__init__(programs, self._sql_client)

    def create_table_sql(self) -> str:
        """See :meth:`SqlAlchemyLockProvider.create_table_sql`."""
        return self.programs.create_table_sql()

    async def verify(self, lease: Lease, connection: AsyncConnection) -> None:
        """See :meth:`SqlAlchemyLockProvider.verify`."""
        await self.run(self.programs.carry_out("verify", lease.name, self.programs.locate()))
        with explained_conflicts():
            row = (await connection.execute(text(self.programs.verify_sql), identifiers(lease))).first()
        _require(lease, row)

    async def close(self) -> None:
        """Close the connections that this event loop opened; those of a borrowed engine stay as they are."""
        await self._sql_client.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.programs.table_name} at {_shown(self._engine.url)}>"


class _AsyncClient:
    """Carries statements out on the user's engine, for asyncio."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._connections = Connections(engine.sync_engine, is_managed=False)
        self._inherited = Inherited(engine.sync_engine)
        self._engine = engine

    async def execute(self, ask: SqlCommand, _timeout: float | None) -> SqlReply:
        self._inherited.abandon()
        connection = await greenlet_spawn(self._connections.take, None)
        return await greenlet_spawn(self._connections.ask, connection, ask, None)

    def dialect(self) -> Dialect:
        return self._engine.dialect

    async def close(self) -> None:
        pass


class _LoopsClient:
    """Carries statements out, for asyncio, with an engine of our own for each event loop."""

    def __init__(self, engine: AsyncEngine, timeout: float) -> None:
        self._url = engine.url
        self._timeout = timeout
        self._inherited = Inherited(engine.sync_engine)
        self._loops: dict[asyncio.AbstractEventLoop, LoopEngine] = {}
        self._process = os.getpid()

    async def execute(self, ask: SqlCommand, timeout: float | None) -> SqlReply:  # noqa: ASYNC109 (of the kit's client)
        self._inherited.abandon()
        return await self.of_this_loop().execute(ask, self._timeout if timeout is None else timeout)

    def dialect(self) -> Dialect:
        return self.of_this_loop().engine.dialect

    async def close(self) -> None:
        await self.of_this_loop().engine.dispose()

    def of_this_loop(self) -> LoopEngine:
        if self._process != os.getpid():
            keep_for_ever(loop_engine.engine.pool for loop_engine in self._loops.values())
            self._loops = {}
            self._process = os.getpid()
        # Connections belong to the event loop that opened them. Loops run in several threads, but each adds only
        # itself, and each step is atomic: no lock, which a fork could leave taken.
        loop = asyncio.get_running_loop()
        mine = self._loops.get(loop)
        if mine is None:
            for other in list(self._loops):
                gone = self._loops.pop(other, None) if other.is_closed() else None
                if gone is not None:
                    gone.hang_up()
            mine = self._loops[loop] = LoopEngine(self._url, self._timeout)
        return mine


# What both providers share


def _split_options(url: Any) -> tuple[URL | str, dict[str, str]]:
    """``url`` without our own options, and those."""
    if isinstance(url, str):
        return split_options(url)
    if not isinstance(url, URL):
        return url, {}  # parse_url() says what is wrong
    in_url = {name: value for name, value in url.query.items() if name in OPTIONS and isinstance(value, str)}
    return url.difference_update_query(in_url), in_url


def _default_schema(url: URL) -> str | None:
    """What MySQL calls a database. The others know it themselves."""
    return url.database if url.get_backend_name() in ("mysql", "mariadb") else None


def _passwords(url: URL) -> Mapping[str, str]:
    """Those among the options of ``url`` (``?password=…``), by their names there."""
    names = ("password", "passwd", "sslpassword", "ssl_password")
    return {name: str(value) for name, value in url.query.items() if name.lower() in names}


def _shown(url: URL) -> str:
    return url.update_query_dict(dict.fromkeys(_passwords(url), "***")).render_as_string(hide_password=True)


def _redactor(url: URL) -> Callable[[str], str]:
    """Takes the passwords out of a driver's message, should one be in there."""
    passwords = [password for password in (str(url.password or ""), *_passwords(url).values()) if password]

    def redact(message: str) -> str:
        for password in passwords:
            message = message.replace(password, "***")
        return message

    return redact


def _require(lease: Lease, row: object) -> None:
    if row is None:
        raise LeaseLostError(f"lock {lease.name!r}: this lease has ended or was taken over; roll back")
