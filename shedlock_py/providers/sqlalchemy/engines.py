"""Opens engines from a URL: autocommit, no pool, and time limits."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sqlalchemy import URL, NullPool, Pool, SingletonThreadPool, StaticPool, create_engine, event, make_url
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from shedlock_py.errors import ConfigurationError
from shedlock_py.events import logger
from shedlock_py.model.text import one_line
from shedlock_py.providers.kit import DEFAULT_TIMEOUT, Masking, is_secret_option
from shedlock_py.providers.sqlalchemy.sqlite_files import with_absolute_path
from shedlock_py.runtime.versions import sql_install_line

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


# If the URL names no driver, the first installed driver is used.
_DRIVERS = {
    "postgresql": ("psycopg", "psycopg2"),
    "mysql": ("pymysql", "mysqldb"),
    "mariadb": ("pymysql", "mysqldb"),
    "sqlite": ("pysqlite",),
}
_ASYNC_DRIVERS = {
    "postgresql": ("asyncpg", "psycopg"),
    "mysql": ("asyncmy", "aiomysql"),
    "mariadb": ("asyncmy", "aiomysql"),
    "sqlite": ("aiosqlite",),
}


@dataclass(frozen=True)
class Sessions:
    """Options of managed sessions. Times are in seconds.

    :ivar timeout: of an operation.
    :ivar idle_timeout: an idle session is closed after it. A serverless database sleeps only without open sessions.
    :ivar prepares: psycopg prepares the statements that a session repeats. A pooler such as PgBouncer does not keep
        prepared statements.
    """

    timeout: float = DEFAULT_TIMEOUT.total_seconds()
    idle_timeout: float = 60.0
    prepares: bool = False


_THREE_SLASHES = (
    "a SQLite file needs three slashes, sqlite:///locks.db, sqlite:///C:/data/locks.db, an absolute path of Unix four, "
    "sqlite:////data/locks.db; after two slashes comes a host name"
)
_SEVERAL_PORTS = re.compile(r"(?:postgres|postgresql)(?:\+\w+)?://(?:[^/?]*@)?[^/?@]*:\d*,")
_SEVERAL_HOSTS = (
    "store URL: several hosts with ports are options of the URL: "
    "postgresql://user:password@/database?host=db1:5432&host=db2:5432"
)
_IN_HOME = re.compile(r"(?:file:)?~[^/\\]*[/\\]")
_MODULES = {"mysqldb": "MySQLdb", "pysqlite": "sqlite3"}


def parse_url(url: str | URL, *, is_async: bool) -> URL:
    """Return ``url`` with a driver.

    :raises ConfigurationError: it is not a URL, its driver is unknown or of the other kind (sync or async), or it is a
        private in-memory database.
    """
    try:
        # Hosting services write "postgres" in DATABASE_URL.
        parsed = make_url(url.replace("postgres://", "postgresql://", 1) if isinstance(url, str) else url)
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        if isinstance(url, str) and url.startswith("sqlite"):  # sqlite://C:\path is read as host and port
            raise ConfigurationError(_THREE_SLASHES) from None
        if isinstance(url, str) and _SEVERAL_PORTS.match(url):
            raise ConfigurationError(_SEVERAL_HOSTS) from None
        raise ConfigurationError("store URL: not of the form postgresql://user@host/database") from None
    if "@" in (parsed.host or ""):
        raise ConfigurationError("store URL: in a password, write %40 for @")  # otherwise its end is read as the host
    name, _, driver = parsed.drivername.partition("+")
    drivers = (_ASYNC_DRIVERS if is_async else _DRIVERS).get(name, ())
    if not driver:
        installed = [driver for driver in drivers if find_spec(_MODULES.get(driver, driver))]
        if drivers:
            parsed = parsed.set(drivername=f"{name}+{(installed or drivers)[0]}")
    try:
        dialect = parsed.get_dialect()
    except (NoSuchModuleError, ArgumentError):
        raise ConfigurationError(f"store URL: unknown driver in {parsed.drivername}://") from None
    if is_async:
        dialect = dialect.get_async_dialect_cls(parsed)  # psycopg has a sync and an async dialect
    if dialect.is_async is not is_async:
        raise ConfigurationError(
            f"{parsed.drivername}:// is {'not an' if is_async else 'an'} async driver; use {_schemes(name, drivers)}"
        )
    if drivers and dialect.driver.removesuffix("_async") not in drivers:
        raise ConfigurationError(
            f"{parsed.drivername}:// is not supported, because shedlock_py cannot limit how long it waits; use "
            f"{_schemes(name, drivers)}"
        )
    if parsed.get_backend_name() == "sqlite" and parsed.host:
        raise ConfigurationError(_THREE_SLASHES)
    if parsed.get_backend_name() == "sqlite" and _IN_HOME.match(parsed.database or ""):
        raise ConfigurationError(
            "SQLite does not expand '~': it would look for a directory of that name. Write the whole path, for example "
            f"{_home_url()}"
        )
    _refuse_private_database(parsed)
    return with_absolute_path(parsed)


_PLACES = ("host", "port", "service", "unix_socket", "mode")
"""URL options that may be shown, because they name the database. Any other option may be a secret."""


def shown_url(url: URL) -> str:
    """Return ``url`` for people, without the password and without options that may be secrets."""
    places = {name: value for name, value in url.query.items() if name in _PLACES}
    return url.set(query=places).render_as_string(hide_password=True)


def secrets_of(url: URL) -> list[str]:
    """Return the password of ``url``, and its secret options."""
    return [str(url.password or ""), *(value for name, value in _options_of(url) if is_secret_option(name))]


def names_of(url: URL) -> list[str]:
    """Return the user, the hosts and the database of ``url``, and its options that are not secret."""
    names = [value for name, value in _options_of(url) if not is_secret_option(name)]
    return [url.username or "", url.host or "", str(url.port or ""), url.database or "", *names]


def prepares_nothing(url: URL, sessions: Sessions) -> bool:
    """Return whether psycopg prepares no statements for ``url``, and ``prepare=yes`` would change that."""
    is_psycopg = url.get_driver_name() in ("psycopg", "psycopg_async")
    return is_psycopg and not sessions.prepares and "prepare_threshold" not in url.query


def _options_of(url: URL) -> Iterator[tuple[str, str]]:
    for name, values in url.query.items():
        yield from ((name, value) for value in ([values] if isinstance(values, str) else values))


def _home_url() -> str:
    return "sqlite:///" + os.path.join(os.path.expanduser("~"), "locks.db")


def _schemes(name: str, drivers: Sequence[str]) -> str:
    return " or ".join(f"{name}+{driver}://" for driver in drivers)


def _refuse_private_database(url: URL) -> None:
    if url.get_backend_name() == "sqlite" and (
        url.database in (None, "")
        or ":memory:" in str(url.database)
        or "mode=memory" in str(url.database)
        or url.query.get("mode") == "memory"
    ):
        raise ConfigurationError(
            "an in-memory SQLite database is private to one connection and locks nothing: use a file "
            "(sqlite:///locks.db), or InMemoryLockProvider for tests"
        )


def check_user_engine(engine: Engine) -> None:
    """:raises ConfigurationError: its connections are private, or application and provider would share a connection."""
    _refuse_private_database(engine.url)
    name, driver = engine.dialect.name, engine.dialect.driver.removesuffix("_async")
    known = (*_DRIVERS.get(name, ()), *_ASYNC_DRIVERS.get(name, ()))
    if known and driver not in known:  # the programs report unsupported dialects
        raise ConfigurationError(f"the driver {driver} is not supported: use an engine with {' or '.join(known)}")
    pool: Pool = engine.pool
    if isinstance(pool, StaticPool | SingletonThreadPool):
        database = "a file (sqlite:///locks.db) with the" if engine.dialect.name == "sqlite" else "an engine with its"
        raise ConfigurationError(
            f"this engine's {type(pool).__name__} gives the same connection to you and to the provider, which would "
            f"share your transaction: use {database} default pool"
        )


def open_engine(url: URL, sessions: Sessions) -> Engine:
    """Return an engine for ``url``. It connects at first use and keeps no connections."""
    engine: Engine = _create(create_engine, url, sessions)
    _prepare_sessions(engine)
    return engine


def open_async_engine(url: URL, sessions: Sessions) -> AsyncEngine:
    """Return an engine like :func:`open_engine`, for asyncio."""
    from sqlalchemy.ext.asyncio import create_async_engine  # imported late: loads the ORM

    engine: AsyncEngine = _create(create_async_engine, url, sessions)
    _prepare_sessions(engine.sync_engine)
    return engine


def _prepare_sessions(engine: Engine) -> None:
    match engine.dialect.name:
        case "sqlite":
            event.listen(engine, "connect", _switch_to_wal)
        case "mysql" | "mariadb":
            event.listen(engine, "connect", _prepare_mysql_session)


def _create(create: Any, url: URL, sessions: Sessions) -> Any:
    options: dict[str, Any] = {
        "poolclass": NullPool,
        "isolation_level": "AUTOCOMMIT",
        "pool_reset_on_return": None,  # single statements in autocommit leave no transaction to roll back
        "connect_args": {name: value for name, value in _arguments(url, sessions).items() if name not in url.query},
    }
    if "skip_autocommit_rollback" in inspect.signature(DefaultDialect.__init__).parameters:
        # Since SQLAlchemy 2.0.43. Without it, SQLAlchemy ends its first queries with a ROLLBACK. With MySQL's
        # completion_type=CHAIN that begins a transaction, and no commit follows.
        options["skip_autocommit_rollback"] = True
    try:
        return create(url, **options)
    except ImportError as error:
        scheme, line = url.drivername, sql_install_line(url.drivername)
        if isinstance(error, ModuleNotFoundError):
            raise ConfigurationError(f"a store at {scheme}:// needs the package {error.name!r}: {line}") from None
        raise ConfigurationError(f"the driver of {scheme}:// cannot be loaded ({one_line(error)}): {line}") from error
    except (ArgumentError, ValueError) as error:  # ValueError: an option is not a number or a boolean
        words = Masking(secrets_of(url), names_of(url)).masked(str(error))
        raise ConfigurationError(f"store URL: not of the form that {url.drivername}:// needs: {words}") from None


def _arguments(url: URL, sessions: Sessions) -> dict[str, Any]:
    """Return the arguments of connect. Without them, most drivers wait for ever.

    An operation's own time limit ends first. These limits end connections that no operation waits for any more.
    """
    whole = math.ceil(sessions.timeout) + 1
    hosts = url.query.get("host", "")
    number_of_hosts = (hosts if isinstance(hosts, str) else ",".join(hosts)).count(",") + 1
    match url.get_driver_name():
        case "psycopg" | "psycopg_async" | "psycopg2":
            limits: dict[str, Any] = {
                "connect_timeout": max(2, whole // number_of_hosts),  # for each host; libpq raises 1 s to 2 s
                "keepalives_idle": whole,
                "keepalives_interval": 1,
                "keepalives_count": 3,
                "tcp_user_timeout": 1000 * whole,
                "client_encoding": "utf8",  # the database's encoding, the drivers' default, may be SQL_ASCII
            }
            if url.get_driver_name() != "psycopg2" and not sessions.prepares:
                limits["prepare_threshold"] = None
            return limits
        case "asyncpg":
            return {"timeout": whole, "prepared_statement_name_func": _statement_name}
        case "pymysql" | "mysqldb":
            return {"connect_timeout": whole, "read_timeout": whole, "write_timeout": whole, "charset": "utf8mb4"}
        case "aiomysql" | "asyncmy":
            return {"connect_timeout": whole, "charset": "utf8mb4"}
        case "pysqlite" | "aiosqlite":
            return {"timeout": sessions.timeout}
    return {}


def _statement_name() -> str:
    """Return a unique name. asyncpg would count: behind a pooler, another client may use the same number."""
    return f"shedlock_{uuid4().hex}"


def _prepare_mysql_session(connection: Any, _record: object) -> None:
    """Set options that may have other defaults on the server.

    - autocommit: if its default is off, MySQL tells a new session that it is on, so drivers do not set it.
    - safe updates: MySQL would refuse to prune, which finds records without a key.
    - select limit: it would cut lists of records.
    """
    cursor = connection.cursor()
    cursor.execute(f"SET autocommit = 1, sql_safe_updates = 0, sql_select_limit = {2**64 - 1}")  # no limit
    cursor.close()


def _switch_to_wal(connection: Any, _record: object) -> None:
    """Switch to WAL mode: readers and the writer of a SQLite file do not wait for each other. The file keeps the mode.

    Errors are harmless: the file is read-only, or another process uses it or switches the mode now.
    """
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA journal_mode=WAL")
    except Exception as error:
        logger.debug("no WAL mode: %s", error)
    finally:
        cursor.close()
