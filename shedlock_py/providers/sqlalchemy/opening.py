"""Connections of sync drivers that are opened within a time limit, the look-up of the host's name included."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.pool import ConnectionPoolEntry

from shedlock_py._clock import monotonic
from shedlock_py._timers import WorkerPool
from shedlock_py.providers.kit import TimedOut, call_within
from shedlock_py.providers.sqlalchemy.engines import POOL_SIZE
from shedlock_py.providers.sqlalchemy.watchdog import SOCKET, Duplicate

Watch = Callable[[Any, float], Callable[[], bool]]
"""Ends a connection of the pool at a moment. The result calls that off, and says whether it was too late for that."""


@dataclass(slots=True)
class Opening:
    """The time limit of a connection that is being opened, with what SQLAlchemy first sends on it."""

    until: float
    call_off: Callable[[], bool] = bool


current_opening: ContextVar[Opening | None] = ContextVar("current_opening", default=None)


@contextmanager
def open_until(until: float | None) -> Iterator[None]:
    """The time limit for connections that SQLAlchemy's pool opens inside.

    :raises TimedOut: the limit ended what SQLAlchemy sent.
    """
    if until is None:
        yield
        return
    opening = Opening(until)
    token = current_opening.set(opening)
    try:
        yield
    except Exception as error:
        if opening.call_off():
            raise TimedOut("a connection", sent=False) from error
        raise
    finally:
        opening.call_off()
        current_opening.reset(token)


def watch_first_queries(engine: Engine, watch: Watch) -> None:
    """SQLAlchemy's own, on each new connection."""

    def begin(_connection: object, record: ConnectionPoolEntry) -> None:
        opening = current_opening.get()
        if opening is not None:
            opening.call_off()
            opening.call_off = watch(record, opening.until)

    event.listen(engine, "connect", begin, insert=True)


def connect_in_time(engine: Engine) -> None:
    """Let ``engine`` open its connections in daemon threads: no driver has a time limit for the look-up of a name."""
    workers = WorkerPool(POOL_SIZE, "shedlock-connect")

    def connect(dialect: Dialect, record: ConnectionPoolEntry, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        opening = current_opening.get()
        if opening is None:
            return None
        seconds = opening.until - monotonic()

        def open_one() -> tuple[Any, Duplicate | None]:
            if dialect.driver == "pymysql":
                return _connect_pymysql(dialect, args, options)
            return dialect.connect(*args, **options), None

        connection, duplicate = call_within(workers, seconds, "a connection", open_one, discard=_close)
        if duplicate is not None:
            record.info[SOCKET] = duplicate
        return connection

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "close", _close_duplicate)


def _connect_pymysql(dialect: Dialect, args: Sequence[Any], options: Mapping[str, Any]) -> tuple[Any, Duplicate | None]:
    """On a socket that we opened: PyMySQL has no public way to its own, which is needed to end a silent connection."""
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
    duplicate = Duplicate(opened)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.connect(opened)
    except BaseException:
        opened.close()
        duplicate.close()
        raise
    return connection, duplicate


def _close(opened: tuple[Any, Duplicate | None]) -> None:
    connection, duplicate = opened
    connection.close()
    if duplicate is not None:
        duplicate.close()


def _close_duplicate(_connection: object, record: ConnectionPoolEntry) -> None:
    duplicate = record.info.pop(SOCKET, None)
    if duplicate is not None:
        duplicate.close()
