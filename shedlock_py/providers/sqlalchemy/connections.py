"""Executes statements directly with the driver, each in its own transaction, on raw connections of SQLAlchemy.

SQLAlchemy writes the statements, opens the connections and names the errors. Its own execution would call the
application's listeners: SQLAlchemy's recipe for SQLite transactions, ``event.listens_for(engine, "begin")``, rolled
back every acquire.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import Pool, PoolProxiedConnection, event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py.errors import ProviderError
from shedlock_py.providers.kit import NotSent, PooledConnection, TimedOut
from shedlock_py.providers.sqlalchemy.confirmation import listen_for_warnings
from shedlock_py.providers.sqlalchemy.errors import (
    FileReplaced,
    UnconfirmedCommit,
    is_outdated_plan,
    is_read_only,
    translated,
    translated_at_connect,
)
from shedlock_py.providers.sqlalchemy.sqlite_files import (
    has_file_of_path,
    note_open,
    path_of,
    require_usable,
    watch_files,
)
from shedlock_py.providers.sqlalchemy.statements import SqlCommand, SqlReply
from shedlock_py.providers.sqlalchemy.watchdog import WATCHDOG, Opening, Watchdog, current_opening, watch
from shedlock_py.runtime.process import OwningProcess, before_fork, is_from_signal, monotonic

_MOST_REPLACED = 100
_WARNINGS = "shedlock_py warnings"
_OPENED = "shedlock_py opened"
_SWITCHED = "shedlock_py switched"


class SqlConnections:
    """Executes statements on the connections of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._is_postgres = engine.dialect.name == "postgresql"
        self._path = path_of(engine.url) if engine.dialect.name == "sqlite" else None
        if self._path is not None:
            watch_files(engine, self._path)
            if not engine.dialect.is_async:
                _of_sqlite.add(ref(self, _of_sqlite.discard))

    def close_idle(self) -> None:
        """Close the idle connections of this process."""
        raise NotImplementedError

    def execute(
        self, pooled: PooledConnection[PoolProxiedConnection], command: SqlCommand, until: float | None
    ) -> SqlReply:
        """Return the reply to ``command`` before the moment ``until``. Set ``is_good`` of a reusable connection."""
        connection, dialect = pooled.connection, self.engine.dialect
        watchdog = connection.info.get(WATCHDOG)
        try:
            if self._path is not None and not has_file_of_path(connection):
                raise NotSent from FileReplaced("the file was replaced by another one")
            if watchdog is not None:
                watchdog.set(until)
            reply = SqlReply()
            check = command.check
            if check is None or check.passes(self._perform(connection, check.command, until).rows[0]):
                reply = self._perform(connection, command, until)
            if self._path is not None and not has_file_of_path(connection):
                raise FileReplaced("the file was replaced by another one meanwhile")
            pooled.is_good = True
            return reply
        except (UnconfirmedCommit, ProviderError):  # the server has replied, or the check has refused the row
            pooled.is_good = True
            raise
        except dialect.loaded_dbapi.Error as error:
            is_late = watchdog is not None and watchdog.call_off()
            is_broken = is_late or dialect.is_disconnect(error, connection, None)
            known = translated(error, dialect, command.statement.sql, is_broken=is_broken)
            pooled.is_good = not (is_broken or is_read_only(known) or is_outdated_plan(known))
            if is_late:
                raise TimedOut("a reply", sent=True) from error
            raise known from None  # known.orig is the driver's error
        finally:
            if watchdog is not None and watchdog.call_off():
                pooled.is_good = False  # the reply arrived just when the watchdog ended the connection

    def _perform(self, connection: PoolProxiedConnection, command: SqlCommand, until: float | None) -> SqlReply:
        warnings = None
        if self._is_postgres:
            warnings = connection.info.get(_WARNINGS)
            if warnings is None:
                warnings = connection.info[_WARNINGS] = listen_for_warnings(self._driver_of(connection))
            warnings.is_unconfirmed = False  # an earlier warning was for a statement of the application
        statement, values = command.statement, command.values
        names = statement.names
        cursor = connection.cursor()
        try:
            if self._path is not None and until is not None:
                cursor.execute(f"PRAGMA busy_timeout = {max(0, int((until - monotonic()) * 1000))}")
            cursor.execute(statement.sql, values if names is None else tuple(map(values.__getitem__, names)))
            match statement.reply:
                case "rows":
                    rows = cursor.fetchall()
                    reply = SqlReply(rows, len(rows))
                case "count":
                    reply = SqlReply(changed=cursor.rowcount)
                case "id":
                    reply = SqlReply(id=cursor.lastrowid)
                case "backend":
                    reply = SqlReply(cursor.fetchall(), id=self._driver_of(connection).info.backend_pid)
        except BaseException:
            if self._path is not None:
                # The error's traceback keeps the cursor, and an unfinished statement keeps SQLite's write lock.
                cursor.close()
            raise
        cursor.close()
        if warnings is not None and warnings.is_unconfirmed:
            raise UnconfirmedCommit(
                "the server did it but warns that it may not last: no synchronous standby has confirmed it"
            )
        return reply

    def _driver_of(self, connection: PoolProxiedConnection) -> Any:
        driver: Any = connection.dbapi_connection
        return self.engine.dialect.get_driver_connection(driver)


