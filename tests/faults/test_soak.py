"""The short form of scenario 14: seconds in which nothing may grow."""

from dataclasses import replace

import pytest

from tests.faults.checker import Report
from tests.faults.scenarios import soak
from tests.faults.scenarios.soak import Sample
from tests.faults.stores import Store

SECONDS = 1.5
MEMORY = 16 * 1024
"""KiB: so short a time finds only what leaks by the megabyte; the full form has a tolerance of 2 MiB."""


@pytest.mark.parametrize(
    "fault_store",
    ["sqlite sync", "postgres async", "mariadb sync", "redis async", "mongodb sync"],
    indirect=True,
)
def test_nothing_grows(fault_store: Store) -> None:
    report = soak.soak_for(fault_store, SECONDS, 1, MEMORY)
    assert report.findings == []
    assert report.counts["acquire granted"] >= 10


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
