"""Which drivers of SQL databases are installed: pip has no wheel of some for the newest Python."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

import pytest

MODULES = {"mysqldb": "MySQLdb", "psycopg_async": "psycopg", "pysqlite": "sqlite3"}
"""The module of a driver, if it has another name."""


def skip_missing_drivers(items: Iterable[pytest.Item]) -> None:
    """Skip the tests of a driver that is not installed. `make test-all` names it in its table."""
    for item in items:
        if (driver := _driver(item)) and (reason := _why_missing(driver)):
            item.add_marker(pytest.mark.skip(reason=f"no driver {driver}: {reason}"))


def is_installed(driver: str) -> bool:
    """Whether the package of this driver is installed, for example of "mysql+mysqldb"."""
    return not _why_missing(driver.partition("+")[2])


def _driver(item: pytest.Item) -> str:
    """The driver of an SQL store that this test is about, or an empty text."""
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
