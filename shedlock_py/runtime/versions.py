"""The version of this package, and the oldest supported releases of others, as in ``pyproject.toml``."""

from __future__ import annotations

import re

from shedlock_py.errors import ConfigurationError

__version__ = "0.1.0"


def oldest_releases() -> dict[str, tuple[str, str]]:
    """For each package that is checked, return its oldest release, and the extra of shedlock_py that requires it."""
    from shedlock_py.model.stores import STORES  # late: few modules are loaded with the package

    checked = ((store.oldest, store.module) for store in STORES.values())
    return {"click": ("8.3", "cli")} | {oldest[0]: (oldest[1], extra) for oldest, extra in checked if oldest}


def require(package: str, installed: str) -> None:
    """Refuse a package that is too old, before it fails with an error that does not name it.

    :param installed: its version, as the package reports it.
    :raises ConfigurationError: it is older than :func:`oldest_releases` allows.
    """
    oldest, extra = oldest_releases()[package]
    # Without letters, because a pre-release counts as its release; padded, because 4.13.0 is 4.13.
    releases = (re.split("[a-z]", version)[0] for version in (installed, oldest))
    found, needed = ([*map(int, re.findall(r"\d+", release)), 0, 0] for release in releases)
    if found < needed:
        raise ConfigurationError(
            f"{package} {installed} is too old: shedlock_py needs {package}>={oldest}; "
            f"pip install --upgrade 'shedlock_py[{extra}]'"
        )


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
"""Packages of drivers without an extra."""


def install_line(extra: str) -> str:
    """Return the line that installs this package with ``extra``."""
    return f"pip install 'shedlock_py[{extra}]'"


def sql_install_line(scheme: str, *, is_async: bool = False) -> str:
    """Return the line that installs SQLAlchemy and a driver for ``scheme``: "postgresql" or "postgresql+asyncpg".

    :param is_async: whether to take an async driver if the scheme does not name a driver.
    """
    from shedlock_py.model.stores import BY_SCHEME  # late: few modules are loaded with the package

    database, _, driver = scheme.partition("+")
    if not driver and (store := BY_SCHEME.get(database)) is not None:
        return install_line((is_async and store.async_extra) or store.extra)
    if driver in _PACKAGES:
        return f"{install_line('sqlalchemy')} {_PACKAGES[driver]}"
    return install_line(_EXTRAS.get(driver, "sqlalchemy"))


def missing_package(what: str, error: ModuleNotFoundError, line: str) -> str:
    """Return the error message for a missing package that ``what`` needs.

    :param line: the line that installs it.
    """
    if (error.name or "").startswith("shedlock_py."):
        built = f"this program was built without the module {error.name!r}"
        return f"{built}: PyInstaller needs the option --collect-all shedlock_py"
    return f"{what} needs the package {error.name!r}: {line}"
