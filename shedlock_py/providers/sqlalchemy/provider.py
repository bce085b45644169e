"""The two shells around the algorithm: one asks the database directly, one awaits it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import URL, text
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.util import greenlet_spawn

from shedlock_py._aio import TimeLimit, shielded
from shedlock_py._clock import monotonic
from shedlock_py._program import run, run_async
from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError, LeaseLostError
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.providers.sqlalchemy.algorithm import Answer, Ask, SqlAlgorithm, identifiers
from shedlock_py.providers.sqlalchemy.connections import Connections
from shedlock_py.providers.sqlalchemy.engines import (
    ANSWER_SECONDS,
    POOL_SECONDS,
    open_async_engine,
    open_engine,
    parse_url,
    refuse_private_database,
    refuse_shared_connection,
)
from shedlock_py.providers.sqlalchemy.failures import NotSent
from shedlock_py.providers.sqlalchemy.forks import Inherited, keep_for_ever
from shedlock_py.providers.sqlalchemy.loops import LoopEngine
from shedlock_py.rules import Lease, LockRecord, LockRequest

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import (
        AsyncConnection,
        AsyncEngine,
    )  # brings the ORM along: half of the time of importing


class SqlAlchemyLockProvider(LockProvider):
    """Locks in a table of a SQL database: SQLite (a file), PostgreSQL, MySQL and MariaDB.

    :param engine_or_url: the application's own ``Engine``, which we borrow and never close; or a URL, for which we
        open a small engine with time limits (connect 3 s, answer 5 s). We use connections of our own from the pool,
        never your session or transaction, and hold none while a task runs.
    :param table_name: the lock table; make it with :meth:`create_schema` or add :func:`lock_table` to your migrations.
    :param schema: the database schema of the table.
    :param extra_columns: False for a table of ShedLock for Java as it is: leases have no fencing token (None), and
        fire times are refused.
    :raises ConfigurationError: a URL, driver or dialect that cannot work.
    """

    def __init__(
        self,
        engine_or_url: Engine | URL | str,
        *,
        table_name: str = "shedlock",
        schema: str | None = None,
        extra_columns: bool = True,
    ) -> None:
        if hasattr(engine_or_url, "sync_engine"):
            raise ConfigurationError("this is an AsyncEngine: give it to AsyncSqlAlchemyLockProvider")
        if isinstance(engine_or_url, Engine) and engine_or_url.dialect.is_async:
            raise ConfigurationError(
                "this engine has an async driver: give an AsyncEngine to AsyncSqlAlchemyLockProvider"
            )
        self._is_own = not isinstance(engine_or_url, Engine)
        engine = (
            engine_or_url
            if isinstance(engine_or_url, Engine)
            else open_engine(parse_url(engine_or_url, is_async=False))
        )
        refuse_private_database(engine.url)
        refuse_shared_connection(engine)
        self._engine = engine
        self._connections = Connections(engine, self._is_own)
        self._inherited = Inherited(engine, self._connections.abandon_idle)
        redact = _redactor(engine.url)
        self._algorithm = SqlAlgorithm(engine.dialect, table_name, schema, extra_columns, monotonic, redact)

    def acquire(self, request: LockRequest) -> Lease | None:
        return run(self._algorithm.acquire(request), self._execute)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return run(self._algorithm.extend(lease, lock_at_most_for), self._execute)

    def release(self, lease: Lease) -> bool:
        return run(self._algorithm.release(lease), self._execute)

    def record(self, name: str) -> LockRecord | None:
        return run(self._algorithm.record(name), self._execute)

    def records(self, prefix: str = "") -> list[LockRecord]:
        return run(self._algorithm.records(prefix), self._execute)

    def force_release(self, name: str) -> bool:
        return run(self._algorithm.force_release(name), self._execute)

    def take_over(self, request: LockRequest) -> Lease:
        return run(self._algorithm.take_over(request), self._execute)

    def prune(self, unused_for: Duration) -> int:
        return run(self._algorithm.prune(unused_for), self._execute)

    def create_schema(self) -> None:
        return run(self._algorithm.create_schema(self._dialect()), self._execute)

    def create_table_sql(self) -> str:
        """The statement with which :meth:`create_schema` makes the lock table, without asking the database.

        For people who run DDL themselves. For a ``mysql://`` URL it suits MySQL and MariaDB alike.
        """
        return self._algorithm.create_table_sql()

    def verify(self, lease: Lease, connection: Connection) -> None:
        """Make sure, inside your own transaction, that ``lease`` is still held; call it as the *last* statement.

        Locks the record against a successor until you commit (PostgreSQL, MySQL, MariaDB; SQLite has one writer
        anyway), so a stale holder rolls back. First instead of last, it would block the extension of the lease.
        Begin and commit the transaction inside the guard: the release of the lease waits for it.

        :raises LeaseLostError: the lease has ended; roll back.
        """
        row = connection.execute(text(self._algorithm.verify_sql), identifiers(lease)).first()
        _require(lease, row)

    def close(self) -> None:
        """Close the connections that we opened ourselves; those of a borrowed engine stay as they are."""
        if self._is_own:
            try:
                self._inherited.abandon()
            except RuntimeError:
                return  # a forked child that could not use them, and has none
            self._connections.close_idle()
            self._engine.dispose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._algorithm.table_name} at {_shown(self._engine.url)}>"

    def _dialect(self) -> Dialect:
        return self._engine.dialect

    def _execute(self, ask: Ask) -> Answer:
        self._inherited.abandon()
        return self._connections.ask(self._connections.take(), ask)


class AsyncSqlAlchemyLockProvider(AsyncLockProvider):
    """:class:`SqlAlchemyLockProvider` for asyncio: an ``AsyncEngine`` of yours, or a URL.

    A provider made from a URL may be used from several event loops, one after the other or at once: each has its own
    small engine. An ``AsyncEngine`` of yours belongs to one loop, as SQLAlchemy says.
    """

    def __init__(
        self,
        engine_or_url: AsyncEngine | URL | str,
        *,
        table_name: str = "shedlock",
        schema: str | None = None,
        extra_columns: bool = True,
    ) -> None:
        from sqlalchemy.ext.asyncio import AsyncEngine  # late: loads the ORM

        if isinstance(engine_or_url, Engine):
            raise ConfigurationError("this is not an AsyncEngine: give it to SqlAlchemyLockProvider")
        self._is_own = not isinstance(engine_or_url, AsyncEngine)
        engine = (
            engine_or_url
            if isinstance(engine_or_url, AsyncEngine)
            else open_async_engine(parse_url(engine_or_url, is_async=True))
        )
        refuse_private_database(engine.url)
        refuse_shared_connection(engine.sync_engine)
        self._engine = engine
        self._borrowed = None if self._is_own else Connections(engine.sync_engine, is_own=False)
        # PostgreSQL's statements have the watchdog.
        self._answer_seconds = ANSWER_SECONDS if self._is_own and engine.dialect.name != "postgresql" else None
        self._loops: dict[asyncio.AbstractEventLoop, LoopEngine] = {}
        self._process = os.getpid()
        self._inherited = Inherited(engine.sync_engine)
        redact = _redactor(engine.url)
        self._algorithm = SqlAlgorithm(engine.dialect, table_name, schema, extra_columns, monotonic, redact)

    async def acquire(self, request: LockRequest) -> Lease | None:
        return await shielded(run_async(self._algorithm.acquire(request), self._execute), when_abandoned=self.release)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        # To its end even if cancelled: a release that overtook it would be undone by it.
        return await shielded(run_async(self._algorithm.extend(lease, lock_at_most_for), self._execute))

    async def release(self, lease: Lease) -> bool:
        return await shielded(run_async(self._algorithm.release(lease), self._execute))

    # The others, too: SQLAlchemy loses the connection of a call that is cancelled at a bad moment.

    async def record(self, name: str) -> LockRecord | None:
        return await shielded(run_async(self._algorithm.record(name), self._execute))

    async def records(self, prefix: str = "") -> list[LockRecord]:
        return await shielded(run_async(self._algorithm.records(prefix), self._execute))

    async def force_release(self, name: str) -> bool:
        return await shielded(run_async(self._algorithm.force_release(name), self._execute))

    async def take_over(self, request: LockRequest) -> Lease:
        return await shielded(run_async(self._algorithm.take_over(request), self._execute), when_abandoned=self.release)

    async def prune(self, unused_for: Duration) -> int:
        return await shielded(run_async(self._algorithm.prune(unused_for), self._execute))

    async def create_schema(self) -> None:
        return await shielded(run_async(self._algorithm.create_schema(self._dialect()), self._execute))

    def create_table_sql(self) -> str:
        """See :meth:`SqlAlchemyLockProvider.create_table_sql`."""
        return self._algorithm.create_table_sql()

    async def verify(self, lease: Lease, connection: AsyncConnection) -> None:
        """See :meth:`SqlAlchemyLockProvider.verify`."""
        row = (await connection.execute(text(self._algorithm.verify_sql), identifiers(lease))).first()
        _require(lease, row)

    async def close(self) -> None:
        """Close the connections that this event loop opened; those of a borrowed engine stay as they are."""
        if self._is_own:
            await self._engine_of_this_loop().dispose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._algorithm.table_name} at {_shown(self._engine.url)}>"

    def _dialect(self) -> Dialect:
        return self._engine_of_this_loop().dialect  # one that has seen the server: MySQL's and MariaDB's DDL differ

    async def _execute(self, ask: Ask) -> Answer:
        connections = self._connections_of_this_loop()
        try:
            with TimeLimit(POOL_SECONDS if self._is_own else None):
                connection = await greenlet_spawn(connections.take)
        except TimeoutError as error:
            raise NotSent from error
        with TimeLimit(self._answer_seconds):
            return await greenlet_spawn(connections.ask, connection, ask)

    def _connections_of_this_loop(self) -> Connections:
        self._inherited.abandon()
        return self._loop_engine().connections if self._borrowed is None else self._borrowed

    def _engine_of_this_loop(self) -> AsyncEngine:
        return self._loop_engine().engine if self._is_own else self._engine

    def _loop_engine(self) -> LoopEngine:
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
            mine = self._loops[loop] = LoopEngine(self._engine.url)
        return mine


# What both shells share


def _passwords(url: URL) -> dict[str, str]:
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
