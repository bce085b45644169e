"""Ends the connections of silent servers, for drivers that would wait for a reply for ever."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shedlock_py._clock import monotonic
from shedlock_py.providers.kit import NotSent

SOCKET = "shedlock_py socket"
"""In the ``info`` of a connection whose driver has no public way to its socket: a duplicate."""


class Duplicate:
    """A second file descriptor of a driver's socket."""

    number = -1  # if the process has no file descriptor left for it

    def __init__(self, opened: socket.socket) -> None:
        self.number = os.dup(opened.fileno())

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    __del__ = close  # SQLAlchemy just forgets a connection whose first queries failed


def end_at(connection: Any, until: float) -> Callable[[], bool]:
    """End a connection of a sync driver at the moment ``until``, so that the driver raises. See :data:`Watch`."""
    duplicate: Duplicate | None = connection.info.get(SOCKET)
    number = socket_number(connection.driver_connection) if duplicate is None else duplicate.number
    if number < 0:
        return bool  # closed: the driver will say so itself; or a local socket, for which the driver has a time limit
    own: int | None = watchdog.begin(number, until)
    is_late = False

    def call_off() -> bool:
        nonlocal own, is_late
        if own is not None:
            is_late = watchdog.end(own)
            own = None
        return is_late

    return call_off


def socket_number(driver: Any) -> int:
    """The file descriptor of a driver's connection, or -1: it is closed, or has none."""
    try:
        fileno = getattr(driver, "fileno", None)
        if fileno is not None:
            number: int = fileno()
            return number
        # asyncpg's and MySQL's async drivers have no public way to it.
        transport = getattr(driver, "_transport", None) or driver._writer
        return int(transport.get_extra_info("socket").fileno())
    except Exception:
        return -1


class Watchdog:
    """Shuts a connection's socket when the server is silent for too long, for drivers with no read timeout.

    One daemon thread for all connections. It sleeps until the earliest deadline; ordinary calls do not wake it, which
    would cost more than their statements.
    """

    def __init__(self) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """After a fork, which the thread did not survive; before there are others, who would race for it."""
        self._mutex = threading.RLock()  # a signal handler may ask, too, and come at any moment
        self._changed = threading.Condition(self._mutex)
        self._watched: dict[int, float] = {}
        self._wakes_at = float("inf")
        self._is_used = False
        self._thread: threading.Thread | None = None

    def begin(self, socket_number: int, deadline: float) -> int:
        """End the connection at the moment ``deadline``, so that the driver raises; unless :meth:`end` comes first.

        The result is what ``end`` takes.

        :raises NotSent: its thread cannot be started. Without it, the time of an operation would have no limit.
        """
        own = os.dup(socket_number)  # the driver may close its own, and the number be used again
        try:
            with self._mutex:
                self._watched[own] = deadline
                self._is_used = True
                if self._thread is None:
                    self._start()
                elif deadline < self._wakes_at:
                    self._changed.notify()
        except BaseException:
            self.end(own)
            raise
        return own

    def _start(self) -> None:
        thread = threading.Thread(target=self._watch, name="shedlock-watchdog", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit of the system or of the container
            raise NotSent from OSError(f"nobody would notice a server that is silent: {error}")
        self._thread = thread

    def end(self, own: int) -> bool:
        """Whether it was too late: the connection was ended."""
        with self._mutex:
            is_late = self._watched.pop(own, None) is None
            os.close(own)
            return is_late

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = monotonic()
                for number, deadline in list(self._watched.items()):
                    if deadline <= now:
                        del self._watched[number]
                        shut(number)
                # Nobody is there, but was since the last look: the next one will be soon, and need not wake us.
                soon = now + _SOON if self._is_used else float("inf")
                self._is_used = False
                self._wakes_at = min(self._watched.values(), default=soon)
                self._changed.wait(self._wakes_at - now if self._wakes_at < float("inf") else None)


_SOON = 5.0


def shut(socket_number: int) -> None:
    """End the connection. A thread that reads from it or writes to it gets an error."""
    with suppress(OSError):
        duplicate = socket.socket(fileno=os.dup(socket_number))
        try:
            duplicate.shutdown(socket.SHUT_RDWR)
        finally:
            duplicate.close()


watchdog = Watchdog()
