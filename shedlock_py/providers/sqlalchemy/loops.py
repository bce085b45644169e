"""Connections of one event loop: drivers can neither use nor close them without it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from sqlalchemy import URL, event
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util import greenlet_spawn

from shedlock_py._clock import monotonic
from shedlock_py.providers.kit import within
from shedlock_py.providers.sqlalchemy.algorithm import Answer, Ask
from shedlock_py.providers.sqlalchemy.connections import Connections
from shedlock_py.providers.sqlalchemy.engines import POOL_SIZE, open_async_engine
from shedlock_py.providers.sqlalchemy.watchdog import shut, socket_number


class LoopEngine:
    """A small engine of our own for one event loop, whose connections can be ended when the loop is gone."""

    def __init__(self, url: URL, timeout: float) -> None:
        self.engine = open_async_engine(url, timeout)
        self._is_postgres = url.get_backend_name() == "postgresql"
        watch = end_at if self._is_postgres else None
        self.connections = Connections(self.engine.sync_engine, is_managed=True, watch=watch)
        self._free = asyncio.Semaphore(POOL_SIZE)
        self._records: WeakSet[ConnectionPoolEntry] = WeakSet()
        event.listen(self.engine.sync_engine, "connect", self._remember)

    def _remember(self, _connection: object, record: ConnectionPoolEntry) -> None:
        self._records.add(record)
        record.info[_SOCKET] = _identity(socket_number(record.driver_connection))

    async def execute(self, ask: Ask, timeout: float) -> Answer:  # noqa: ASYNC109 (what is left of the operation's)
        """The reply, within ``timeout`` seconds."""
        until = monotonic() + timeout
        async with within(timeout, "a free connection", sent=False):
            await self._free.acquire()
        try:
            async with within(until - monotonic(), "a connection", sent=False):
                connection = await greenlet_spawn(self.connections.take, until)
            # PostgreSQL's drivers, when cancelled, ask the silent server to cancel the statement, and wait for that.
            async with within(None if self._is_postgres else until - monotonic(), "a reply", sent=True):
                return await greenlet_spawn(self.connections.ask, connection, ask, until)
        finally:
            self._free.release()

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
