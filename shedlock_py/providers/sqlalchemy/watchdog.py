"""Ends the connections of silent servers, for drivers that would wait for a reply for ever."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from shedlock_py._timers import timer
from shedlock_py.providers.kit import NotSent

SOCKET = "shedlock_py socket"
"""In the ``info`` of a connection whose driver has no public way to its socket: a duplicate."""


class ConnectionLimit(Protocol):
    """The moment at which a connection ends."""

    def call_off(self) -> bool:
        """Let the connection live. True: it was ended before."""


Watch = Callable[[Any, float], ConnectionLimit | None]
"""Sets the limit of a connection of the pool. None: the driver has a limit of its own."""


class SocketDuplicate:
    """A second file descriptor of a socket: the driver may close its own, and the system use that number again."""

    number = -1  # if the process has no file descriptor left for it

    def __init__(self, number: int) -> None:
        self.number = os.dup(number)

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    __del__ = close  # SQLAlchemy forgets a connection whose first queries failed


class SocketLimit:
    """Shuts a socket down at a moment, so that the thread that waits for a reply gets an error."""

    def __init__(self, number: int, until: float) -> None:
        """:raises NotSent: the timer has no thread, and without it the time of the operation would have no limit."""
        self._lock = threading.Lock()
        self._socket = SocketDuplicate(number)
        self._was_ended = False
        try:
            timer().schedule(self._end, until)
        except BaseException as error:
            self.call_off()
            if isinstance(error, RuntimeError):
                raise NotSent from OSError(f"no thread would notice a server that is silent: {error}")
            raise

    def _end(self) -> None:
        with self._lock:
            if self._socket.number >= 0:
                self._was_ended = True
                shut(self._socket.number)

    def call_off(self) -> bool:
        timer().cancel(self._end)
        with self._lock:
            self._socket.close()
        return self._was_ended


def end_at(connection: Any, until: float) -> SocketLimit | None:
    """A :data:`Watch` for sync drivers."""
    duplicate: SocketDuplicate | None = connection.info.get(SOCKET)
    number = socket_number(connection.driver_connection) if duplicate is None else duplicate.number
    return SocketLimit(number, until) if number >= 0 else None


def socket_number(driver: Any) -> int:
    """The file descriptor of a driver's connection, or -1: it is closed, or is a local socket of MySQL's drivers."""
    try:
        number: int = driver.fileno()
    except Exception:
        return -1
    return number


def shut(socket_number: int) -> None:
    """End the connection. A thread that reads from it or writes to it gets an error."""
    with suppress(OSError):
        duplicate = socket.socket(fileno=os.dup(socket_number))
        try:
            duplicate.shutdown(socket.SHUT_RDWR)
        finally:
            duplicate.close()
