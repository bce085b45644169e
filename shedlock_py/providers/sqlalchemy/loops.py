"""Connections of one event loop: drivers can neither use nor close them without it."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from sqlalchemy import URL, event
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py.providers.sqlalchemy.connections import Connections
from shedlock_py.providers.sqlalchemy.engines import open_async_engine, shut, socket_number


class LoopEngine:
    """A small engine of our own for one event loop, whose connections can be ended when the loop is gone."""

    def __init__(self, url: URL) -> None:
        self.engine = open_async_engine(url)
        self.connections = Connections(self.engine.sync_engine, is_own=True)
        self._records: WeakSet[ConnectionPoolEntry] = WeakSet()
        event.listen(self.engine.sync_engine, "connect", self._remember)

    def _remember(self, _connection: object, record: ConnectionPoolEntry) -> None:
        self._records.add(record)
        record.info[_SOCKET] = _identity(socket_number(record.driver_connection))

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


_SOCKET = "shedlock_py socket"


def _identity(number: int) -> tuple[int, int] | None:
    """Of the socket itself; a number is used again."""
    with suppress(OSError):
        status = os.fstat(number)
        return status.st_dev, status.st_ino
    return None
