"""Connections that a forked child has from its parent: neither to use, nor to close, nor to forget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from threading import RLock
from weakref import WeakSet

from sqlalchemy import Pool
from sqlalchemy.engine import Engine

from shedlock_py.providers.sqlalchemy.engines import watchdog


class Inherited:
    """The pool that a forked child has from its parent, whose connections are not the child's to use or to close."""

    def __init__(self, engine: Engine, abandon_idle: Callable[[], Iterable[object]] = tuple) -> None:
        self._engine = engine
        self._abandon_idle = abandon_idle
        self._pool: Pool | None = None
        notice_fork()
        _inheritances.add(self)

    def note(self) -> None:
        self._pool = self._engine.pool
        keep_for_ever(self._abandon_idle())  # now, while there is one thread

    def abandon(self) -> None:
        """Go without it, unless the application has seen to that itself."""
        notice_fork()
        pool = self._pool
        if pool is None:
            return
        _abandoned.append(pool)
        if self._engine.pool is pool:
            self._engine.dispose(close=False)
        self._pool = None


_inheritances: WeakSet[Inherited] = WeakSet()
_abandoned: list[object] = []
"""Never forgotten: mysqlclient says goodbye to the server for a connection that is garbage-collected."""


class _Process:
    """The one that our connections and threads are of."""

    def __init__(self) -> None:
        self._number = os.getpid()
        self._mutex = RLock()  # a signal handler may ask, too, and come at any moment

    def notice_fork(self) -> None:
        """To be called before a connection is used: who forks in C, as uWSGI does, does not tell Python of it."""
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
        for inherited in list(_inheritances):
            inherited.note()
        self._number = os.getpid()


_process = _Process()
notice_fork = _process.notice_fork
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forked)


def keep_for_ever(connections: Iterable[object]) -> None:
    """Of the parent, or the pools of its event loops, which the child does not have."""
    _abandoned.extend(connections)
