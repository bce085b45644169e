"""What ``make test`` leaves to ``make test-all``: tests that show the same fact through another driver or client.

A test with the mark ``matrix`` runs with ``--matrix`` only. Parametrised tests need no mark: a variant is of the matrix
if it is not a usual one, and the same test with the same other parameters runs on a usual one of the same kind (sync or
async).

A class of the contract may name the class that tries the same programs through another client: ``programs_in``. It then
runs what a client can do wrong (connections, names, threads, cancellations); what a program decides is of the matrix.
Likewise, an async variant of a test with the mark ``programs`` is of the matrix if there is a sync one; of quorums,
five servers and a sync client stay.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from functools import cache
from importlib import import_module
from typing import Any

import pytest

PROGRAM_CONTRACTS = ("HoldTimes", "Fencing", "GivingBack", "Guard", "Tools", "Pause")
"""Parts of the contract that try what programs decide, and the guard above them: ``HoldTimesContract``, …"""
OTHER_DRIVERS = ("psycopg2", "psycopg_async", "mysqldb", "aiomysql")
"""The usual ones are psycopg and asyncpg, pymysql and asyncmy."""
ASYNC_DRIVERS = ("psycopg_async", "asyncpg", "aiomysql", "asyncmy", "aiosqlite")
ASYNC = re.compile(r"(?<=\[)sync (?=\w)|(?<=-)sync (?=\w)|_async\b")
"""What only the async variant has in its name, once ``async`` is ``sync``: "async url", "create_schema_async"."""
is_whole = False
"""Whether this run has `--matrix`: then property tests try more, and other examples each time."""
USUAL_QUORUMS = ((3, "sync"), (5, "async"))
"""Each size and each kind of client once."""
MODULES = {"mysqldb": "MySQLdb", "psycopg_async": "psycopg", "pysqlite": "sqlite3"}
"""What is imported for a driver, if that has another name."""


def split(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests of ``make test``, and those of the matrix."""
    items = list(items)
    variants = {item: _variant(item) for item in items}
    on_usual_one = {
        subject for item, (subject, is_usual) in variants.items() if is_usual and not item.get_closest_marker("matrix")
    }
    chosen: list[pytest.Item] = []
    matrix: list[pytest.Item] = []
    for item in items:
        subject, is_usual = variants[item]
        is_repeated = (not is_usual and subject in on_usual_one) or _repeats_a_program(item)
        (matrix if is_repeated or item.get_closest_marker("matrix") else chosen).append(item)
    return chosen, matrix


def skip_missing_drivers(items: Iterable[pytest.Item]) -> None:
    """Where pip has no driver for an interpreter, `make test-all` goes without it and names it in its table."""
    for item in items:
        if (driver := _driver(item)) and (reason := _why_missing(driver)):
            item.add_marker(pytest.mark.skip(reason=f"no driver {driver}: {reason}"))


def _repeats_a_program(item: pytest.Item) -> bool:
    """Whether the class named by ``programs_in`` has this test, too, and `make test` runs it."""
    other = getattr(getattr(item, "cls", None), "programs_in", None)
    part = getattr(getattr(item, "function", None), "__qualname__", "").partition("Contract.")[0]
    if other is None or part not in PROGRAM_CONTRACTS or is_marked(other):
        return False
    return hasattr(other, getattr(item, "originalname", ""))


def is_marked(tests: object) -> bool:
    """Whether it is a class with the mark ``matrix``."""
    marks = getattr(tests, "pytestmark", []) if isinstance(tests, type) else []
    return isinstance(marks, list) and any(mark.name == "matrix" for mark in marks)


def is_installed(driver: str) -> bool:
    """Whether there is the package of this driver, as of "mysql+mysqldb"."""
    return not _why_missing(driver.partition("+")[2])


def _driver(item: pytest.Item) -> str:
    """The driver of an SQL store that this test is about, or nothing."""
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


def _variant(item: pytest.Item) -> tuple[Hashable, bool]:
    """What all variants of a test have in common, and whether this one is usual."""
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    test, kind, size = item.nodeid.partition("[")[0], parameters.get("kind"), parameters.get("size")
    of_programs = item.get_closest_marker("programs") is not None
    if size and kind in ("sync", "async"):
        usual = ((5, "sync"),) if of_programs else USUAL_QUORUMS
        return (test, "any" if of_programs else kind), (size, kind) in usual
    url = str(parameters.get("driver", ""))
    database, plus, driver = url.partition("+")
    with_any_driver = item.nodeid.replace(url, database) if plus else item.nodeid
    is_async = driver in ASYNC_DRIVERS
    if of_programs:
        as_sync = ASYNC.sub("", with_any_driver.replace("[async", "[sync").replace("-async", "-sync"))
        return as_sync, driver not in OTHER_DRIVERS and not is_async and as_sync == with_any_driver
    return (with_any_driver, is_async), driver not in OTHER_DRIVERS
