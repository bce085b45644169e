"""The meaning of errors from SQLAlchemy and the drivers."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import ArgumentError, DBAPIError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shedlock_py.providers.kit import Failure
from shedlock_py.providers.sqlalchemy.sqlite_files import path_of
from shedlock_py.runtime.versions import sql_install_line


class UnconfirmedCommit(Exception):
    """The statement was carried out, but a failover may undo it."""


class FileReplaced(Exception):
    """The SQLite file at the path is not the file in which the statement was executed."""


class Missing(enum.Enum):
    """An object that the database lacks. Each has its own hint."""

    TABLE = "the lock table"
    SCHEMA = "the schema of the lock table"
    COLUMN = "a column of the lock table"


_BY_CODE: dict[str | int, Failure] = {
    # PostgreSQL: https://www.postgresql.org/docs/current/errcodes-appendix.html
    "40001": Failure.CONFLICT,  # serialization failure
    "40P01": Failure.CONFLICT,  # deadlock
    "55P03": Failure.CONFLICT,  # lock timeout
    "25006": Failure.NOT_DONE,  # read-only transaction: a standby
    "57014": Failure.UNREACHABLE,  # statement timeout
    "57P01": Failure.SESSION_CLOSED,  # for example by pg_terminate_backend()
    "57P02": Failure.SESSION_CLOSED,  # another session crashed
    "57P05": Failure.SESSION_CLOSED,  # idle_session_timeout
    # The first two characters of a code are its class.
    "08": Failure.UNREACHABLE,  # connection
    "28": Failure.REFUSED,  # wrong user or password
    "3D": Failure.REFUSED,  # no such database
    "53": Failure.UNREACHABLE,  # out of connections, memory, disk
    "57": Failure.UNREACHABLE,  # starting up, shutting down
    # MySQL and MariaDB: https://dev.mysql.com/doc/mysql-errors/en/server-error-reference.html
    1213: Failure.CONFLICT,  # deadlock
    1205: Failure.CONFLICT,  # lock wait timeout
    1020: Failure.CONFLICT,  # MariaDB's snapshot isolation: record has changed since last read
    **dict.fromkeys((1044, 1045, 1698), Failure.REFUSED),  # wrong user or password
    1049: Failure.REFUSED,  # no such database
    3101: Failure.CONFLICT,  # MySQL's Group Replication: another member's transaction was first
    **dict.fromkeys((1040, 1203, 1226), Failure.NOT_DONE),  # too many connections
    **dict.fromkeys((1021, 1041, 1114, 1135), Failure.NOT_DONE),  # out of disk, memory, table space, threads
    1129: Failure.NOT_DONE,  # this host is blocked, after too many connections that broke
    3032: Failure.NOT_DONE,  # MySQL is in offline mode
    **dict.fromkeys((1290, 1792, 1836), Failure.NOT_DONE),  # read-only
    **dict.fromkeys((1053, 1317, 1969, 3024), Failure.UNREACHABLE),  # shutting down, interrupted, timed out
    1047: Failure.NOT_DONE,  # a Galera node that has left its cluster
    1927: Failure.UNREACHABLE,  # MariaDB: the connection was killed
    3169: Failure.SESSION_CLOSED,  # MySQL: the session was killed
    4031: Failure.SESSION_CLOSED,  # MySQL: idle for longer than wait_timeout
    **dict.fromkeys((2002, 2003, 2005, 2006, 2013, 2055), Failure.UNREACHABLE),  # client: no or lost connection
}
_CANNOT_OPEN = "unable to open database file"
_BY_TEXT = {
    # If libpq cannot connect, its error has no code.
    "authentication failed": Failure.REFUSED,
    "no password supplied": Failure.REFUSED,
    # SQLite's driver has codes only in some versions.
    "is locked": Failure.NOT_DONE,  # after waiting for busy_timeout
    "readonly database": Failure.NOT_DONE,
    "disk I/O error": Failure.UNREACHABLE,
    "database or disk is full": Failure.NOT_DONE,
    _CANNOT_OPEN: Failure.NOT_DONE,
}
_MISSING: dict[str | int, Missing] = {
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
_DENIED_CODES = ("42501", 1044, 1142, 1143)  # for a schema, a database, a table or a column
_NO_SUCH_TIME = 1292
_READ_ONLY_CODES = ("25006", 1290, 1792, 1836, 1047)
_CLOSED_HANDLE = "the handler is closed"  # uvloop's message for a connection that was reset while idle
_ASYNCPG_SERVER_MESSAGE = "in the middle of operation: "  # the server's text follows; otherwise the connection broke


def translated(error: Exception, dialect: Dialect, sql: str | None = None, *, is_broken: bool = False) -> Exception:
    """Return a driver's ``error`` as SQLAlchemy's error, the same for all drivers. Return other errors unchanged."""
    driver_error = dialect.loaded_dbapi.Error
    if not isinstance(error, driver_error):
        return error
    return DBAPIError.instance(sql, None, error, driver_error, connection_invalidated=is_broken, dialect=dialect)


def translated_at_connect(error: Exception, dialect: Dialect) -> Exception:
    """Return :func:`translated` for a failed connect. An ``ArgumentError`` if the driver refused its arguments."""
    known = translated(error, dialect, is_broken=True)
    is_of_libpq = isinstance(known, ProgrammingError) and _code(known) is None  # errors from a server have a code
    if is_of_libpq or (isinstance(error, TypeError | ValueError) and not isinstance(error, UnicodeError)):
        known = ArgumentError(str(error))
        known.__cause__ = error
    return known


def classify(error: Exception) -> Failure:
    """Return the meaning of ``error`` for the statement that failed."""
    match error:
        case DBAPIError():
            known = _failure_of(error)
            if error.connection_invalidated:
                return known if known in (Failure.SESSION_CLOSED, Failure.REFUSED) else Failure.CONNECTION_LOST
            return known or Failure.REFUSED
        case PoolTimeout():
            return Failure.NOT_DONE
        case UnconfirmedCommit():
            return Failure.UNREACHABLE
        case FileReplaced():
            return Failure.SESSION_CLOSED
        case OSError():  # includes TimeoutError
            return Failure.CONNECTION_LOST
        case RuntimeError() if _CLOSED_HANDLE in str(error):
            return Failure.CONNECTION_LOST
        case SQLAlchemyError() | RuntimeError() | UnicodeError():
            # RuntimeError: an async engine in another event loop, or SQLite in a forked process. UnicodeError: the
            # connection's character set is too narrow.
            return Failure.REFUSED
        case _:
            return Failure.NOT_A_STORE_ERROR


def missing(error: BaseException | None) -> Missing | None:
    """Return the object that the database lacks, by its ``error``."""
    if not isinstance(error, DBAPIError):
        return None
    code = _code(error)
    if code is not None:
        return _MISSING.get(code)
    return next((what for part, what in _MISSING_BY_TEXT.items() if part in str(error.orig)), None)


def is_read_only(error: BaseException) -> bool:
    """Return whether this session's server is read-only, like a former primary. A new session may be writable."""
    if not isinstance(error, DBAPIError):
        return False
    code = _code(error)
    return code in _READ_ONLY_CODES or (code is None and "readonly database" in str(error.orig))


