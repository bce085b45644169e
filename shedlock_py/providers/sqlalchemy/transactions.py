"""Checks a lease in a transaction of the application, on a connection of SQLAlchemy, Django or a driver.

This module imports no driver: an application that passes a connection has imported its driver.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

from sqlalchemy import text

from shedlock_py.errors import ConfigurationError, LeaseLostError
from shedlock_py.model.lease import Lease
from shedlock_py.providers.sqlalchemy.sql_programs import SqlPrograms, identifiers


class _Kind(NamedTuple):
    """Connections of one driver, or of Django."""

    class_path: str
    dialect: str
    paramstyle: str
    is_in_transaction: Callable[[Any], bool]
    """Called after a statement. The statement begins a transaction, unless the connection is in autocommit mode."""
    cure: str
    """How to leave autocommit mode."""
    is_async: bool = False


def _is_not_idle(connection: Any) -> bool:
    return bool(connection.info.transaction_status != 0)  # PQTRANS_IDLE of libpq


def _is_without_autocommit(connection: Any) -> bool:
    return not connection.get_autocommit()


def _has_begun(connection: Any) -> bool:
    return bool(connection.in_transaction)


def _is_in_transaction(connection: Any) -> bool:
    return bool(connection.is_in_transaction())


def _is_atomic(connection: Any) -> bool:
    return connection.in_atomic_block or not connection.get_autocommit()


_BLOCK = "use a block 'with connection.transaction():'"
_ASYNC_BLOCK = "use a block 'async with connection.transaction():'"
_SET = "set connection.autocommit = False"
_CALL = "call connection.autocommit(False) before the transaction begins"
_BEGIN = "execute BEGIN before the first statement"

_KINDS = (
    _Kind("psycopg.Connection", "postgresql", "format", _is_not_idle, _BLOCK),
    _Kind("psycopg2.extensions.connection", "postgresql", "format", _is_not_idle, _SET),
    _Kind("pymysql.connections.Connection", "mysql", "format", _is_without_autocommit, _CALL),
    _Kind("MySQLdb.connections.Connection", "mysql", "format", _is_without_autocommit, _CALL),
    _Kind("sqlite3.Connection", "sqlite", "qmark", _has_begun, _BEGIN),
    _Kind("psycopg.AsyncConnection", "postgresql", "format", _is_not_idle, _ASYNC_BLOCK, is_async=True),
    _Kind("asyncpg.Connection", "postgresql", "numeric_dollar", _is_in_transaction, _ASYNC_BLOCK, is_async=True),
    _Kind("aiomysql.Connection", "mysql", "format", _is_without_autocommit, f"await {_CALL}", is_async=True),
    _Kind("asyncmy.connection.Connection", "mysql", "format", _is_without_autocommit, f"await {_CALL}", is_async=True),
    _Kind("aiosqlite.Connection", "sqlite", "qmark", _has_begun, _BEGIN, is_async=True),
)
_DJANGO = ("django.utils.connection.ConnectionProxy", "django.db.backends.base.base.BaseDatabaseWrapper")
_DJANGO_CURE = "use a block 'with transaction.atomic():'"
_SQLALCHEMY = ("sqlalchemy.Connection", "sqlalchemy.orm.Session", "sqlalchemy.orm.scoped_session")
_ASYNC_SQLALCHEMY = tuple(
    f"sqlalchemy.ext.asyncio.{name}" for name in ("AsyncConnection", "AsyncSession", "async_scoped_session")
)
_SQLALCHEMY_CURE = "use an engine without isolation_level='AUTOCOMMIT'"


def check_lease(lease: object) -> None:
    """:raises ConfigurationError: ``lease`` is another object, such as None or the connection."""
    if not isinstance(lease, Lease):
        raise ConfigurationError(
            f"verify(lease, connection) needs the lease first, not {_shown(type(lease))}: hold(…) and current_lease() "
            f"return it"
        )


def verify_in(connection: Any, programs: SqlPrograms, lease: Lease) -> None:
    """Check in the transaction of ``connection`` that ``lease`` is held, and lock its record until the commit."""
    if _is_one_of(connection, _SQLALCHEMY):
        _verify_in_sqlalchemy(connection, programs, lease)
        return
    kind, own = _recognised(connection, programs, is_async=False)
    sql, values = _compiled(programs, kind.paramstyle, lease)
    with closing(own.cursor()) as cursor:
        cursor.execute(sql, values)
        row = cursor.fetchone()
    _require(lease, row, kind.is_in_transaction(own), kind.cure)


async def verify_in_async(connection: Any, programs: SqlPrograms, lease: Lease) -> None:
    """:func:`verify_in` for asyncio."""
    if _is_one_of(connection, _ASYNC_SQLALCHEMY):
        session = getattr(connection, "registry", lambda: connection)()
        await session.run_sync(_verify_in_sqlalchemy, programs, lease)
        return
    kind, own = _recognised(connection, programs, is_async=True)
    sql, values = _compiled(programs, kind.paramstyle, lease)
    if kind.paramstyle == "numeric_dollar":
        row = await own.fetchval(sql, *values)
    else:
        async with own.cursor() as cursor:
            await cursor.execute(sql, values)
            row = await cursor.fetchone()
    _require(lease, row, kind.is_in_transaction(own), kind.cure)


def _verify_in_sqlalchemy(given: Any, programs: SqlPrograms, lease: Lease) -> None:
    connection = given if _is_one_of(given, _SQLALCHEMY[:1]) else given.connection()  # of a session
    if _family(connection.dialect.name) != _family(programs.dialect.name):
        raise _refusal(f"a connection to {connection.dialect.name}", programs, is_async=connection.dialect.is_async)
    row = connection.execute(text(programs.verify_sql), identifiers(lease)).first()
    driver = connection.connection.driver_connection
    is_open = all(kind.is_in_transaction(driver) for kind in _KINDS if _is_one_of(driver, (kind.class_path,)))
    _require(lease, row, is_open, _SQLALCHEMY_CURE)


def _recognised(connection: Any, programs: SqlPrograms, *, is_async: bool) -> tuple[_Kind, Any]:
    """Return the kind of a connection, or of a cursor's connection, and the connection."""
    own = getattr(connection, "connection", None) if hasattr(connection, "fetchone") else connection
    if _is_one_of(own, _DJANGO):
        vendor = str(getattr(own, "vendor", None))
        kinds: tuple[_Kind, ...] = (_Kind("", vendor, "format", _is_atomic, _DJANGO_CURE),)
    else:
        kinds = tuple(kind for kind in _KINDS if _is_one_of(own, (kind.class_path,)))
    for kind in kinds:
        if kind.is_async is is_async and kind.dialect == _family(programs.dialect.name):
            return kind, own
    raise _refusal(_shown(type(connection)), programs, is_async=is_async)


