"""Connections that a forked child has from its parent: neither to use, nor to close, nor to forget.

But SQLite's must be closed, for SQLite keeps its locks on a file by process: as long as the child has a connection of
its parent open, new ones of its own take none, and once the parent is gone, the file is anybody's.
See https://www.sqlite.org/howtocorrupt.html, 2.6.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Pool, PoolProxiedConnection, event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py.providers.sqlalchemy.engines import watchdog


class Inherited:
    """The pool that a forked child has from its parent, whose connections are not the child's to use or to close."""

    def __init__(self, engine: Engine, abandon_idle: Callable[[], list[PoolProxiedConnection]] = list) -> None:
        self._engine = engine
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._abandon_idle = abandon_idle
        self._pool: Pool | None = None
        _process.notice_fork()
        _inheritances.add(self)
        event.listen(engine, "engine_disposed", _note_disposal)  # once, however often it is said

    def note(self) -> list[PoolProxiedConnection]:
        """The child begins. Its idle connections, which are its parent's."""
        if _disposed_in.get(self._engine) != os.getpid():  # else the application has seen to that itself
            self._pool = self._engine.pool
        idle = self._abandon_idle()
        keep_for_ever(idle)
        return idle

    def abandon(self) -> None:
        """Go without it. To be called before a connection is used.

        :raises RuntimeError: SQLite cannot be used in this process.
        """
        _process.notice_fork()
        if self._is_sqlite and not _process.has_left_sqlite:
            _process.leave_sqlite()
        pool = self._pool
        if pool is None:
            return
        _abandoned.append(pool)
        if self._engine.pool is pool:
            self._engine.dispose(close=False)
        self._pool = None

    def close_sqlite(self) -> None:
        """Those in the pool, also from before there was a provider. On asyncio they want their event loop for that."""
        if self._is_sqlite and self._pool is not None and not self._engine.dialect.is_async:
            self._pool.dispose()


_inheritances: WeakSet[Inherited] = WeakSet()
_disposed_in: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()
_abandoned: list[object] = []
"""Never forgotten: mysqlclient says goodbye to the server for a connection that is garbage-collected."""


def _note_disposal(engine: Engine) -> None:
    _disposed_in[engine] = os.getpid()


class _Process:
    """The one that our connections and threads are of."""

    def __init__(self) -> None:
        self._number = os.getpid()
        self._mutex = RLock()  # a signal handler may ask, too, and come at any moment
        self.has_left_sqlite = True
        self._sqlite: WeakSet[ConnectionPoolEntry] = WeakSet()
        self._sqlite_to_close: list[Any] = []
        self._sqlite_was_in_use = False

    def notice_fork(self) -> None:
        """Who forks in C, as uWSGI does, does not tell Python of it."""
        if self._number != os.getpid():
            with self._mutex:  # the child may have several threads by now
                if self._number != os.getpid():
                    self._begin_afresh()

    def forked(self) -> None:
        """Python forked, and the child has one thread."""
        self._mutex = RLock()
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        watchdog.start_afresh()
        idle = {id(each.dbapi_connection) for inherited in list(_inheritances) for each in inherited.note()}
        for record in list(self._sqlite):
            if record.dbapi_connection is None:
                continue  # it is closed
            if record.in_use and id(record.dbapi_connection) not in idle:
                self._sqlite_was_in_use = True
            else:
                self._sqlite_to_close.append(record.driver_connection)
        self._sqlite = WeakSet()
        self.has_left_sqlite = False
        self._number = os.getpid()

    def note_sqlite(self, _connection: object, record: ConnectionPoolEntry) -> None:
        self._sqlite.add(record)

    def leave_sqlite(self) -> None:
        """Close all that the parent had open; not at the fork, for a child may never use SQLite.

        :raises RuntimeError: the parent was using one of them. Only the parent may end what it does.
        """
        if self._sqlite_was_in_use:
            raise RuntimeError(
                "this process was forked while another thread was using SQLite, which must not be: fork earlier, or "
                "start processes anew (spawn)"
            )
        with self._mutex:
            for inherited in list(_inheritances):
                inherited.close_sqlite()
            for connection in self._sqlite_to_close:
                getattr(connection, "_conn", connection).close()  # aiosqlite's has a thread, which is not here
            self._sqlite_to_close = []
            self.has_left_sqlite = True


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forked)


def note_openings(engine: Engine) -> None:
    """Remember connections that a child would have to close."""
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _process.note_sqlite)


def keep_for_ever(connections: Iterable[object]) -> None:
    """Of the parent, or the pools of its event loops, which the child does not have."""
    _abandoned.extend(connections)
