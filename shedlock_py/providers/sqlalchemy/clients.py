"""Clients: they carry the commands of the programs out, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AsyncExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from sqlalchemy import URL, PoolProxiedConnection, event
from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util import greenlet_spawn

from shedlock_py._process import PerLoop, PerProcess, before_fork, monotonic
from shedlock_py.providers.kit import Permits, TimedOut, within
from shedlock_py.providers.sqlalchemy.connections import SqlConnections
from shedlock_py.providers.sqlalchemy.engines import FOR_ALL, POOL_SIZE, open_async_engine, open_engine
from shedlock_py.providers.sqlalchemy.opening import connect_in_time
from shedlock_py.providers.sqlalchemy.programs import SqlCommand, SqlReply
from shedlock_py.providers.sqlalchemy.sqlite_files import forget_closed
from shedlock_py.providers.sqlalchemy.watchdog import end_at, shut, socket_number

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


class UserEngineClient:
    """For threads, on a user-supplied engine, which has time limits of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._connections = SqlConnections(engine, is_managed=False)

    def execute(self, command: SqlCommand, _timeout: float | None) -> SqlReply:
        return self._connections.execute(self._connections.take(None), command, None)

    def dialect(self) -> Dialect:
        return self.engine.dialect

    def close(self) -> None:
        """The engine is the user's."""


