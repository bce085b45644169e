"""Ends connections to silent servers, for drivers without a time limit for replies."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py.providers.kit import NotSent
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.threads import timer

WATCHDOG = "shedlock_py watchdog"
"""Key in a connection's ``info``."""


class Watchdog:
    """Shuts down the socket of one connection at a moment, so that the thread that waits for a reply gets an error.

    It has its own file descriptor: if the driver closes its descriptor, the system may use that number again.
    """

    _number = -1  # stays -1 if the process has no file descriptor left

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._until: float | None = None
        self._has_ended = False
        self._number = socket.dup(number)  # os.dup() does not accept sockets on Windows

    def set(self, until: float) -> None:
        """:raises NotSent: the timer cannot start its thread, so the operation would have no time limit."""
        self._until = until
        try:
            timer().schedule(self._end, until)
        except RuntimeError as error:
            self.call_off()
            raise NotSent from OSError(f"no thread would notice a server that is silent: {error}")

    def call_off(self) -> bool:
        """Stop the timer. Return True if the connection was already ended."""
        timer().cancel(self._end)
        with self._lock:
            self._until = None
            return self._has_ended

    def close(self) -> None:
        """Close the file descriptor."""
        with suppress(AttributeError), self._lock:
            number, self._number = self._number, -1
            if number >= 0:
                socket.close(number)

    __del__ = close  # SQLAlchemy forgets a connection if its first queries failed

    def _end(self) -> None:
        with self._lock:
            if self._until is not None and self._until <= monotonic() and self._number >= 0:
                self._has_ended = True
                _shut(self._number)


class LoopWatchdog:
    """A watchdog for psycopg and asyncpg on asyncio. Cancelling a task would send the silent server another request."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._has_ended = False
        self._timer: asyncio.TimerHandle | None = None

    def set(self, until: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(until - monotonic(), self._end)

    def call_off(self) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        return self._has_ended

    def _end(self) -> None:
        self._has_ended = True
        if hasattr(self._driver, "terminate"):  # asyncpg
            self._driver.terminate()
        else:
            with suppress(Exception):
                _shut(self._driver.fileno())


class Opening:
    """A connection that is being opened, until a moment of the monotonic clock."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.watchdog: Watchdog | LoopWatchdog | None = None


current_opening: ContextVar[Opening] = ContextVar("current opening")


def watch(engine: Engine) -> None:
    """Give each new connection of ``engine`` a watchdog, and limit the time of SQLAlchemy's first queries on it."""

    def begin(_connection: object, record: ConnectionPoolEntry) -> None:
        driver: Any = record.driver_connection
        if engine.dialect.is_async:
            record.info[WATCHDOG] = LoopWatchdog(driver)
        elif WATCHDOG not in record.info and hasattr(driver, "fileno"):  # PyMySQL has no fileno on a local socket
            record.info[WATCHDOG] = Watchdog(driver.fileno())
        opening, watchdog = current_opening.get(None), record.info.get(WATCHDOG)
        if opening is not None and watchdog is not None:
            opening.watchdog = watchdog
            watchdog.set(opening.until)

    event.listen(engine, "connect", begin, insert=True)
    if engine.dialect.driver == "pymysql":
        event.listen(engine, "do_connect", _connect_pymysql)


def _connect_pymysql(
    dialect: Dialect, record: ConnectionPoolEntry, args: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Connect PyMySQL with a socket from this function: the watchdog needs a socket, and PyMySQL hides its own."""
    connection: Any = dialect.connect(*args, **options, defer_connect=True)
    if connection.unix_socket:
        connection.connect()
        return connection
    source = (connection.bind_address, 0) if connection.bind_address else None
    try:
        opened = socket.create_connection((connection.host, connection.port), connection.connect_timeout, source)
    except OSError as error:
        message = f"Can't connect to MySQL server on {connection.host!r} ({error})"
        raise dialect.loaded_dbapi.OperationalError(2003, message) from error
    watchdog: Watchdog | None = None
    try:
        watchdog = record.info[WATCHDOG] = Watchdog(opened.fileno())
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.connect(opened)
    except BaseException:
        opened.close()
        if watchdog is not None:
            watchdog.close()  # close it now: the error keeps the record, so the server would see an open connection
        raise
    return connection


def _shut(number: int) -> None:
    with suppress(OSError):
        shared = socket.socket(fileno=number)  # not a duplicate: the process may have no file descriptor left
        try:
            shared.shutdown(socket.SHUT_RDWR)
        finally:
            shared.detach()
