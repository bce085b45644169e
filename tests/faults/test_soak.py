"""The short form of scenario 14: seconds in which nothing may grow."""

import os
from dataclasses import replace
from typing import Any

import pytest

from shedlock_py import Lease, LockRequest
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.faults.checker import Report
from tests.faults.scenarios import soak
from tests.faults.scenarios.soak import Sample
from tests.support.stores import Store

GRANTS = 60
"""To each of the three workers."""
MEMORY = 16 * 1024
"""KiB: so short a time finds only what leaks by the megabyte; the full form has a tolerance of 2 MiB."""
COUNTS = {"descriptors": 20, "threads": 20, "connections": 15}
"""Pools may still fill; what leaks with each grant grows by 60 to 90 from the one half to the other."""


@pytest.mark.parametrize(
    "store",
    ["sqlite sync", "postgres async", "mariadb sync", "redis async", "mongodb sync"],
    indirect=True,
)
def test_nothing_grows(store: Store) -> None:
    report = _short(store)
    assert report.findings == []
    assert report.counts["acquire granted"] >= soak.SIZE * GRANTS


@pytest.mark.parametrize("store", ["sqlite sync"], indirect=True)
def test_a_leak_is_found(store: Store) -> None:
    report = _short(store, f"{__name__}:open_leaking")
    assert [finding.rule for finding in report.findings] == ["flat"]
    assert report.findings[0].text.startswith("descriptors grew")


def _short(store: Store, provider: str | None = None) -> Report:
    return soak.soak_for(store, 0.0, 1, grants=GRANTS, memory=MEMORY, counts=COUNTS, provider=provider)


class Leaking(SqlAlchemyLockProvider):
    def acquire(self, request: LockRequest) -> Lease | None:
        lease = super().acquire(request)
        if lease is not None:
            os.open(os.devnull, os.O_RDONLY)
        return lease


def open_leaking(family: str, is_async: bool, where: str, options: dict[str, Any]) -> Leaking:
    return Leaking(where, **options)


BEFORE = Sample(memory=100_000, descriptors=40, threads=6, connections=6)


@pytest.mark.parametrize(
    "after",
    [
        replace(BEFORE, memory=105_000),
        replace(BEFORE, descriptors=50),
        replace(BEFORE, threads=12),
        replace(BEFORE, connections=12),
    ],
)
def test_what_is_found(after: Sample) -> None:
    assert soak.compare([BEFORE] * 5 + [after] * 5, Report())
    assert not soak.compare([BEFORE, after] * 5 + [after, BEFORE] * 5, Report()), "it goes up and down"
