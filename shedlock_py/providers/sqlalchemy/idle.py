"""Connections that wait for the next statement."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from sqlalchemy import PoolProxiedConnection


class Idle:
    """Connections of our own that wait for the next statement: taking one from SQLAlchemy's pool costs ten times more.

    The pool counts them as taken. So while somebody waits there, none is kept here.
    """

    def __init__(self) -> None:
        self.connections: list[PoolProxiedConnection] = []
        self._waiting = 0
        self._mutex = Lock()

    def take(self) -> PoolProxiedConnection | None:
        with self._mutex:
            if self.connections:
                return self.connections.pop()
            self._waiting += 1
            return None

    def wait_for(self, connect: Callable[[], PoolProxiedConnection]) -> PoolProxiedConnection:
        """After :meth:`take` had none."""
        try:
            return connect()
        finally:
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