def is_outdated_plan(error: BaseException) -> bool:
    """Return whether PostgreSQL refused a prepared statement because the types of the columns have changed.

    It does so on every connection that has prepared the statement.
    """
    if not isinstance(error, DBAPIError):
        return False
    if type(error.orig).__name__ == "InvalidCachedStatementError":  # asyncpg's error, wrapped by SQLAlchemy
        return True
    source = getattr(getattr(error.orig, "diag", None), "source_function", None)  # the message may be translated
    return bool(source == "RevalidateCachedQuery")


def is_denied(error: BaseException | None) -> bool:
    """Return whether this user may not execute the statement."""
    return isinstance(error, DBAPIError) and _code(error) in _DENIED_CODES


def _code(error: BaseException | None) -> str | int | None:
    """Return the SQLSTATE, or the error number of MySQL's drivers."""
    original = error.orig if isinstance(error, DBAPIError) else error
    number = original.args[0] if original is not None and original.args else None
    if isinstance(number, int):
        return number
    sqlstate = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return sqlstate if isinstance(sqlstate, str) else None


def _failure_of(error: DBAPIError) -> Failure | None:
    if is_outdated_plan(error):
        return Failure.CONFLICT  # refused before execution; the next connection has no such plan
    code, text = _code(error), str(error.orig)
    if code == "08003" and _ASYNCPG_SERVER_MESSAGE in text:
        return Failure.SESSION_CLOSED
    if isinstance(code, str):
        return _BY_CODE.get(code) or _BY_CODE.get(code[:2])
    if code is not None:
        return _BY_CODE.get(code)
    return next((failure for part, failure in _BY_TEXT.items() if part in text), None)


