"""Connections of one event loop: drivers can neither use nor close them without it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from sqlalchemy import URL, PoolProxiedConnection, event
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util import greenlet_spawn

from shedlock_py._clock import monotonic
from shedlock_py.providers.kit import within
from shedlock_py.providers.sqlalchemy.connections import Connections
from shedlock_py.providers.sqlalchemy.engines import FOR_ALL, POOL_SIZE, open_async_engine
from shedlock_py.providers.sqlalchemy.programs import SqlCommand, SqlReply
from shedlock_py.providers.sqlalchemy.watchdog import shut, socket_number

_limit: ContextVar[tuple[asyncio.Timeout, float] | None] = ContextVar("limit", default=None)
"""Of the connection that this task needs, and until when."""


class LoopEngine:
    """A small engine of our own for one event loop, whose connections can be ended when the loop is gone."""

    def __init__(self, url: URL, timeout: float) -> None:
        self.engine = open_async_engine(url, timeout)
        self._is_postgres = url.get_backend_name() == "postgresql"
        self._is_mysql = url.get_backend_name() in ("mysql", "mariadb")
        watch = end_at if self._is_postgres else None
        self.connections = Connections(self.engine.sync_engine, is_managed=True, watch=watch)
        event.listen(self.engine.sync_engine, "do_connect", self._connecting)
        event.listen(self.engine.sync_engine, "connect", self._connected, insert=True)
        self._free = asyncio.Semaphore(POOL_SIZE)
        self._free_for_all = asyncio.Semaphore(FOR_ALL)
        self._records: WeakSet[ConnectionPoolEntry] = WeakSet()
        event.listen(self.engine.sync_engine, "connect", self._remember)

    def _remember(self, _connection: object, record: ConnectionPoolEntry) -> None:
        self._records.add(record)
        record.info[_SOCKET] = _identity(socket_number(record.driver_connection))

    async def execute(self, ask: SqlCommand, timeout: float) -> SqlReply:  # noqa: ASYNC109 (what is left of the operation's)
        """The reply, within ``timeout`` seconds."""
        until = monotonic() + timeout
        async with AsyncExitStack() as permits:
            async with within(timeout, "a free connection", sent=False):
                if not ask.is_of_holder:
                    await permits.enter_async_context(self._free_for_all)
                await permits.enter_async_context(self._free)
            connection = await self._take(until)
            # PostgreSQL's drivers have end_at(), and SQLite its busy_timeout.
            seconds = until - monotonic() if self._is_mysql else None
            async with within(seconds, "a reply", sent=True):
                return await greenlet_spawn(self.connections.ask, connection, ask, until)

    async def _take(self, until: float) -> PoolProxiedConnection:
        async with within(None, "a connection", sent=False) as limit:
            token = _limit.set((limit, until))
            try:
                return await greenlet_spawn(self.connections.take, until)
            finally:
                _limit.reset(token)

    def _connecting(self, *_: object) -> None:
        current = _limit.get()
        if current is not None:
            limit, until = current
            limit.reschedule(asyncio.get_running_loop().time() + until - monotonic())

    def _connected(self, *_: object) -> None:
        """PostgreSQL's drivers, when cancelled, tell the silent server and wait; but now there is a socket to shut."""
        current = _limit.get()
        if current is not None and self._is_postgres:
            current[0].reschedule(None)

    def hang_up(self) -> None:
        """End all connections without the event loop, which is closed: drivers can close nothing without it."""
        for record in list(self._records):
            driver: Any = record.driver_connection
            number = socket_number(driver)
            # An event loop may have closed its sockets, and the number be somebody else's by now.
            if number >= 0 and _identity(number) == record.info.get(_SOCKET):
                shut(number)
            if hasattr(driver, "pgconn"):
                driver.pgconn.finish()
            elif record.info.get(_SOCKET) is None and hasattr(driver, "stop"):
                # aiosqlite's thread. In a thread of its own: here, it would tell our event loop when it is done.
                stopping = threading.Thread(target=driver.stop)
                stopping.start()
                stopping.join()
            elif hasattr(driver, "_writer"):
                driver._writer = None  # or MySQL's drivers, when they are collected, ask the closed loop to close it


def end_at(connection: Any, until: float) -> Callable[[], bool]:
    """End a connection of psycopg or asyncpg at the moment ``until``, so that the driver raises. See :data:`Watch`."""
    driver: Any = connection.driver_connection
    is_late = False

    def end() -> None:
        nonlocal is_late
        is_late = True
        if hasattr(driver, "terminate"):  # asyncpg
            driver.terminate()
        else:
            shut(socket_number(driver))

    handle = asyncio.get_running_loop().call_later(until - monotonic(), end)

    def call_off() -> bool:
        handle.cancel()
        return is_late

    return call_off


_SOCKET = "shedlock_py socket"


def _identity(number: int) -> tuple[int, int] | None:
    """Of the socket itself; a number is used again."""
    with suppress(OSError):
        status = os.fstat(number)
        return status.st_dev, status.st_ino
    return None
