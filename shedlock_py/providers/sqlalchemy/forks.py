"""Connections that a forked child has from its parent: neither to use, nor to close, nor to forget.

But SQLite's must be closed, for SQLite keeps its locks on a file by process: as long as the child has a connection of
its parent open, new ones of its own take none, and once the parent is gone, the file is anybody's.
See https://www.sqlite.org/howtocorrupt.html, 2.6.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Pool, event
from sqlalchemy.engine import Engine
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py.providers.sqlalchemy.watchdog import watchdog


class Inherited:
    """The pool that a forked child has from its parent, whose connections are not the child's to use or to close."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._pool: Pool | None = None
        _process.add(self)
        event.listen(engine, "engine_disposed", _note_disposal)  # once, however often it is said

    def note(self) -> None:
        """The child begins."""
        if _disposed_in.get(self._engine) != os.getpid():  # else the application has seen to that itself
            self._pool = self._engine.pool

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

    def sqlite_pool(self) -> Pool | None:
        """The parent's, if it can be closed here: on asyncio its connections want their event loop for that."""
        return self._pool if self._is_sqlite and not self._engine.dialect.is_async else None


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
        self._inheritances: WeakSet[Inherited] = WeakSet()
        self._sqlite: WeakSet[ConnectionPoolEntry] = WeakSet()
        self._sqlite_of_parent: list[ConnectionPoolEntry] = []
        self._was_sqlite_opened_too_early = False
        self.has_left_sqlite = True

    def add(self, inherited: Inherited) -> None:
        self.notice_fork()
        with self._mutex:
            self._inheritances.add(inherited)

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
        for inherited in list(self._inheritances):
            inherited.note()
        self._sqlite_of_parent += self._sqlite
        self._sqlite = WeakSet()
        self.has_left_sqlite = False
        self._number = os.getpid()

    def note_sqlite(self, _connection: object, record: ConnectionPoolEntry) -> None:
        """Somebody, maybe the application, has opened a connection, which has not been used yet and has no lock."""
        self.notice_fork()
        if not self.has_left_sqlite:
            try:
                self.leave_sqlite()
            except RuntimeError:
                self._was_sqlite_opened_too_early = True
        with self._mutex:
            self._sqlite.add(record)

    def leave_sqlite(self) -> None:
        """Close all that the parent had open; not at the fork, for a child may never use SQLite.

        :raises RuntimeError: one of them was in use at the fork, and only the parent may end what it does; or is in use
            here, by the application.
        """
        with self._mutex:
            if self.has_left_sqlite:
                return
            pools = [pool for inherited in list(self._inheritances) if (pool := inherited.sqlite_pool()) is not None]
            opened = [(record, raw) for record in self._sqlite_of_parent if (raw := _raw(record)) is not None]
            if (
                self._was_sqlite_opened_too_early
                or any(record.in_use for record, _ in opened)
                or any(getattr(pool, "checkedout", int)() > 0 for pool in pools)
            ):
                raise RuntimeError(
                    "this process was forked while a connection to SQLite was in use, which must not be: fork earlier, "
                    "or start processes anew (spawn)"
                )
            for pool in pools:
                pool.dispose()  # also those from before there was a provider
            for _, raw in opened:
                raw.close()
            self._sqlite_of_parent = []
            self.has_left_sqlite = True


def _raw(record: ConnectionPoolEntry) -> Any:
    """The connection of Python's sqlite3, or None: it is closed. Aiosqlite's has a thread, which a child does not."""
    driver: Any = record.driver_connection
    return getattr(driver, "_connection", driver)


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forked)


def note_openings(engine: Engine) -> None:
    """Remember connections that a child would have to close."""
    if engine.dialect.name == "sqlite":
        # Before other listeners, which may ask something.
        event.listen(engine, "connect", _process.note_sqlite, insert=True)


def keep_for_ever(connections: Iterable[object]) -> None:
    """Of the parent, or the pools of its event loops, which the child does not have."""
    _abandoned.extend(connections)
