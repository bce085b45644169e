"""The line that installs a driver, for error messages."""

from __future__ import annotations

_SYNC = {"postgresql": "psycopg", "postgres": "psycopg", "mysql": "pymysql", "mariadb": "pymysql", "sqlite": "pysqlite"}
_ASYNC = {
    "postgresql": "asyncpg",
    "postgres": "asyncpg",
    "mysql": "asyncmy",
    "mariadb": "asyncmy",
    "sqlite": "aiosqlite",
}
"""The driver to install where the URL names none."""
_EXTRAS = {
    "psycopg": "postgresql",
    "psycopg_async": "postgresql",
    "asyncpg": "asyncpg",
    "pymysql": "mysql",
    "asyncmy": "asyncmy",
    "pysqlite": "sqlite",
    "aiosqlite": "aiosqlite",
}
_PACKAGES = {"psycopg2": "psycopg2-binary", "mysqldb": "mysqlclient", "aiomysql": "'aiomysql[rsa]'"}
"""Of drivers without an extra."""


def install_line(extra: str) -> str:
    """The line that installs this package with ``extra``."""
    return f"pip install 'shedlock_py[{extra}]'"


def sql_install_line(scheme: str, *, is_async: bool = False) -> str:
    """The line that installs SQLAlchemy and a driver for ``scheme``, such as "postgresql" or "postgresql+asyncpg".

    :param is_async: which driver to take where the scheme names none.
    """
    database, _, driver = scheme.partition("+")
    driver = driver or (_ASYNC if is_async else _SYNC).get(database, "")
    if driver in _PACKAGES:
        return f"{install_line('sqlalchemy')} {_PACKAGES[driver]}"
    return install_line(_EXTRAS.get(driver, "sqlalchemy"))