class UrlClient:
    """For threads, on a small engine for each process."""

    def __init__(self, url: URL, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        self._connections = PerProcess(self._open)
        self._permits = Permits(POOL_SIZE)
        self._permits_for_all = Permits(FOR_ALL)

    def _open(self) -> SqlConnections:
        engine = open_engine(self._url, self._timeout)
        has_server = engine.dialect.name != "sqlite"
        if has_server:
            connect_in_time(engine)
        return SqlConnections(engine, is_managed=True, watch=end_at if has_server else None)

    @property
    def engine(self) -> Engine:
        return self._connections.get().engine

    def execute(self, command: SqlCommand, timeout: float | None) -> SqlReply:
        until = monotonic() + (self._timeout if timeout is None else timeout)
        permit_for_all = nullcontext() if command.is_of_holder else self._permits_for_all.one_until(until)
        with permit_for_all, self._permits.one_until(until):
            connections = self._connections.get()
            return connections.execute(connections.take(until), command, until)

    def dialect(self) -> Dialect:
        return self.engine.dialect

    def close(self) -> None:
        self._connections.get().close()


class AsyncUserEngineClient:
    """For asyncio, on a user-supplied engine."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self._connections = SqlConnections(engine.sync_engine, is_managed=False)

    async def execute(self, command: SqlCommand, _timeout: float | None) -> SqlReply:
        connection = await greenlet_spawn(self._connections.take, None)
        return await greenlet_spawn(self._connections.execute, connection, command, None)

    def dialect(self) -> Dialect:
        return self.engine.dialect

    async def close(self) -> None:
        """The engine is the user's."""


class AsyncUrlClient:
    """For asyncio, on a small engine for each event loop."""

    def __init__(self, url: URL, timeout: float) -> None:
        self._timeout = timeout
        self.engine = open_async_engine(url, timeout)
        """Never connected: it shows the URL and the dialect."""
        self._loops = PerLoop(lambda: LoopConnections(url, timeout), LoopConnections.discard)

    async def execute(self, command: SqlCommand, timeout: float | None) -> SqlReply:  # noqa: ASYNC109 (of the kit's client)
        return await self._loops.get().execute(command, self._timeout if timeout is None else timeout)

    def dialect(self) -> Dialect:
        return self._loops.get().engine.dialect

    async def close(self) -> None:
        await self._loops.get().engine.dispose()


class LoopConnections:
    """A small engine for one event loop."""

    def __init__(self, url: URL, timeout: float) -> None:
        self.engine = open_async_engine(url, timeout)
        self._backend = url.get_backend_name()
        watch = end_in_loop_at if self._backend == "postgresql" else None
        self._connections = SqlConnections(self.engine.sync_engine, is_managed=True, watch=watch)
        self._free = asyncio.Semaphore(POOL_SIZE)
        self._free_for_all = asyncio.Semaphore(FOR_ALL)
        self._opened: WeakSet[ConnectionPoolEntry] = WeakSet()
        event.listen(self.engine.sync_engine, "connect", self._remember)
        if self._backend == "sqlite":
            _of_sqlite.add(self)

    async def execute(self, command: SqlCommand, timeout: float) -> SqlReply:  # noqa: ASYNC109 (what is left of the operation's)
        """The reply, within ``timeout`` seconds."""
        until = monotonic() + timeout
        async with AsyncExitStack() as permits:
            async with within(timeout, "a free connection", sent=False):
                if not command.is_of_holder:
                    await permits.enter_async_context(self._free_for_all)
                await permits.enter_async_context(self._free)
            if until <= monotonic():  # the tasks that had the permit until now gave up at the same moment
                raise TimedOut("a free connection", sent=False)
            async with within(until - monotonic(), "a connection", sent=False):
                connection: PoolProxiedConnection = await greenlet_spawn(self._connections.take, until)
            # PostgreSQL's drivers have end_in_loop_at(), and SQLite its busy_timeout.
            seconds = until - monotonic() if self._backend in ("mysql", "mariadb") else None
            async with within(seconds, "a reply", sent=True):
                return await greenlet_spawn(self._connections.execute, connection, command, until)

    def _remember(self, _connection: object, record: ConnectionPoolEntry) -> None:
        self._opened.add(record)
        record.info[_SOCKET] = _identity_of(async_socket_number(record.driver_connection))

    def discard(self) -> None:
        """End the connections of an event loop that was closed: drivers can close nothing without it."""
        if self._backend == "sqlite":
            self._close_sqlite(self._open_records())  # their threads would keep the process from ending
            return
        for record in self._open_records():
            driver: Any = record.driver_connection
            number = async_socket_number(driver)
            # The event loop may have closed its sockets, and another one may have the number by now.
            if number >= 0 and _identity_of(number) == record.info.get(_SOCKET):
                shut(number)
            if hasattr(driver, "pgconn"):  # psycopg
                driver.pgconn.finish()
            elif hasattr(driver, "_writer"):
                driver._writer = None  # MySQL's drivers would call the closed loop when they are garbage-collected

    def close_before_fork(self) -> None:
        self._close_sqlite([record for record in self._open_records() if not record.in_use])

    def _open_records(self) -> list[ConnectionPoolEntry]:
        return [record for record in list(self._opened) if record.dbapi_connection is not None]

    def _close_sqlite(self, records: list[ConnectionPoolEntry]) -> None:
        """Close connections of aiosqlite, which do not need their own event loop for that."""

        async def close() -> None:
            for record in records:
                driver: Any = record.driver_connection
                await driver.close()
                forget_closed(record)

        self._connections.outdate()
        closing = threading.Thread(target=lambda: asyncio.run(close()))
        closing.start()
        closing.join()


_SOCKET = "shedlock_py loop socket"


def async_socket_number(driver: Any) -> int:
    """The file descriptor of an async driver's connection, or -1. Only psycopg has a public way to it."""
    try:
        if hasattr(driver, "fileno"):  # psycopg
            return int(driver.fileno())
        transport = getattr(driver, "_transport", None) or driver._writer
        return int(transport.get_extra_info("socket").fileno())
    except Exception:
        return -1


def _identity_of(number: int) -> tuple[int, int] | None:
    """Of the socket itself: the system uses a number again."""
    with suppress(OSError):
        status = os.fstat(number)
        return status.st_dev, status.st_ino
    return None


_of_sqlite: WeakSet[LoopConnections] = WeakSet()


def _close_before_fork() -> None:
    for connections in list(_of_sqlite):
        connections.close_before_fork()


before_fork(_close_before_fork)


class LoopLimit:
    """Ends a connection of psycopg or asyncpg at a moment, so that the driver raises."""

    def __init__(self, driver: Any, until: float) -> None:
        self._driver = driver
        self._was_ended = False
        self._timer = asyncio.get_running_loop().call_later(until - monotonic(), self._end)

    def _end(self) -> None:
        self._was_ended = True
        if hasattr(self._driver, "terminate"):  # asyncpg
            self._driver.terminate()
        else:
            shut(socket_number(self._driver))

    def call_off(self) -> bool:
        self._timer.cancel()
        return self._was_ended


def end_in_loop_at(connection: Any, until: float) -> LoopLimit:
    """A :data:`Watch` for asyncio."""
    return LoopLimit(connection.driver_connection, until)