class ManagedConnections(SqlConnections):
    """Connections of an engine that the provider opened, in autocommit. The kit's pool keeps them."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        if self._path is None and (self._is_postgres or not engine.dialect.is_async):
            watch(engine)  # not needed for SQLite (busy_timeout) or async MySQL drivers (asyncio can cancel them)

    def connect(self, until: float) -> PoolProxiedConnection:
        """Open a connection.

        :raises TimedOut: the watchdog ended SQLAlchemy's first queries.
        """
        if self._path is not None:
            require_usable(self._path)
        opening = Opening(until)
        token = current_opening.set(opening)
        try:
            connection = self.engine.raw_connection()
        except Exception as error:
            is_late = opening.watchdog is not None and opening.watchdog.call_off()
            if isinstance(opening.watchdog, Watchdog):
                opening.watchdog.close()  # close it now, because the error keeps SQLAlchemy's record alive
            if is_late:
                raise TimedOut("a connection", sent=False) from error
            known = translated_at_connect(error, self.engine.dialect)
            raise known from known.__cause__
        finally:
            current_opening.reset(token)
            if opening.watchdog is not None:
                opening.watchdog.call_off()
        if self._path is not None:
            note_open(connection)  # before SQLAlchemy's record forgets it, because another thread may fork
        connection.detach()  # otherwise SQLAlchemy closes it, or warns, when it is garbage-collected
        return connection

    def disconnect(self, connection: PoolProxiedConnection) -> None:
        """Close ``connection`` without waiting for the server."""
        watchdog = connection.info.get(WATCHDOG)
        if isinstance(watchdog, Watchdog):
            watchdog.close()
        match self.engine.dialect.driver:
            case "asyncpg":
                self._driver_of(connection).terminate()
            case "asyncmy":
                self._driver_of(connection).close()  # SQLAlchemy would wait for the server to end TLS
        self.end(connection)

    def end(self, connection: PoolProxiedConnection) -> None:
        """Close ``connection``. This may wait for a server that does not reply."""
        driver: Any = connection.dbapi_connection
        connection.invalidate()  # marks it closed; SQLAlchemy does no more for a detached connection
        self.engine.dialect.do_terminate(driver)


class UserConnections(SqlConnections):
    """Connections of a user-supplied engine, which keeps them itself.

    Such a connection begins a transaction with its first statement. PostgreSQL's drivers can switch that off and on
    without a round trip. On the other databases this class commits.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._outdated_at = 0.0
        """Connections that were opened before this moment are not used again."""
        self.waiting: set[object] = set()
        """An object for each command that waits for a connection."""
        _listen_for_openings(engine)

    def execute_one(self, command: SqlCommand) -> SqlReply:
        """Return the reply to ``command``, on a connection of the engine's pool."""
        pooled = PooledConnection(self._take())
        try:
            return self.execute(pooled, command, None)
        finally:
            self._give_back(pooled)

    def close_idle(self) -> None:
        # While this process uses a connection, every forked child is refused.
        if _is_own(self.engine.pool) and not getattr(self.engine.pool, "checkedout", int)():
            self.engine.dispose()

    def _take(self) -> PoolProxiedConnection:
        inherited: Pool | None = None
        pool = self.engine.pool
        if not _is_own(pool):  # the application has not disposed of the parent process's pool
            inherited = pool
            _inherited.append(inherited)
            self.engine.dispose(close=False)
        if self._path is not None:
            counts = [getattr(inherited, count, int)() for count in ("checkedin", "checkedout")]
            require_usable(self._path, is_inherited=any(counts))
        self.waiting.add(waits := object())
        try:
            connection = self.engine.raw_connection()
            for _ in range(_MOST_REPLACED):
                if _opened_at(connection) >= self._outdated_at:
                    break
                connection.invalidate()
                connection = self.engine.raw_connection()
            return connection
        except Exception as error:
            if is_from_signal(error):
                raise
            raise NotSent from translated_at_connect(error, self.engine.dialect)
        finally:
            self.waiting.discard(waits)

    def _perform(self, connection: PoolProxiedConnection, command: SqlCommand, until: float | None) -> SqlReply:
        if not self._is_postgres:
            try:
                reply = super()._perform(connection, command, until)
                connection.commit()
            except self.engine.dialect.loaded_dbapi.Error:
                # An exception from a signal handler does not get here: a rollback would first wait for the reply.
                with suppress(Exception):
                    connection.rollback()  # the application's pool may not roll back
                raise
            return reply
        driver: Any = connection.dbapi_connection
        if not driver.autocommit:
            connection.rollback()  # a listener of the application may have begun a transaction
            driver.autocommit = True
            connection.info[_SWITCHED] = True
        return super()._perform(connection, command, until)

    def _give_back(self, pooled: PooledConnection[PoolProxiedConnection]) -> None:
        connection = pooled.connection
        driver: Any = connection.dbapi_connection
        try:
            if pooled.is_good and connection.info.pop(_SWITCHED, False):
                pooled.is_good = False
                with suppress(Exception):
                    driver.autocommit = False
                    pooled.is_good = True
        finally:
            if pooled.is_good:
                connection.close()
            else:
                # Older connections of the pool probably have the same fault. They are closed when they are taken.
                if _opened_at(connection) >= self._outdated_at:
                    self._outdated_at = monotonic()
                connection.invalidate()


