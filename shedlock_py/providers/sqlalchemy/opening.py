"""Connections of sync drivers that are opened within a time limit, the look-up of the host's name included."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py._process import monotonic
from shedlock_py._timers import WorkerPool
from shedlock_py.providers.kit import TimedOut, call_within
from shedlock_py.providers.sqlalchemy.engines import POOL_SIZE
from shedlock_py.providers.sqlalchemy.watchdog import SOCKET, ConnectionLimit, SocketDuplicate, Watch


class Opening:
    """The time limit of a connection that is being opened, and of SQLAlchemy's first queries on it."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.limit: ConnectionLimit | None = None

    def call_off(self) -> bool:
        return self.limit is not None and self.limit.call_off()


_current: ContextVar[Opening | None] = ContextVar("current opening", default=None)


@contextmanager
def open_until(until: float | None) -> Iterator[None]:
    """The time limit for connections that the pool opens inside.

    :raises TimedOut: the limit ended SQLAlchemy's first queries.
    """
    if until is None:
        yield
        return
    opening = Opening(until)
    token = _current.set(opening)
    try:
        yield
    except Exception as error:
        if opening.call_off():
            raise TimedOut("a connection", sent=False) from error
        raise
    finally:
        opening.call_off()
        _current.reset(token)


def watch_first_queries(engine: Engine, watch: Watch) -> None:
    """Limit the time of SQLAlchemy's own queries on each new connection."""

    def begin(_connection: object, record: ConnectionPoolEntry) -> None:
        opening = _current.get()
        if opening is not None:
            opening.call_off()
            opening.limit = watch(record, opening.until)

    event.listen(engine, "connect", begin, insert=True)


def connect_in_time(engine: Engine) -> None:
    """Let ``engine`` open its connections in daemon threads: no driver has a time limit for the look-up of a name."""
    workers = WorkerPool(POOL_SIZE, "shedlock-connect")

    def connect(dialect: Dialect, record: ConnectionPoolEntry, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        opening = _current.get()
        if opening is None:
            return None
        seconds = opening.until - monotonic()

        def open_one() -> tuple[Any, SocketDuplicate | None]:
            if dialect.driver == "pymysql":
                return _connect_pymysql(dialect, args, options)
            return dialect.connect(*args, **options), None

        connection, duplicate = call_within(workers, seconds, "a connection", open_one, discard=_close)
        if duplicate is not None:
            record.info[SOCKET] = duplicate
        return connection

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "close", _close_duplicate)


def _connect_pymysql(
    dialect: Dialect, args: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Any, SocketDuplicate | None]:
    """On a socket that this function opens: PyMySQL has no public way to its own, and the watchdog needs one."""
    connection: Any = dialect.connect(*args, **options, defer_connect=True)
    if connection.unix_socket:
        connection.connect()
        return connection, None
    source = (connection.bind_address, 0) if connection.bind_address else None
    try:
        opened = socket.create_connection((connection.host, connection.port), connection.connect_timeout, source)
    except OSError as error:
        message = f"Can't connect to MySQL server on {connection.host!r} ({error})"
        raise dialect.loaded_dbapi.OperationalError(2003, message) from error
    duplicate = SocketDuplicate(opened.fileno())
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.connect(opened)
    except BaseException:
        opened.close()
        duplicate.close()
        raise
    return connection, duplicate


def _close(opened: tuple[Any, SocketDuplicate | None]) -> None:
    connection, duplicate = opened
    connection.close()
    if duplicate is not None:
        duplicate.close()


def _close_duplicate(_connection: object, record: ConnectionPoolEntry) -> None:
    duplicate = record.info.pop(SOCKET, None)
    if duplicate is not None:
        duplicate.close()
