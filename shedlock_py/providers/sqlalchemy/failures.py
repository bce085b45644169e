"""What an error of SQLAlchemy or a driver means."""

from __future__ import annotations

import enum

from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout


class NotSent(Exception):
    """No connection could be had, so nothing was asked; ``__cause__`` is why."""


class Unconfirmed(Exception):
    """The statement was done, but may be undone by a fail-over."""


class Failure(enum.Enum):
    """Each asks for another answer."""

    CONFLICT = "undone by the database because of a concurrent statement; asking again is safe and may work"
    GONE = "the connection broke; whether the statement was done is unknown"
    ENDED = "the server ended the session, and is there: others may do, as in GONE, though their end may come as soon"
    UNREACHABLE = "no answer, or none that would be different from another replica's"
    NO_TABLE = "the lock table is missing"
    NO_SCHEMA = "the schema of the lock table is missing"
    NO_COLUMN = "the lock table lacks a column"
    REFUSED = "the database answered with an error"
    FOREIGN = "not from the database at all, such as an exception raised by a signal handler"


# PostgreSQL: https://www.postgresql.org/docs/current/errcodes-appendix.html
_BY_SQLSTATE = {
    "40001": Failure.CONFLICT,  # serialization failure
    "40P01": Failure.CONFLICT,  # deadlock
    "55P03": Failure.CONFLICT,  # lock timeout
    "42P01": Failure.NO_TABLE,
    "3F000": Failure.NO_SCHEMA,
    "42703": Failure.NO_COLUMN,
    "25006": Failure.UNREACHABLE,  # read-only transaction: a standby
    "57014": Failure.UNREACHABLE,  # statement timeout
    "57P01": Failure.ENDED,  # by pg_terminate_backend(), say
    "57P02": Failure.ENDED,  # another session has crashed
    "57P05": Failure.ENDED,  # idle_session_timeout
}
_ASYNCPG_WAS_TOLD = "in the middle of operation: "  # the server's words follow; without them the connection just broke
_BY_SQLSTATE_CLASS = {
    "08": Failure.UNREACHABLE,  # connection
    "28": Failure.REFUSED,  # wrong user or password
    "3D": Failure.REFUSED,  # no such database
    "53": Failure.UNREACHABLE,  # out of connections, memory, disk
    "57": Failure.UNREACHABLE,  # starting up, shutting down
}
# MySQL and MariaDB: https://mariadb.com/kb/en/mariadb-error-codes/
_BY_MYSQL_CODE = {
    1213: Failure.CONFLICT,  # deadlock
    1205: Failure.CONFLICT,  # lock wait timeout
    1020: Failure.CONFLICT,  # MariaDB's snapshot isolation: record has changed since last read
    1146: Failure.NO_TABLE,
    **dict.fromkeys((1044, 1045, 1698), Failure.REFUSED),  # wrong user or password
    1049: Failure.REFUSED,  # no such database
    1054: Failure.NO_COLUMN,
    **dict.fromkeys((1040, 1203, 1226), Failure.UNREACHABLE),  # too many connections
    **dict.fromkeys((1290, 1792, 1836), Failure.UNREACHABLE),  # read-only
    **dict.fromkeys((1053, 1317, 1969, 3024), Failure.UNREACHABLE),  # shutting down, interrupted, timed out
    1047: Failure.UNREACHABLE,  # a Galera node that has left its cluster
    1927: Failure.UNREACHABLE,  # MariaDB: the connection was killed
    **dict.fromkeys((2002, 2003, 2005, 2006, 2013, 2055), Failure.UNREACHABLE),  # the client's: no or lost connection
}
_BY_TEXT = {
    # libpq gives no code when it cannot connect.
    "authentication failed": Failure.REFUSED,
    "no password supplied": Failure.REFUSED,
    # SQLite's driver gives codes only in some versions.
    "no such table": Failure.NO_TABLE,
    "no such column": Failure.NO_COLUMN,
    "has no column named": Failure.NO_COLUMN,
    "is locked": Failure.UNREACHABLE,  # after waiting for busy_timeout
    "readonly database": Failure.UNREACHABLE,
    "disk I/O error": Failure.UNREACHABLE,
    "database or disk is full": Failure.UNREACHABLE,
    "unable to open database file": Failure.UNREACHABLE,
}


def translated(error: Exception, dialect: Dialect, sql: str | None = None, *, is_broken: bool = False) -> Exception:
    """A driver's ``error`` as SQLAlchemy's, which is the same for all drivers; any other as it is."""
    driver_error = dialect.loaded_dbapi.Error
    if not isinstance(error, driver_error):
        return error
    known: Exception = DBAPIError.instance(
        sql, None, error, driver_error, connection_invalidated=is_broken, dialect=dialect
    )
    known.__cause__ = error
    return known


def classify(error: Exception) -> Failure:
    """What ``error`` means for the statement that met it."""
    if isinstance(error, NotSent):
        cause = error.__cause__
        known = _from_codes(cause) if isinstance(cause, DBAPIError) else None
        return known if known in (Failure.REFUSED, Failure.ENDED) else Failure.UNREACHABLE
    if isinstance(error, DBAPIError):
        known = _from_codes(error)
        if error.connection_invalidated:
            return Failure.ENDED if known is Failure.ENDED else Failure.GONE
        return known or Failure.REFUSED
    if isinstance(error, PoolTimeout | Unconfirmed):
        return Failure.UNREACHABLE
    if isinstance(error, OSError):  # with TimeoutError
        return Failure.GONE
    if isinstance(error, SQLAlchemyError | RuntimeError | UnicodeError):
        # RuntimeError: an async engine used from another event loop; UnicodeError: a connection's narrow character set.
        return Failure.REFUSED
    return Failure.FOREIGN


# What drivers raise while connecting, apart from what classify() knows: a server that hangs up, bad options of a URL.
_OF_CONNECTING = (EOFError, TypeError, ValueError)


def is_of_connecting(error: Exception) -> bool:
    """Whether ``error`` says that no connection could be had; else it is an exception raised by a signal handler."""
    if classify(error) is not Failure.FOREIGN or isinstance(error, _OF_CONNECTING):
        return True
    return type(error).__module__.partition(".")[0] == "asyncpg"  # SQLAlchemy passes on its errors as they are


def _from_codes(error: DBAPIError) -> Failure | None:
    original = error.orig
    code = original.args[0] if original is not None and original.args else None
    if isinstance(code, int):
        return _BY_MYSQL_CODE.get(code)
    sqlstate = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if sqlstate == "08003" and _ASYNCPG_WAS_TOLD in str(original):
        return Failure.ENDED
    if isinstance(sqlstate, str):
        return _BY_SQLSTATE.get(sqlstate) or _BY_SQLSTATE_CLASS.get(sqlstate[:2])
    text = str(original)
    return next((failure for part, failure in _BY_TEXT.items() if part in text), None)


def reason(error: BaseException) -> str:
    """The driver's own words, on one line."""
    if isinstance(error, NotSent) and error.__cause__ is not None:
        error = error.__cause__
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = " ".join(str(original).split())
    if not text:
        text = "no answer in time" if isinstance(original, TimeoutError) else type(original).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"