def _opened_at(connection: PoolProxiedConnection) -> float:
    """Return when it was opened. 0 for a connection from before the provider existed."""
    opened: float = connection.info.get(_OPENED, 0.0)
    return opened


# Forks: a child must neither use nor close its parent's connections

_pool_owners: WeakKeyDictionary[Pool, OwningProcess] = WeakKeyDictionary()
"""The process that opened a pool's connections. An engine gets a new pool when it is disposed of."""
_engines_listened_to: WeakSet[Engine] = WeakSet()
_inherited: list[Pool] = []
"""Kept for ever: mysqlclient ends the session of a garbage-collected connection."""


_of_sqlite: set[ref[SqlConnections]] = set()
"""Not a WeakSet: before Python 3.14, no thread may add to a WeakSet while another thread iterates over it."""


def _listen_for_openings(engine: Engine) -> None:
    """Note when and in which process each connection opens, also for later pools of the engine."""
    if engine in _engines_listened_to:
        return
    _engines_listened_to.add(engine)
    found = ref(engine)

    def on_connect(_connection: object, record: ConnectionPoolEntry) -> None:
        record.info[_OPENED] = monotonic()
        engine = found()
        if engine is not None:
            _is_own(engine.pool)

    _is_own(engine.pool)
    event.listen(engine, "connect", on_connect)


def _is_own(pool: Pool) -> bool:
    """Return whether only this process has opened connections of the pool."""
    return _pool_owners.setdefault(pool, OwningProcess()).is_current()


def _close_before_fork() -> None:
    for reference in list(_of_sqlite):
        connections = reference()
        if connections is not None:
            connections.close_idle()


before_fork(_close_before_fork)
