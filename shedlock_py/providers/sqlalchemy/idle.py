"""Connections that wait for the next statement."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from sqlalchemy import PoolProxiedConnection


class Idle:
    """Connections of our own that wait for the next statement: taking one from SQLAlchemy's pool costs ten times more.

    The pool counts them as taken. So while somebody waits there, none is kept here.
    """

    def __init__(self) -> None:
        self.connections: list[PoolProxiedConnection] = []
        self._waiting = 0
        self._mutex = RLock()  # a signal handler may ask, too, and come at any moment

    def take(self, connect: Callable[[], PoolProxiedConnection]) -> PoolProxiedConnection:
        """One of them, or else what ``connect`` waits for."""
        waits = False
        try:
            with self._mutex:
                if (connection := self._pop()) is not None:
                    return connection
                self._waiting += 1
                waits = True
            return connect()
        finally:
            if waits:
                with self._mutex:
                    self._waiting -= 1

    def _pop(self) -> PoolProxiedConnection | None:
        try:
            return self.connections.pop()
        except IndexError:
            return None

    def keep(self, connection: PoolProxiedConnection) -> bool:
        with self._mutex:
            if not self._waiting:
                self.connections.append(connection)
            return not self._waiting

    def forget(self) -> list[PoolProxiedConnection]:
        with self._mutex:
            connections, self.connections = self.connections, []
            return connections