def _refusal(given: str, programs: SqlPrograms, *, is_async: bool) -> ConfigurationError:
    dialect = _family(programs.dialect.name)
    paths = [kind.class_path for kind in _KINDS if (kind.dialect, kind.is_async) == (dialect, is_async)]
    accepted = [*_ASYNC_SQLALCHEMY[:2], *paths] if is_async else [*_SQLALCHEMY[:2], "django.db.connection", *paths]
    other = "the connections of ordinary code" if is_async else "connections of asyncio"
    provider = "SqlAlchemyLockProvider" if is_async else "AsyncSqlAlchemyLockProvider"
    return ConfigurationError(
        f"verify() was given {given}: give it the connection of the transaction that writes to the {dialect} database "
        f"of the locks, as {', '.join(accepted)}; {provider} takes {other}"
    )


def _family(dialect: str) -> str:
    return "mysql" if dialect == "mariadb" else dialect


def _shown(given: type) -> str:
    return given.__name__ if given.__module__ == "builtins" else f"{given.__module__}.{given.__name__}"


def _is_one_of(given: object, class_paths: tuple[str, ...]) -> bool:
    """Return whether ``given`` is an instance of a class. It is not if nobody has imported the module of the class."""
    for path in class_paths:
        module, _, name = path.rpartition(".")
        if isinstance(given, getattr(sys.modules.get(module), name, ())):
            return True
    return False


def _compiled(programs: SqlPrograms, paramstyle: str, lease: Lease) -> tuple[str, list[object]]:
    """Return the statement in the parameter style of a driver, and its values."""
    dialect = type(programs.dialect)(paramstyle=paramstyle)  # type: ignore[call-arg]  # of each DefaultDialect
    compiled: Any = text(programs.verify_sql).compile(dialect=dialect)
    values = identifiers(lease)
    return str(compiled), [values[name] for name in compiled.positiontup]


def _require(lease: Lease, row: object, is_in_transaction: bool, cure: str) -> None:
    if not is_in_transaction:
        raise ConfigurationError(
            f"verify() needs a transaction to roll back, and this connection is in autocommit mode: {cure}"
        )
    if row is None:
        raise LeaseLostError(f"lock {lease.name!r}: this lease has ended or was taken over; roll back")
