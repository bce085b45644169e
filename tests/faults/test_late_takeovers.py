"""The short form of late copies of take-overs, and that it finds one that takes the lock. I1."""

import pytest

from shedlock_py.providers.sqlalchemy.claims import ClaimSql
from tests.faults.registry import Budget
from tests.faults.scenarios.late_takeovers import late_takeovers
from tests.faults.stores import Store

TRIALS = 6


@pytest.mark.parametrize(
    "fault_store", ["postgres sync", "mariadb async", "redis sync", "mongodb async"], indirect=True
)
def test_i1_late_copies_of_take_overs(fault_store: Store) -> None:
    report = late_takeovers(fault_store, Budget(0, least=TRIALS), 1)
    assert report.findings == []
    assert report.counts["late copy"] == TRIALS


@pytest.mark.parametrize("fault_store", ["postgres sync", "mariadb sync"], indirect=True)
def test_a_take_over_of_whatever_record_there_is_is_found(fault_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClaimSql, "granted", lambda self, record="": "(1 = 1)")
    report = late_takeovers(fault_store, Budget(0, least=TRIALS), 1)
    assert {finding.rule for finding in report.findings} == {"overlap"}
