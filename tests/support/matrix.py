"""What ``make test`` leaves to ``make test-all``: tests that show the same fact through another driver or client.

Such a test has the mark ``matrix`` and runs with ``--matrix`` only. Tests that are parametrised over drivers need no
mark: where one runs on its store's usual driver too, it is of the matrix with the others.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

OTHER_DRIVERS = ("psycopg2", "psycopg_async", "mysqldb", "aiomysql")
"""Drivers besides the usual ones: psycopg and asyncpg, pymysql and asyncmy."""


def split(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests of ``make test``, and those of the matrix."""
    items = list(items)
    on_usual_driver = {_subject(item) for item in items if not _is_on_other_driver(item)}
    chosen: list[pytest.Item] = []
    matrix: list[pytest.Item] = []
    for item in items:
        is_repeated = _is_on_other_driver(item) and _subject(item) in on_usual_driver
        (matrix if is_repeated or item.get_closest_marker("matrix") else chosen).append(item)
    return chosen, matrix


def _driver(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return "" if callspec is None else str(callspec.params.get("driver", ""))


def _is_on_other_driver(item: pytest.Item) -> bool:
    return _driver(item).partition("+")[2] in OTHER_DRIVERS


def _subject(item: pytest.Item) -> tuple[str, str]:
    """The test function, and the kind of database it runs on."""
    return item.nodeid.partition("[")[0], _driver(item).partition("+")[0]
