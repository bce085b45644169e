"""Which tests run when: ``make quick``, ``make test``, ``make test-full``, ``make test-all``.

A mark says why a test, or one of its parameters, is not in a lower tier:

- ``not_quick("why")``: not in ``make quick``. The test starts a server or a process, or waits for a second.
- ``slow("why")``: not in ``make test``. A test is slow if it uses more than 0.4 CPU-seconds or waits for 3 seconds.
- ``matrix("why")``: only in ``make test-all``: another driver or client shows the same fact.

Without ``--tier``, pytest runs all tests but those marked ``matrix``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

TIERS = ("quick", "test", "full", "all")
"""Each tier runs what the tiers before it run, and more."""
MARKS = {"not_quick": "test", "slow": "full", "matrix": "all"}
"""The lowest tier that runs a test with this mark."""
DEFAULT = "full"

SERVERS = ("_server", "redis_nodes", "redis_cluster", "redis_sentinel")
"""The ends of names of fixtures that start servers: a test with such a fixture needs no mark ``not_quick``."""

QUICK = ("core", "contract", "election", "page", "apscheduler", "cli", "exhaustive", "simulation")
"""Folders of tests/ with quick tests. ``make quick`` does not read other folders."""
QUICK_CONTRACT = ("test_memory.py", "test_sqlite.py")
FULL_ONLY = ("programs", "page/test_browser.py")
"""Folders and modules of tests/ with slow tests only. They import packages that `make test` does not install."""

_chosen = DEFAULT


def choose(tier: str) -> None:
    global _chosen
    _chosen = tier


def runs(tier: str) -> bool:
    """Return whether this run contains a tier. A test may do more rounds if ``runs("all")``."""
    return TIERS.index(tier) <= TIERS.index(_chosen)


def tier_of(item: pytest.Item) -> str:
    """Return the lowest tier that runs a test."""
    marked = [MARKS[mark.name] for mark in item.iter_markers() if mark.name in MARKS]
    if any(name.endswith(SERVERS) for name in getattr(item, "fixturenames", ())):
        marked.append("test")
    return max(marked, key=TIERS.index, default="quick")


def is_left_out(tests: object) -> bool:
    """Return whether no test of a class runs. Then pytest skips collection: each process has thousands of tests."""
    marks = getattr(tests, "pytestmark", []) if isinstance(tests, type) else []
    return isinstance(marks, list) and not all(runs(MARKS.get(mark.name, "quick")) for mark in marks)


def is_ignored(path: Path, root: Path) -> bool:
    """Return whether this run needs no test of a folder or a module below tests/."""
    folder, *rest = path.relative_to(root).parts or (".",)
    if folder in FULL_ONLY or path.relative_to(root).as_posix() in FULL_ONLY:
        return not runs("full")
    if _chosen != "quick" or not (rest or path.is_dir()):
        return False
    return folder not in QUICK or (folder == "contract" and bool(rest) and rest[0] not in QUICK_CONTRACT)


def split(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests of this run, and the tests that are left out."""
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (chosen if runs(tier_of(item)) else others).append(item)
    return chosen, others


def without_reason(items: Iterable[pytest.Item]) -> list[str]:
    """Return the tests with a mark that does not say why."""
    return sorted(
        {item.nodeid for item in items for mark in item.iter_markers() if mark.name in MARKS and not any(mark.args)}
    )
