"""Statements on the pool's connections, each in a transaction of its own, carried out by the driver itself.

SQLAlchemy writes the statements, opens and pools the connections, and names the errors. Its own way to execute a
statement costs as much as the statement; and an application's listeners may take part in it: the recipe that begins
SQLite's transactions by ``event.listens_for(engine, "begin")`` undid every acquire.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import PoolProxiedConnection, event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py._clock import monotonic
from shedlock_py.providers.kit import NotSent, TimedOut
from shedlock_py.providers.sqlalchemy.confirmation import listen_for_warnings, unconfirmed
from shedlock_py.providers.sqlalchemy.errors import (
    FileReplaced,
    Unconfirmed,
    is_of_connecting,
    is_read_only,
    translated,
)
from shedlock_py.providers.sqlalchemy.files import has_other_file, is_file_known, note_files, path_of
from shedlock_py.providers.sqlalchemy.forks import note_openings
from shedlock_py.providers.sqlalchemy.opening import Watch, open_until, watch_first_queries
from shedlock_py.providers.sqlalchemy.programs import SqlCommand, SqlReply
from shedlock_py.providers.sqlalchemy.statements import Statement


class Connections:
    """The connections of one engine.

    A connection of the user's engine is in a transaction as soon as a statement is executed. PostgreSQL's drivers can
    switch that off, and on again, without a round trip; on the others we commit.

    :param is_managed: the engine is ours, so its connections are in autocommit and have time limits.
    :param watch: how to end a connection whose server is silent; None: its driver or its caller has a time limit.
    """

    def __init__(self, engine: Engine, is_managed: bool, watch: Watch | None = None) -> None:
        self._engine = engine
        self._dialect = engine.dialect
        self._is_managed = is_managed
        self._watch = watch
        self._is_postgres = engine.dialect.name == "postgresql"
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._switches = not is_managed and self._is_postgres
        self._commits = not is_managed and not self._is_postgres
        self._outdated_at = 0.0  # nothing has broken yet
        event.listen(engine, "connect", _note_opening)  # once for each pool, however often it is registered
        note_openings(engine)
        if watch is not None:
            watch_first_queries(engine, watch)
        self._path = path_of(engine.url) if self._is_sqlite else None
        if self._is_sqlite:
            note_files(engine)

    def take(self, until: float | None) -> PoolProxiedConnection:
        """A connection for :meth:`ask`, and if it must be opened, by the moment ``until``.

        :raises NotSent: none could be had.
        :raises TimedOut: not in time.
        """
        try:
            with open_until(until):
                connection = self._engine.raw_connection()
                replaced = 0
                while self._is_outdated(connection) and replaced < _MOST_REPLACED:
                    connection.invalidate()
                    connection = self._engine.raw_connection()
                    replaced += 1
                return connection
        except Exception as error:
            known = translated(error, self._dialect, is_broken=True)
            if is_of_connecting(known):
                raise NotSent from known
            raise

    def ask(self, connection: PoolProxiedConnection, ask: SqlCommand, until: float | None) -> SqlReply:
        """The reply to ``ask``; ``connection`` is given back, or closed if it broke."""
        driver: Any = connection.dbapi_connection
        switches, call_off = False, None
        try:
            if self._switches and not driver.autocommit:
                connection.rollback()  # what a listener of the application began; ours would be a part of it
                driver.autocommit = switches = True
            if self._watch is not None and until is not None:
                call_off = self._watch(connection, until)
            return self._execute(connection, ask, until)
        except self._dialect.loaded_dbapi.Error as error:
            is_late = call_off is not None and call_off()
            is_broken = is_late or self._dialect.is_disconnect(error, connection, None)
            known = translated(error, self._dialect, ask.statement.sql, is_broken=is_broken)
            if is_broken:
                self._give_up(connection, error)
            elif is_read_only(known):
                self._give_up(connection, error, with_older=self._is_managed)
            elif self._commits:
                self._roll_back(connection)
            if is_late:
                raise TimedOut("a reply", sent=True) from error
            raise known from error
        except (Unconfirmed, NotSent):
            raise
        except BaseException as error:
            connection.invalidate(error)  # interrupted, no one knows where
            raise
        finally:
            if call_off is not None and call_off() and connection.dbapi_connection is not None:
                connection.invalidate()  # the reply came at the same moment
            if connection.dbapi_connection is not None and (not switches or self._switch_back(connection)):
                self._give_back(connection)

    def _execute(self, connection: PoolProxiedConnection, ask: SqlCommand, until: float | None) -> SqlReply:
        warnings = connection.info.get(_WARNINGS) if self._is_postgres else None
        if self._is_postgres and warnings is None:
            warnings = connection.info[_WARNINGS] = listen_for_warnings(connection)
        if warnings is not None:
            warnings.is_unconfirmed = False  # it may be about a statement of the application's
        cursor = connection.cursor()
        try:
            if self._is_sqlite and until is not None:
                milliseconds = max(0, int((until - monotonic()) * 1000))
                cursor.execute(f"PRAGMA busy_timeout = {milliseconds}")
            cursor.execute(ask.statement.text, ask.statement.bind(ask.values))
            answer = _answer(cursor, ask.statement)
        except BaseException:
            if self._is_sqlite:
                # The traceback of the error keeps the cursor; a statement that is not at its end keeps the write lock.
                cursor.close()
            raise
        cursor.close()
        if warnings is not None and warnings.is_unconfirmed:
            raise unconfirmed()
        if self._commits:
            connection.commit()
        if has_other_file(connection, self._path):
            raise FileReplaced("the file was replaced by another one meanwhile")
        return answer

    # Connections that are of no use any more

    def _give_up(self, connection: PoolProxiedConnection, error: Exception, *, with_older: bool = True) -> None:
        """Close it, and with it all that are older than this moment: they have probably the same fault."""
        if with_older and _opened_at(connection) >= self._outdated_at:
            self._outdated_at = monotonic()
        connection.invalidate(error)

    def _roll_back(self, connection: PoolProxiedConnection) -> None:
        """An application may have told its pool not to."""
        try:
            connection.rollback()
        except Exception as error:
            connection.invalidate(error)

    def _switch_back(self, connection: PoolProxiedConnection) -> bool:
        driver: Any = connection.dbapi_connection
        try:
            driver.autocommit = False
        except BaseException as error:
            connection.invalidate(error)
            if not isinstance(error, Exception):
                raise
            return False
        return True

    def _give_back(self, connection: PoolProxiedConnection) -> None:
        if self._is_managed and self._is_older(connection):
            connection.invalidate()
        else:
            connection.close()

    def _is_outdated(self, connection: PoolProxiedConnection) -> bool:
        if self._path is not None and (not is_file_known(connection) or has_other_file(connection, self._path)):
            return True
        return self._is_older(connection)

    def _is_older(self, connection: PoolProxiedConnection) -> bool:
        """Whether it has probably broken with another one, or the provider was closed since it was opened."""
        return bool(self._outdated_at) and _opened_at(connection) < self._outdated_at

    def close(self) -> None:
        """Close the connections of a managed engine, those in use as soon as they are given back."""
        self._outdated_at = monotonic()
        self._engine.dispose()


_MOST_REPLACED = 100
_WARNINGS = "shedlock_py warnings"
_OPENED = "shedlock_py opened"


def _note_opening(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_OPENED] = monotonic()


def _opened_at(connection: PoolProxiedConnection) -> float:
    """0 for a connection of the application that is older than our provider."""
    opened: float = connection.info.get(_OPENED, 0.0)
    return opened


def _answer(cursor: DBAPICursor, statement: Statement) -> SqlReply:
    match statement.replies_with:
        case "rows":
            return SqlReply(cursor.fetchall())
        case "count":
            return SqlReply((), cursor.rowcount)
        case "id":
            return SqlReply(id=cursor.lastrowid)
