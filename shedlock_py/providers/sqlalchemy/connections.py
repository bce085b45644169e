"""Statements on the pool's connections, each in a transaction of its own, asked of the driver itself.

SQLAlchemy writes the statements, opens and pools the connections, and names the errors. Its own way to execute a
statement costs as much as the statement; and an application's listeners may have their say there: the recipe that
begins SQLite's transactions by ``event.listens_for(engine, "begin")`` undid every acquire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import PoolProxiedConnection, event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py._clock import monotonic
from shedlock_py.providers.sqlalchemy.algorithm import Answer, Ask
from shedlock_py.providers.sqlalchemy.clock import NOW_US_FUNCTION, sqlite_now_us
from shedlock_py.providers.sqlalchemy.confirmation import Heard, listen_for_warnings, unconfirmed
from shedlock_py.providers.sqlalchemy.engines import ANSWER_SECONDS, socket_number, watchdog
from shedlock_py.providers.sqlalchemy.failures import NotSent, Unconfirmed, is_of_connecting, translated
from shedlock_py.providers.sqlalchemy.forks import note_openings
from shedlock_py.providers.sqlalchemy.idle import Idle
from shedlock_py.providers.sqlalchemy.statements import Statement


class Connections:
    """Those of one engine. ``is_own``: opened by us, so in autocommit and with time limits.

    A user's connection is in a transaction as soon as something is asked. PostgreSQL's drivers can switch that off, and
    on again, without asking the server; on the others we commit.
    """

    def __init__(self, engine: Engine, is_own: bool) -> None:
        self._engine = engine
        self._dialect = engine.dialect
        self._is_own = is_own
        self._is_postgres = engine.dialect.name == "postgresql"
        self._has_time_limit = is_own and self._is_postgres
        self._switches = not is_own and self._is_postgres
        self._commits = not is_own and not self._is_postgres
        # Not on asyncio, where SQLAlchemy warns of connections that nobody gave back.
        self._idle = Idle(engine.raw_connection) if is_own and not engine.dialect.is_async else None
        self._outdated_at = 0.0  # nothing has broken yet
        event.listen(engine, "connect", _note_opening)  # once for each pool, however often it is said
        note_openings(engine)

    def take(self) -> PoolProxiedConnection:
        """A connection for :meth:`ask`.

        :raises NotSent: none could be had.
        """
        try:
            take = self._engine.raw_connection if self._idle is None else self._idle.take
            connection = take()
            replaced = 0
            while self._outdated_at and self._is_outdated(connection) and replaced < _MOST_REPLACED:
                connection.invalidate()
                connection = take()
                replaced += 1
            return connection
        except Exception as error:
            known = translated(error, self._dialect)
            if is_of_connecting(known):
                raise NotSent from known
            raise

    def ask(self, connection: PoolProxiedConnection, ask: Ask) -> Answer:
        """The answer to ``ask``; ``connection`` is given back, or ended if it broke."""
        driver: Any = connection.dbapi_connection
        switches, watched = False, _NOT_WATCHED
        try:
            if self._switches and not driver.autocommit:
                connection.rollback()  # what a listener of the application began; ours would be a part of it
                driver.autocommit = switches = True
            if self._has_time_limit:
                watched = self._watch(driver)
            return self._execute(connection, ask)
        except self._dialect.loaded_dbapi.Error as error:
            is_broken = self._dialect.is_disconnect(error, connection, None) or _needs_another(connection, error)
            if is_broken:
                self._give_up(connection, error)
            elif self._commits:
                self._roll_back(connection)
            raise translated(error, self._dialect, ask.statement.sql, is_broken=is_broken) from error
        except Unconfirmed:
            raise
        except BaseException as error:
            connection.invalidate(error)  # interrupted, who knows where
            raise
        finally:
            if watched != _NOT_WATCHED:
                watchdog.end(watched)
            if connection.dbapi_connection is not None and (not switches or self._switch_back(connection)):
                self._give_back(connection)

    def _execute(self, connection: PoolProxiedConnection, ask: Ask) -> Answer:
        statement, ours = ask.statement, connection.info.get(_OURS) or self._prepared(connection)
        ours.heard.a_warning = False  # it may have been the application's, and warned about something of its own
        cursor = ours.cursor or connection.cursor()
        cursor.execute(statement.text, statement.bind(ask.values))
        answer = _answer(cursor, statement)
        if not self._is_own:
            cursor.close()
        if ours.heard.a_warning:
            raise unconfirmed()
        if self._commits:
            connection.commit()
        ours.has_answered = True
        return answer

    def _prepared(self, connection: PoolProxiedConnection) -> _Ours:
        if self._dialect.name == "sqlite":
            connection.create_function(NOW_US_FUNCTION, 0, sqlite_now_us)
        if self._is_own:
            _let_prepare_statements(connection)
        ours = connection.info[_OURS] = _Ours(
            cursor=connection.cursor() if self._is_own else None,
            heard=listen_for_warnings(connection) if self._is_postgres else Heard(),
        )
        return ours

    def _watch(self, driver: Any) -> int:
        """PostgreSQL's drivers wait for an answer for ever; the others were told when they connected.

        Cancelled, its async drivers ask the silent server to cancel and wait for that, so their socket is shut, too.
        """
        # On asyncio behind SQLAlchemy's adapter. If it is closed, the driver will say so itself.
        number = socket_number(driver.driver_connection if self._dialect.is_async else driver)
        return watchdog.begin(number, ANSWER_SECONDS) if number >= 0 else _NOT_WATCHED

    def _give_up(self, connection: PoolProxiedConnection, error: Exception) -> None:
        """It broke, and with it probably all that are older than this moment."""
        if _opened_at(connection) >= self._outdated_at:
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
        if self._idle is None:
            connection.close()
        elif self._outdated_at and self._is_outdated(connection):
            connection.invalidate()
        elif not self._idle.keep(connection):
            connection.close()

    def _is_outdated(self, connection: PoolProxiedConnection) -> bool:
        """Whether it has probably broken with another, or the provider was closed since it was opened."""
        return _opened_at(connection) < self._outdated_at

    def close_idle(self) -> None:
        """Give those that wait for the next statement back to the pool, and keep none of those that are in use."""
        if self._idle is not None:
            self._outdated_at = monotonic()
            for connection in self._idle.forget():
                connection.close()

    def abandon_idle(self) -> list[PoolProxiedConnection]:
        """In a forked child: they are the parent's, and must neither be used nor closed nor forgotten."""
        idle, self._idle = self._idle, Idle(self._engine.raw_connection) if self._idle is not None else None
        return idle.connections if idle is not None else []


