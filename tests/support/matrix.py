"""What ``make test`` leaves to ``make test-all``: tests that show the same fact through another driver or client.

A test with the mark ``matrix`` runs with ``--matrix`` only. Parametrised tests need no mark: a variant is of the matrix
if it is not a usual one and the same test runs on a usual one too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import pytest

OTHER_DRIVERS = ("psycopg2", "psycopg_async", "mysqldb", "aiomysql")
"""The usual ones are psycopg and asyncpg, pymysql and asyncmy."""
USUAL_QUORUMS = ((3, "sync"), (5, "async"))
"""Each size and each kind of client once."""


def split(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests of ``make test``, and those of the matrix."""
    items = list(items)
    variants = {item: _variant(item) for item in items}
    on_usual_one = {subject for subject, is_usual in variants.values() if is_usual}
    chosen: list[pytest.Item] = []
    matrix: list[pytest.Item] = []
    for item in items:
        subject, is_usual = variants[item]
        is_repeated = not is_usual and subject in on_usual_one
        (matrix if is_repeated or item.get_closest_marker("matrix") else chosen).append(item)
    return chosen, matrix


def _variant(item: pytest.Item) -> tuple[Hashable, bool]:
    """What all variants of a test have in common, and whether this one is usual."""
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    test, kind = item.nodeid.partition("[")[0], parameters.get("kind")
    database, _, driver = str(parameters.get("driver", "")).partition("+")
    if "size" in parameters and kind in ("sync", "async"):
        return (test, kind), (parameters["size"], kind) in USUAL_QUORUMS
    return (test, database), driver not in OTHER_DRIVERS
