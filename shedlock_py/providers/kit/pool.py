"""A pool of connections for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar
from weakref import WeakMethod

from shedlock_py.providers.kit.failures import TimedOut
from shedlock_py.providers.kit.time_limits import call_within, driver_errors, seconds_left
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.threads import WorkerPool, timer

C = TypeVar("C")
T = TypeVar("T")

FREE_CONNECTION = "a free connection"
CONNECTION = "a connection"
_POLL_SECONDS = 0.1
"""Interval at which a waiting thread checks whether it is next."""


class PooledConnection(Generic[C]):
    """A connection in use.

    :ivar is_good: set it True if the connection can be used again: after a reply, or an error reply of a healthy
        server. Otherwise the pool closes this connection and all connections of its age: the server is down, or its
        host name now resolves to another server.
    """

    __slots__ = ("connection", "generation", "idle_since", "is_good")

    def __init__(self, connection: C, generation: object = None) -> None:
        self.connection = connection
        self.is_good = False
        self.generation = generation
        """The pool's generation when the connection was opened."""
        self.idle_since = 0.0


class ConnectionPool(Generic[C]):
    """The connections of one process, for threads.

    A forked child must not use the pool of its parent process: keep the pool in a ``kit.PerProcess``.

    :param connect: opens a connection until a moment of the monotonic clock, and raises the driver's own errors. It
        runs in a daemon thread, because drivers cannot limit the time of a DNS lookup.
    :param disconnect: closes a connection without waiting. Its errors are ignored.
    :param size: the most connections at a time.
    :param reserved: the number of connections for urgent requests only. So a lease does not end while its heartbeat
        waits for an acquire.
    :param name: name of the threads that connect.
    :param connect_in_thread: False for a driver that connects to no server.
    :param idle_timeout: seconds after which an idle connection is closed. None if it stays open.
    """

    def __init__(
        self,
        connect: Callable[[float], C],
        disconnect: Callable[[C], object],
        *,
        size: int,
        reserved: int,
        name: str,
        connect_in_thread: bool = True,
        idle_timeout: float | None = None,
    ) -> None:
        self._connect = connect
        self._disconnect = disconnect
        self._idle_timeout = idle_timeout
        self._reserved = min(reserved, size - 1)
        self._for_all = size - self._reserved
        self._requests: dict[threading.Lock, bool] = {}
        """Requests in order of arrival: the lock that wakes the request's thread, and whether the request is urgent."""
        self._idle: list[PooledConnection[C]] = []
        self._closes_later = False
        self._generation = object()
        self._workers = WorkerPool(size, name) if connect_in_thread else None

    def use(self, function: Callable[[PooledConnection[C]], T], until: float, *, is_urgent: bool) -> T:
        """Call ``function`` with a connection.

        This is not a ``with`` block: a signal handler can raise an exception at the first step of ``__exit__``, and the
        connection would stay taken. ``finally`` begins with one atomic call.

        :param until: a moment of the monotonic clock.
        :param is_urgent: the request may use the reserved connections, too.
        :raises TimedOut: no connection was free until that moment. Nothing was sent.
        :raises NotSent: a connection could not be opened. The cause is the driver's error.
        """
        request, requests = threading.Lock(), self._requests
        request.acquire()
        try:
            requests[request] = is_urgent
            while len(requests) > self._for_all and request not in self._served() and (left := until - monotonic()) > 0:
                request.acquire(timeout=min(left, _POLL_SECONDS))
            if monotonic() >= until:
                raise TimedOut(FREE_CONNECTION, sent=False)
            pooled = self._take(until)
            try:
                return function(pooled)
            finally:
                self._return(pooled)
        finally:
            requests.pop(request, None)
            if requests:  # another request may have waited
                for each in self._served():
                    with suppress(RuntimeError):  # it is already awake
                        each.release()

    def _served(self) -> list[threading.Lock]:
        """Return the requests that may have a connection. A request never loses it to a later request."""
        for_all, for_urgent = self._for_all, self._reserved
        served = []
        for request, is_urgent in list(self._requests.items()):
            if for_all:
                for_all -= 1
                served.append(request)
            elif is_urgent and for_urgent:
                for_urgent -= 1
                served.append(request)
        return served

    def outdate(self) -> None:
        """Do not use the present connections again. Close them when they are returned, or when a request finds them."""
        self._generation = object()

    def close(self) -> None:
        """Close the idle connections now, and the busy ones when they are returned."""
        self.outdate()
        self._close_idle()

    def _take(self, until: float) -> PooledConnection[C]:
        with suppress(IndexError):
            while True:
                pooled = self._idle.pop()
                if pooled.generation is self._generation:
                    pooled.is_good = False
                    return pooled
                self._close(pooled.connection)
        generation = self._generation

        def connect() -> C:
            if not seconds_left(until):
                raise TimedOut(CONNECTION, sent=False)  # the thread started too late: the caller has given up
            with driver_errors(is_connecting=True):
                return self._connect(until)

        if self._workers is None:
            return PooledConnection(connect(), generation)
        connection = call_within(self._workers, seconds_left(until), CONNECTION, connect, self._close)
        return PooledConnection(connection, generation)

    def _return(self, pooled: PooledConnection[C]) -> None:
        is_current = pooled.generation is self._generation
        if is_current and pooled.is_good:
            pooled.idle_since = monotonic()
            self._idle.append(pooled)
            if self._idle_timeout is not None and not self._closes_later:
                self._close_later(self._idle_timeout)
            return
        if is_current:
            self.outdate()
        self._close(pooled.connection)
        self._close_idle()

    def _close_later(self, seconds: float) -> None:
        """Close the connections that have been idle for ``seconds``."""
        oldest = min((pooled.idle_since for pooled in list(self._idle)), default=None)
        if oldest is None:
            return
        found = WeakMethod(self._close_idle_for_long)

        def close() -> None:
            if (close_idle := found()) is not None:
                close_idle()

        with suppress(RuntimeError):  # no thread can be started
            timer().schedule(close, oldest + seconds)
            self._closes_later = True

    def _close_idle_for_long(self) -> None:
        seconds = self._idle_timeout or 0.0
        self._closes_later = False
        self._close_idle(monotonic() - seconds)
        self._close_later(seconds)

    def _close_idle(self, before: float = float("-inf")) -> None:
        """Close the idle connections that are outdated, or have been idle since ``before``."""
        for pooled in list(self._idle):
            if pooled.generation is not self._generation or pooled.idle_since <= before:
                with suppress(ValueError):  # another thread has taken it
                    self._idle.remove(pooled)
                    self._close(pooled.connection)

    def _close(self, connection: C) -> None:
        with driver_errors(is_connecting=False):
            self._disconnect(connection)
