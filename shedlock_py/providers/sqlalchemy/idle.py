"""Connections that wait for the next statement."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from sqlalchemy import PoolProxiedConnection


class Idle:
    """Connections of our own that wait for the next statement: taking one from SQLAlchemy's pool costs ten times more.

    The pool counts them as taken. So while somebody waits there, none is kept here.
    """

    def __init__(self, connect: Callable[[], PoolProxiedConnection]) -> None:
        self._connect = connect
        self.connections: list[PoolProxiedConnection] = []
        self._waiting = 0
        self._mutex = RLock()  # a signal handler may ask, too, and come at any moment

    def take(self) -> PoolProxiedConnection:
        """One of them, or else one from the pool, as soon as it has one."""
        waits = False
        try:
            with self._mutex:
                try:
                    return self.connections.pop()
                except IndexError:
                    self._waiting += 1
                    waits = True
            return self._connect()
        finally:
            if waits:
                with self._mutex:
                    self._waiting -= 1

    def keep(self, connection: PoolProxiedConnection) -> bool:
        with self._mutex:
            if not self._waiting:
                self.connections.append(connection)
            return not self._waiting

    def forget(self) -> list[PoolProxiedConnection]:
        with self._mutex:
            connections, self.connections = self.connections, []
            return connections
