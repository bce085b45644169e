"""What an error of SQLAlchemy or a driver means."""

from __future__ import annotations

import enum

from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shedlock_py.providers.kit import Failure


class Unconfirmed(Exception):
    """The statement was carried out, but a failover may undo it."""


class FileReplaced(Exception):
    """The SQLite file at the path is another one than the file that the statement was carried out in."""


class Missing(enum.Enum):
    """What the database lacks; each has a cure of its own."""

    TABLE = "the lock table"
    SCHEMA = "the schema of the lock table"
    COLUMN = "a column of the lock table"


# PostgreSQL: https://www.postgresql.org/docs/current/errcodes-appendix.html
_BY_SQLSTATE = {
    "40001": Failure.CONFLICT,  # serialization failure
    "40P01": Failure.CONFLICT,  # deadlock
    "55P03": Failure.CONFLICT,  # lock timeout
    "25006": Failure.NOT_DONE,  # read-only transaction: a standby
    "57014": Failure.UNREACHABLE,  # statement timeout
    "57P01": Failure.SESSION_CLOSED,  # by pg_terminate_backend(), say
    "57P02": Failure.SESSION_CLOSED,  # another session has crashed
    "57P05": Failure.SESSION_CLOSED,  # idle_session_timeout
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
    **dict.fromkeys((1044, 1045, 1698), Failure.REFUSED),  # wrong user or password
    1049: Failure.REFUSED,  # no such database
    **dict.fromkeys((1040, 1203, 1226), Failure.NOT_DONE),  # too many connections
    **dict.fromkeys((1290, 1792, 1836), Failure.NOT_DONE),  # read-only
    **dict.fromkeys((1053, 1317, 1969, 3024), Failure.UNREACHABLE),  # shutting down, interrupted, timed out
    1047: Failure.NOT_DONE,  # a Galera node that has left its cluster
    1927: Failure.UNREACHABLE,  # MariaDB: the connection was killed
    **dict.fromkeys((2002, 2003, 2005, 2006, 2013, 2055), Failure.UNREACHABLE),  # the client's: no or lost connection
}
_BY_TEXT = {
    # libpq gives no code when it cannot connect.
    "authentication failed": Failure.REFUSED,
    "no password supplied": Failure.REFUSED,
    # SQLite's driver gives codes only in some versions.
    "is locked": Failure.NOT_DONE,  # after waiting for busy_timeout
    "readonly database": Failure.NOT_DONE,
    "disk I/O error": Failure.UNREACHABLE,
    "database or disk is full": Failure.NOT_DONE,
    "unable to open database file": Failure.NOT_DONE,
}
_MISSING_BY_CODE: dict[object, Missing] = {
    "42P01": Missing.TABLE,
    "3F000": Missing.SCHEMA,
    "42703": Missing.COLUMN,
    1146: Missing.TABLE,
    1054: Missing.COLUMN,
}
_MISSING_BY_TEXT = {
    "no such table": Missing.TABLE,
    "no such column": Missing.COLUMN,
    "has no column named": Missing.COLUMN,
}
_READ_ONLY_CODES = ("25006", 1290, 1792, 1836, 1047)
_READ_ONLY_TEXT = "readonly database"


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
    """What ``error`` means for the statement that failed."""
    if isinstance(error, DBAPIError):
        known = _from_code(error)
        if error.connection_invalidated:
            return known if known in (Failure.SESSION_CLOSED, Failure.REFUSED) else Failure.CONNECTION_LOST
        return known or Failure.REFUSED
    if isinstance(error, PoolTimeout):
        return Failure.NOT_DONE
    if isinstance(error, Unconfirmed):
        return Failure.UNREACHABLE
    if isinstance(error, OSError | FileReplaced):  # with TimeoutError
        return Failure.CONNECTION_LOST
    if isinstance(error, SQLAlchemyError | RuntimeError | UnicodeError):
        # RuntimeError: an async engine used from another event loop; UnicodeError: a connection's narrow character set.
        return Failure.REFUSED
    return Failure.NOT_A_STORE_ERROR


def missing(error: BaseException | None) -> Missing | None:
    """What ``error`` says the database lacks."""
    if not isinstance(error, DBAPIError):
        return None
    code, words = _code(error), str(error.orig)
    if code is not None:
        return _MISSING_BY_CODE.get(code)
    return next((lack for part, lack in _MISSING_BY_TEXT.items() if part in words), None)


def is_read_only(error: BaseException) -> bool:
    """Whether this session's server takes no writes, as a former primary; the server at that address may be another."""
    if not isinstance(error, DBAPIError):
        return False
    code = _code(error)
    return code in _READ_ONLY_CODES or (code is None and _READ_ONLY_TEXT in str(error.orig))


# What drivers raise while connecting, apart from what classify() knows: a server that hangs up, wrong options in a URL.
_OF_CONNECTING = (EOFError, TypeError, ValueError)


def is_of_connecting(error: Exception) -> bool:
    """Whether ``error`` says that no connection could be had; else it is an exception raised by a signal handler."""
    if classify(error) is not Failure.NOT_A_STORE_ERROR or isinstance(error, _OF_CONNECTING):
        return True
    return type(error).__module__.partition(".")[0] == "asyncpg"  # SQLAlchemy passes on its errors as they are


def _code(error: DBAPIError) -> str | int | None:
    """The SQLSTATE, or the error number of MySQL's drivers."""
    original = error.orig
    number = original.args[0] if original is not None and original.args else None
    if isinstance(number, int):
        return number
    sqlstate = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return sqlstate if isinstance(sqlstate, str) else None


def _from_code(error: DBAPIError) -> Failure | None:
    code, words = _code(error), str(error.orig)
    if isinstance(code, int):
        return _BY_MYSQL_CODE.get(code)
    if code == "08003" and _ASYNCPG_WAS_TOLD in words:
        return Failure.SESSION_CLOSED
    if code is not None:
        return _BY_SQLSTATE.get(code) or _BY_SQLSTATE_CLASS.get(code[:2])
    return next((failure for part, failure in _BY_TEXT.items() if part in words), None)


def reason(error: BaseException) -> str:
    """The driver's own words, on one line."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = " ".join(str(original).split())
    if not text:
        text = "no answer in time" if isinstance(original, TimeoutError) else type(original).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"
