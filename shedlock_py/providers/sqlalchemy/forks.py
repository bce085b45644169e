"""Connections that a forked child has from its parent: neither to use, nor to close, nor to forget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from weakref import WeakSet

from sqlalchemy import Pool
from sqlalchemy.engine import Engine


class Inherited:
    """The pool that a forked child has from its parent, whose connections are not the child's to use or to close."""

    def __init__(self, engine: Engine, abandon_idle: Callable[[], Iterable[object]] = tuple) -> None:
        self._engine = engine
        self._abandon_idle = abandon_idle
        self._pool: Pool | None = None
        _watch_forks()
        _inheritances.add(self)

    def note(self) -> None:
        self._pool = self._engine.pool
        keep_for_ever(self._abandon_idle())  # now, while there is one thread

    def abandon(self) -> None:
        """Go without it, unless the application has seen to that itself."""
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


@cache
def _watch_forks() -> None:
    def note_all() -> None:
        for inherited in list(_inheritances):
            inherited.note()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=note_all)


def keep_for_ever(connections: Iterable[object]) -> None:
    """Of the parent, or the pools of its event loops, which the child does not have."""
    _abandoned.extend(connections)
