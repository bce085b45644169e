"""Statements on the connections of a pool, each in a transaction of its own, executed by the driver itself.

SQLAlchemy writes the statements, opens and pools the connections, and names the errors. Its own way of executing a
statement calls the listeners of the application: the recipe that begins SQLite's transactions by
``event.listens_for(engine, "begin")`` rolled back every acquire.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Pool, PoolProxiedConnection, event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py._process import OwningProcess, before_fork, monotonic
from shedlock_py.providers.kit import NotSent, TimedOut
from shedlock_py.providers.sqlalchemy.confirmation import listen_for_warnings
from shedlock_py.providers.sqlalchemy.errors import (
    FileReplaced,
    UnconfirmedCommit,
    is_from_connecting,
    is_read_only,
    translated,
)
from shedlock_py.providers.sqlalchemy.opening import open_until, watch_first_queries
from shedlock_py.providers.sqlalchemy.programs import SqlCommand, SqlReply
from shedlock_py.providers.sqlalchemy.sqlite_files import (
    has_other_file,
    is_file_known,
    path_of,
    require_usable,
    watch_files,
)
from shedlock_py.providers.sqlalchemy.statements import Statement
from shedlock_py.providers.sqlalchemy.watchdog import Watch

_MOST_REPLACED = 100
_WARNINGS = "shedlock_py warnings"
_OPENED = "shedlock_py opened"


class SqlConnections:
    """The connections of one engine.

    A connection of a user-supplied engine begins a transaction with the first statement. PostgreSQL's drivers can
    switch that off and on again without a round trip; on the other databases this class commits.

    :param is_managed: the provider opened the engine, so its connections are in autocommit and have time limits.
    :param watch: ends a connection whose server is silent; None: its driver or its caller has a time limit.
    """

    def __init__(self, engine: Engine, is_managed: bool, watch: Watch | None = None) -> None:
        self.engine = engine
        self._is_managed = is_managed
        self._watch = watch
        self._is_postgres = engine.dialect.name == "postgresql"
        self._switches_autocommit = not is_managed and self._is_postgres
        self._commits = not is_managed and not self._is_postgres
        self._outdated_at = 0.0
        """Connections opened before this moment are not used again."""
        self._path = path_of(engine.url) if engine.dialect.name == "sqlite" else None
        if self._path is not None:
            watch_files(engine)
            _of_sqlite.add(self)
        if watch is not None:
            watch_first_queries(engine, watch)
        event.listen(engine, "connect", _note_opening)  # SQLAlchemy registers it once for each engine
        _pool_owners.setdefault(engine, OwningProcess())
        event.listen(engine, "engine_disposed", _note_disposal)

    def take(self, until: float | None) -> PoolProxiedConnection:
        """A connection for :meth:`execute`; a new one is opened by the moment ``until``.

        :raises NotSent: no connection could be opened.
        :raises TimedOut: not in time.
        """
        inherited_pool = _leave_inherited_pool(self.engine)
        if self._path is not None:
            require_usable(self._path, inherited_pool)
        try:
            with open_until(until):
                connection = self.engine.raw_connection()
                for _ in range(_MOST_REPLACED):
                    if not self._is_outdated(connection):
                        break
                    connection.invalidate()
                    connection = self.engine.raw_connection()
                return connection
        except Exception as error:
            known = translated(error, self.engine.dialect, is_broken=True)
            if is_from_connecting(known):
                raise NotSent from known
            raise

    def execute(self, connection: PoolProxiedConnection, command: SqlCommand, until: float | None) -> SqlReply:
        """The reply to ``command``; ``connection`` is returned to the pool, or closed if it broke."""
        driver: Any = connection.dbapi_connection
        dialect = self.engine.dialect
        switched, limit = False, None
        try:
            if self._switches_autocommit and not driver.autocommit:
                connection.rollback()  # a listener of the application may have begun a transaction
                driver.autocommit = switched = True
            if self._watch is not None and until is not None:
                limit = self._watch(connection, until)
            return self._execute(connection, command, until)
        except dialect.loaded_dbapi.Error as error:
            is_late = limit is not None and limit.call_off()
            is_broken = is_late or dialect.is_disconnect(error, connection, None)
            known = translated(error, dialect, command.statement.sql, is_broken=is_broken)
            if is_broken or is_read_only(known):
                self._discard(connection, error, with_older=is_broken or self._is_managed)
            elif self._commits:
                _roll_back(connection)
            if is_late:
                raise TimedOut("a reply", sent=True) from error
            raise known from error
        except (UnconfirmedCommit, NotSent):
            raise
        except BaseException as error:
            connection.invalidate(error)  # interrupted, perhaps in the middle of a reply
            raise
        finally:
            if limit is not None and limit.call_off() and connection.dbapi_connection is not None:
                connection.invalidate()  # the reply and the end of the time came at the same moment
            if connection.dbapi_connection is not None and (not switched or _switch_back(connection)):
                self._give_back(connection)

    def _execute(self, connection: PoolProxiedConnection, command: SqlCommand, until: float | None) -> SqlReply:
        warnings = connection.info.get(_WARNINGS) if self._is_postgres else None
        if self._is_postgres and warnings is None:
            warnings = connection.info[_WARNINGS] = listen_for_warnings(connection)
        if warnings is not None:
            warnings.is_unconfirmed = False  # a warning about a statement of the application
        cursor = connection.cursor()
        try:
            if self._path is not None and until is not None:
                cursor.execute(f"PRAGMA busy_timeout = {max(0, int((until - monotonic()) * 1000))}")
            statement = command.statement
            cursor.execute(statement.sql, statement.parameters(command.values))
            reply = _reply(cursor, statement)
        except BaseException:
            if self._path is not None:
                # The traceback of the error keeps the cursor; an unfinished statement keeps SQLite's write lock.
                cursor.close()
            raise
        cursor.close()
        if warnings is not None and warnings.is_unconfirmed:
            raise UnconfirmedCommit(
                "the server did it but warns that it may not last: no synchronous standby has confirmed it"
            )
        if self._commits:
            connection.commit()
        if has_other_file(connection, self._path):
            raise FileReplaced("the file was replaced by another one meanwhile")
        return reply

    # Connections that are not used again

    def _discard(self, connection: PoolProxiedConnection, error: Exception, *, with_older: bool) -> None:
        """Close it; and all older connections of the pool, which probably have the same fault, when they are taken."""
        if with_older and _opened_at(connection) >= self._outdated_at:
            self._outdated_at = monotonic()
        connection.invalidate(error)

    def _give_back(self, connection: PoolProxiedConnection) -> None:
        if self._is_managed and self._is_too_old(connection):
            connection.invalidate()
        else:
            connection.close()

    def _is_outdated(self, connection: PoolProxiedConnection) -> bool:
        if self._path is not None and (not is_file_known(connection) or has_other_file(connection, self._path)):
            return True
        return self._is_too_old(connection)

    def _is_too_old(self, connection: PoolProxiedConnection) -> bool:
        return bool(self._outdated_at) and _opened_at(connection) < self._outdated_at

    def close(self) -> None:
        """Close the idle connections, and those in use when they are returned."""
        self.outdate()
        self.engine.dispose()

    def outdate(self) -> None:
        """Do not use the present connections again."""
        self._outdated_at = monotonic()


def _note_opening(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_OPENED] = monotonic()


def _opened_at(connection: PoolProxiedConnection) -> float:
    """0 for a connection that the application opened before there was a provider."""
    opened: float = connection.info.get(_OPENED, 0.0)
    return opened


def _roll_back(connection: PoolProxiedConnection) -> None:
    """Because the application may have told its pool not to."""
    try:
        connection.rollback()
    except Exception as error:
        connection.invalidate(error)


def _switch_back(connection: PoolProxiedConnection) -> bool:
    """Switch autocommit off again. False: the connection broke, and is closed."""
    driver: Any = connection.dbapi_connection
    try:
        driver.autocommit = False
    except BaseException as error:
        connection.invalidate(error)
        if not isinstance(error, Exception):
            raise
        return False
    return True


def _reply(cursor: DBAPICursor, statement: Statement) -> SqlReply:
    match statement.reply:
        case "rows":
            return SqlReply(cursor.fetchall())
        case "count":
            return SqlReply(changed=cursor.rowcount)
        case "id":
            return SqlReply(id=cursor.lastrowid)


# Forks: a child must neither use nor close the connections of its parent

_pool_owners: WeakKeyDictionary[Engine, OwningProcess] = WeakKeyDictionary()
_inherited: list[Pool] = []
"""Kept for ever: mysqlclient ends the session of a connection that is garbage-collected."""
_of_sqlite: WeakSet[SqlConnections] = WeakSet()


def _note_disposal(engine: Engine) -> None:
    _pool_owners[engine] = OwningProcess()


def _leave_inherited_pool(engine: Engine) -> Pool | None:
    """Give ``engine`` a new pool if its pool is the parent's, which is returned. The application may have done so."""
    if _pool_owners[engine].is_current():
        return None
    pool = engine.pool
    _inherited.append(pool)
    engine.dispose(close=False)
    return pool


def _close_before_fork() -> None:
    """SQLite only. A child of a process that is using a connection is refused, so nothing needs to be closed there."""
    for connections in list(_of_sqlite):
        engine = connections.engine
        if not engine.dialect.is_async and not getattr(engine.pool, "checkedout", int)():
            connections.close()


before_fork(_close_before_fork)
