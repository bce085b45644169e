"""The URL of a database of ``DATABASES``, with the same driver and parameters as Django's own connections.

The parameters come from Django's backend (``get_connection_params``), so backends that wrap Django's own work, too.
Parameters that concern only Django's connections are left out. Other parameters that the provider cannot use are
refused, because they would change the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from sqlalchemy import URL

from shedlock_py.errors import ConfigurationError

_DIALECTS = {
    ("postgresql", "psycopg"): "postgresql+psycopg",
    ("postgresql", "psycopg2"): "postgresql+psycopg2",
    ("mysql", "MySQLdb"): "mysql+mysqldb",
    ("mysql", "pymysql"): "mysql+pymysql",  # after pymysql.install_as_MySQLdb()
    ("sqlite", "sqlite3.dbapi2"): "sqlite",
}
"""SQLAlchemy's dialect, by the vendor of Django's backend and the module of its driver."""

# Parameters that concern only Django's own connections.
_OF_DJANGO = {
    "postgresql": ("cursor_factory", "context", "prepare_threshold", "client_encoding"),
    "mysql": ("conv", "charset", "collation", "use_unicode", "client_flag", "local_infile", "compress", "autocommit"),
}
_OF_MYSQL = (
    *("init_command", "sql_mode", "unix_socket", "read_default_file", "read_default_group", "ssl_mode"),
    *("connect_timeout", "read_timeout", "write_timeout"),
)
_OF_MYSQL_TLS = ("ca", "cert", "key", "capath", "cipher", "check_hostname")


def connection_of(alias: str) -> Any:
    """Return Django's connection object of the alias in this thread. This does not connect.

    :raises ConfigurationError: the alias is unknown, or Django cannot load its backend.
    """
    try:
        return connections[alias]
    except ConnectionDoesNotExist as error:
        known = ", ".join(map(repr, connections))
        raise ConfigurationError(
            f"settings.SHEDLOCK['DATABASE']: {alias!r} is not in DATABASES; aliases: {known}"
        ) from error
    except (ImproperlyConfigured, ImportError) as error:
        raise ConfigurationError(f"DATABASES[{alias!r}]: {error}") from error


def is_in_memory(connection: Any) -> bool:
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def store_url(connection: Any) -> URL:
    """Return the URL for :class:`SqlAlchemyLockProvider`.

    :raises ConfigurationError: the database, the driver or an option is not supported.
    """
    driver = getattr(connection, "Database", None)
    dialect = _DIALECTS.get((connection.vendor, getattr(driver, "__name__", "")))
    if dialect is None:
        engine = connection.settings_dict["ENGINE"]
        raise ConfigurationError(
            f"DATABASES[{connection.alias!r}]: locks cannot be in a database of the engine {engine}. They can be in "
            f"PostgreSQL (psycopg, psycopg2), MySQL, MariaDB (mysqlclient, PyMySQL) and SQLite. Let "
            f"SHEDLOCK['DATABASE'] name another database, or call configure(…) in place of this application"
        )
    try:
        parameters = dict(connection.get_connection_params())
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"DATABASES[{connection.alias!r}]: {error}") from error
    for name in _OF_DJANGO.get(connection.vendor, ()):
        parameters.pop(name, None)
    match connection.vendor:
        case "sqlite":
            return _sqlite(connection)
        case "mysql":
            query = _mysql_query(connection.alias, parameters)
        case _:
            query = _postgresql_query(connection, parameters)
    port = parameters.get("port")
    return URL.create(
        dialect,
        username=parameters.get("user"),
        password=parameters.get("password", parameters.get("passwd")),
        host=parameters.get("host"),
        port=int(port) if port else None,
        database=parameters.get("dbname", parameters.get("database", parameters.get("db"))),
        query=query,
    )


_IN_URL = ("user", "password", "passwd", "host", "port", "dbname", "database", "db")


def _sqlite(connection: Any) -> URL:
    name = str(connection.settings_dict["NAME"])
    if is_in_memory(connection):
        name = ":memory:"  # the provider refuses it
    elif name.startswith("file:"):
        raise _not_carried_over(connection.alias, "a NAME that is a URI", "give the path of the file")
    return URL.create("sqlite", database=name)


def _postgresql_query(connection: Any, parameters: dict[str, Any]) -> dict[str, str]:
    """Return libpq's parameters: TLS, a service file, a password file, several hosts, and so on."""
    if "," in str(parameters.get("host", "")):
        hosts = {"host": str(parameters.pop("host")), "port": str(parameters.pop("port", ""))}
    else:
        hosts = {}
    role = connection.settings_dict["OPTIONS"].get("assume_role")
    if role:
        escaped = str(role).replace("\\", "\\\\").replace(" ", "\\ ")
        parameters["options"] = f"{parameters.get('options', '')} -c role={escaped}".strip()
    options = {name: value for name, value in parameters.items() if name not in _IN_URL}
    return {name: value for name, value in hosts.items() if value} | {
        name: _text(connection.alias, name, value) for name, value in options.items() if value is not None
    }


def _mysql_query(alias: str, parameters: Mapping[str, Any]) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in parameters.items():
        if name in _OF_MYSQL:
            query[name] = _text(alias, name, value)
        elif name == "ssl" and isinstance(value, Mapping) and value and set(value) <= set(_OF_MYSQL_TLS):
            query |= {f"ssl_{key}": _text(alias, "ssl", each) for key, each in value.items() if each is not None}
        elif name not in _IN_URL:
            raise _not_carried_over(alias, f"OPTIONS[{name!r}]", "as it stands")
    return query


def _text(alias: str, name: str, value: object) -> str:
    """Return the value of an option for a URL. No message shows it."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, str | int | float) or hasattr(value, "__fspath__"):
        return str(value)
    raise _not_carried_over(alias, f"OPTIONS[{name!r}]", f"a value of the type {type(value).__name__}")


def _not_carried_over(alias: str, what: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"DATABASES[{alias!r}]: {what} cannot be carried over to the connections of the locks ({why}). Add an alias "
        f"for the same database without it, and let SHEDLOCK['DATABASE'] name that alias; or call configure(…) "
        f"in place of this application"
    )
