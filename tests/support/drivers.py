"""Installed drivers of SQL databases. For the newest Python, pip lacks wheels of some drivers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

import pytest

MODULES = {"mysqldb": "MySQLdb", "psycopg_async": "psycopg", "pysqlite": "sqlite3"}
"""Modules with another name than their driver."""


def skip_missing_drivers(items: Iterable[pytest.Item]) -> None:
    """Skip the tests of a driver that is not installed. `make test-all` lists it in its table."""
    for item in items:
        if (driver := _driver(item)) and (reason := _why_missing(driver)):
            item.add_marker(pytest.mark.skip(reason=f"no driver {driver}: {reason}"))


def is_installed(driver: str) -> bool:
    """Return whether the package of a driver is installed, for example of "mysql+mysqldb"."""
    return not _why_missing(driver.partition("+")[2])


def _driver(item: pytest.Item) -> str:
    """Return the SQL driver that this test is about, or an empty string."""
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    named = parameters.get("driver") or getattr(getattr(item, "cls", None), "driver", "")
    return str(named).partition("+")[2]


@cache
def _why_missing(driver: str) -> str:
    try:
        import_module(MODULES.get(driver, driver))
    except ImportError as error:
        return str(error)
    return ""
