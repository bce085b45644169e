"""Clients execute the programs' commands, for threads and for asyncio."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL
from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.util import greenlet_spawn

from shedlock_py.providers.kit import AsyncConnectionPool, ConnectionPool, PooledConnection, within
from shedlock_py.providers.sqlalchemy.connections import ManagedConnections, UserConnections
from shedlock_py.providers.sqlalchemy.engines import (
    Sessions,
    check_user_engine,
    open_async_engine,
    open_engine,
    prepares_nothing,
)
from shedlock_py.providers.sqlalchemy.statements import SqlCommand, SqlReply
from shedlock_py.runtime.process import OwningProcess, PerLoop, PerProcess, monotonic

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

POOL_SIZE = 5
"""A skip takes a millisecond, so five connections serve hundreds of threads."""
RESERVED = 1
"""Connections for holders' statements: a heartbeat must not wait for acquires that wait for a locked row."""


class _Client:
    engine: Any
    shown = ""
    """Shown in the provider's ``repr``."""
    prepares_nothing = False
    """True if ``prepare=yes`` in the URL would change something."""

    def is_waiting_for_pool(self) -> bool:
        """Return whether a command waits for the pool of a user-supplied engine."""
        return False

    def dialect(self) -> Dialect:
        """Return the dialect of an engine that has connected."""
        dialect: Dialect = self.engine.dialect
        return dialect


class _UserEngineClient(_Client):
    """A client for a user-supplied engine, which has its own time limits."""

    _connections: UserConnections

    def is_waiting_for_pool(self) -> bool:
        return bool(self._connections.waiting)


class UserEngineClient(_UserEngineClient):
    """A client for threads, with a user-supplied engine."""

    def __init__(self, engine: Engine) -> None:
        check_user_engine(engine)
        self.engine = engine
        self._connections = UserConnections(engine)

    def execute(self, command: SqlCommand, _timeout: float | None) -> SqlReply:
        return self._connections.execute_one(command)


class AsyncUserEngineClient(_UserEngineClient):
    """A client for asyncio, with a user-supplied engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        check_user_engine(engine.sync_engine)
        self.engine = engine
        self._connections = UserConnections(engine.sync_engine)

    async def execute(self, command: SqlCommand, _timeout: float | None) -> SqlReply:
        return await greenlet_spawn(self._connections.execute_one, command)


class UrlClient(_Client):
    """A client for threads, with a small pool for each process."""

    def __init__(self, url: URL, sessions: Sessions) -> None:
        self._timeout = sessions.timeout
        self.prepares_nothing = prepares_nothing(url, sessions)
        self._connections = PerProcess(lambda: ProcessConnections(url, sessions))

    @property
    def engine(self) -> Engine:
        return self._connections.get().engine

    def execute(self, command: SqlCommand, timeout: float | None) -> SqlReply:
        until = monotonic() + (self._timeout if timeout is None else timeout)
        connections = self._connections.get()
        execute = partial(connections.execute, command=command, until=until)
        return connections.pool.use(execute, until, is_urgent=command.is_urgent)

    def close(self) -> None:
        self._connections.get().pool.close()


class ProcessConnections(ManagedConnections):
    """The connections of one process."""

    def __init__(self, url: URL, sessions: Sessions) -> None:
        engine = open_engine(url, sessions)
        has_server = engine.dialect.name != "sqlite"
        self._owner = OwningProcess()
        self.pool = ConnectionPool(
            self.connect,
            self.disconnect,
            size=POOL_SIZE,
            reserved=RESERVED,
            name="shedlock-connect",
            # SQLite has no sessions to close. And the timer would be a thread, which makes forks of the program risky.
            idle_timeout=sessions.idle_timeout if has_server else None,
            connect_in_thread=has_server,
        )
        super().__init__(engine)  # last: from now on it is closed before a fork, which another thread may start

    def close_idle(self) -> None:
        if self._owner.is_current():
            self.pool.close()


class AsyncUrlClient(_Client):
    """A client for asyncio, with a small pool for each event loop."""

    def __init__(self, url: URL, sessions: Sessions) -> None:
        self._timeout = sessions.timeout
        self.prepares_nothing = prepares_nothing(url, sessions)
        self.engine = open_async_engine(url, sessions)
        """Never connected: it only has the URL and the dialect."""
        self._is_mysql = url.get_backend_name() in ("mysql", "mariadb")
        self._loops = PerLoop(lambda: LoopConnections(url, sessions))

    async def execute(self, command: SqlCommand, timeout: float | None) -> SqlReply:  # noqa: ASYNC109 (the operation's time left)
        until = monotonic() + (self._timeout if timeout is None else timeout)
        connections = self._loops.get()

        async def send(pooled: PooledConnection[Any]) -> SqlReply:
            # PostgreSQL's drivers have a watchdog, and SQLite has busy_timeout.
            seconds = until - monotonic() if self._is_mysql else None
            async with within(seconds, "a reply", sent=True):
                return await greenlet_spawn(connections.execute, pooled, command, until)

        return await connections.pool.use(send, until, is_urgent=command.is_urgent)

    def dialect(self) -> Dialect:
        return self._loops.get().engine.dialect

    async def close(self) -> None:
        await self._loops.get().pool.close()


class LoopConnections(ManagedConnections):
    """The connections of one event loop."""

    def __init__(self, url: URL, sessions: Sessions) -> None:
        super().__init__(open_async_engine(url, sessions).sync_engine)
        has_server = self.engine.dialect.name != "sqlite"
        self.pool = AsyncConnectionPool(
            partial(greenlet_spawn, self.connect),
            partial(greenlet_spawn, self.disconnect),
            size=POOL_SIZE,
            reserved=RESERVED,
            idle_timeout=sessions.idle_timeout if has_server else None,
            end=partial(greenlet_spawn, self.end if self.engine.dialect.driver == "asyncmy" else self.disconnect),
        )