@dataclass(slots=True)
class _Ours:
    """What we keep with each connection of the driver, as long as it lives."""

    cursor: DBAPICursor | None
    """Making one for each statement would take a quarter of a skip. None for a connection of the application's, whose
    pool may give it to several threads (StaticPool): each needs its own answer."""
    heard: Heard
    has_answered: bool = False


_MOST_REPLACED = 100
_NOT_WATCHED = -1
_OURS = "shedlock_py"
_OPENED = "shedlock_py opened"


def _note_opening(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_OPENED] = monotonic()


def _opened_at(connection: PoolProxiedConnection) -> float:
    """0 for a connection of the application that is older than our provider."""
    opened: float = connection.info.get(_OPENED, 0.0)
    return opened


def _let_prepare_statements(connection: PoolProxiedConnection) -> None:
    """Let psycopg prepare what it executes often, which spares the server half of its work: unless there is a pooler.

    A pooler takes another connection to the server for each transaction. There the statement is missing, or somebody
    else's: psycopg numbers them. But then the server's process is not the one that was named for cancelling: a pooler
    must name one of its own, or cancelling would hit whoever else is there.
    """
    driver: Any = connection.driver_connection
    if getattr(driver, "prepare_threshold", 0) is not None:
        return  # another driver
    cursor = connection.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    [[process]] = cursor.fetchall()
    cursor.close()
    if process == driver.info.backend_pid:
        driver.prepare_threshold = _PREPARE_THRESHOLD


_PREPARE_THRESHOLD = 5  # psycopg's default


def _needs_another(connection: PoolProxiedConnection, error: Exception) -> bool:
    """A statement was prepared, and then the table changed: new connections prepare it anew.

    The code alone only says that something cannot be done: on a connection that never did it, that stays so.
    """
    ours: _Ours | None = connection.info.get(_OURS)
    return getattr(error, "sqlstate", None) == "0A000" and ours is not None and ours.has_answered


def _answer(cursor: DBAPICursor, statement: Statement) -> Answer:
    match statement.replies_with:
        case "rows":
            return Answer(cursor.fetchall())
        case "count":
            return Answer((), cursor.rowcount)
        case "id":
            return Answer(id=cursor.lastrowid)