def hint(
    error: BaseException,
    dialect: Dialect,
    table: str,
    schema: str | None,
    url: URL | None = None,
    *,
    is_runs: bool = False,
) -> str | None:
    """Return how the user can fix ``error``.

    :param is_runs: ``table`` is the table of runs.
    """
    if isinstance(error, DBAPIError) and dialect.name == "sqlite" and _CANNOT_OPEN in str(error.orig):
        return _hint_for_file(None if url is None else path_of(url))
    if is_denied(error):
        verb = (getattr(error, "statement", None) or "SELECT").split(None, 1)[0]
        if verb not in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "EXPLAIN"):
            return None  # to create or change a table, a user needs other rights
        rights = f"{RIGHTS}, DELETE" if is_runs or verb == "DELETE" else RIGHTS
        return f"as the owner of the table or an administrator: {grant_sql(dialect, table, schema, url, rights)}"
    lack = missing(error)
    if lack is Missing.TABLE:
        make = "runs_table" if is_runs else "lock_table"
        return (
            f"create the table {table} once, with configure(url, create_schema=True) or provider.create_schema() at "
            f"start-up, or add {make}(metadata) to your migrations; from a shell: shedlock schema --create"
        )
    if lack is Missing.SCHEMA and schema is not None:
        return f"create the schema once: CREATE SCHEMA {dialect.identifier_preparer.quote_schema(schema)}"
    if lack is Missing.COLUMN and is_runs:
        return f"drop the table {table}, and create it with provider.create_schema()"
    if lack is Missing.COLUMN:
        time_type = "DATETIME(6)" if dialect.name in ("mysql", "mariadb") else "TIMESTAMP"
        return (
            f"add the missing columns: ALTER TABLE {table} ADD COLUMN fencing_token BIGINT; "
            f"ALTER TABLE {table} ADD COLUMN last_fire_time {time_type}; or go without fencing tokens "
            f"and fire times on a table of ShedLock for Java: extra_columns=False "
            f"(from a shell: --store pkg.module:provider)"
        )
    if isinstance(error, DBAPIError) and _code(error) == _NO_SUCH_TIME:
        return (
            f"a TIMESTAMP column of {table} takes no time before 1970 or after 2038, and none that the zone of the "
            f"session leaves out when clocks go forward: set time_zone = '+00:00' in all sessions, or change the "
            f"columns to DATETIME(6)"
        )
    if isinstance(error, ArgumentError):
        return (
            f"check the options in the URL, or the engine's connect_args: the driver ({dialect.driver}) gets them as "
            f"they are, and its documentation lists those that it knows"
        )
    if isinstance(error, RuntimeError) and "'cryptography'" in str(error):  # from PyMySQL, aiomysql and asyncmy
        return (
            f"{sql_install_line(f'mysql+{dialect.driver}')}, or connect with TLS: MySQL's default authentication, "
            f"caching_sha2_password, needs one of the two"
        )
    if isinstance(error, DBAPIError) and 'prepared statement "' in str(error.orig):
        return (
            "a pooler such as PgBouncer in transaction mode does not keep prepared statements: take "
            "postgresql+psycopg without prepare=yes; an engine of yours needs connect_args={'prepare_threshold': None}"
        )
    return None


def _hint_for_file(path: str | None) -> str | None:
    """Return why SQLite cannot open the file at ``path``, if that is visible."""
    if path is None:
        return None
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return f"the file is {path}, and the directory {directory} does not exist: create it, or correct the path"
    if os.path.isdir(path):
        return f"{path} is a directory: name a file in it"
    return f"the file is {path}: let this user write to it and to its directory"


RIGHTS = "SELECT, INSERT, UPDATE"
"""Rights that jobs need. ``prune`` also needs DELETE."""


def grant_sql(dialect: Dialect, table: str, schema: str | None, url: URL | None, rights: str = RIGHTS) -> str:
    """Return the SQL that gives this user ``rights`` on ``table``, for the owner of the table or an administrator."""
    preparer = dialect.identifier_preparer
    is_named = url is not None and bool(url.username) and dialect.name == "postgresql"  # MySQL's users also have a host
    user = preparer.quote(str(url.username)) if url is not None and is_named else "this user"
    grants = [f"GRANT {rights} ON {table} TO {user}"]
    if schema is not None and dialect.name == "postgresql":
        grants.insert(0, f"GRANT USAGE ON SCHEMA {preparer.quote_schema(schema)} TO {user}")
    return "; ".join(grants)


_CONFLICT_CODES = ("40001", 1020)  # PostgreSQL: serialization failure; MariaDB: innodb_snapshot_isolation
_CONFLICT_NOTE = (
    "verify() of shedlock_py: the lock record was updated since the snapshot of this transaction was taken, and a "
    "heartbeat is enough for that. Run the transaction at READ COMMITTED (with SQLAlchemy: "
    'execution_options(isolation_level="READ COMMITTED")), or guard it without keep_alive and with a '
    "lock_at_most_for that covers it. To run it again helps only if it is shorter than the time between two heartbeats."
)


@contextmanager
def explained_conflicts() -> Iterator[None]:
    """Add a note to the database's error. Its type stays, because code that repeats transactions depends on it."""
    try:
        yield
    except Exception as error:
        if _code(error) in _CONFLICT_CODES or _code(error.__cause__) in _CONFLICT_CODES:  # Django's error has a cause
            error.add_note(_CONFLICT_NOTE)
        raise
