"""The short form of late copies of take-overs, and that it finds one that takes the lock. I1."""

import pytest

from shedlock_py.providers.sqlalchemy.claims import ClaimSql
from tests.faults.registry import Budget
from tests.faults.scenarios.late_takeovers import late_takeovers
from tests.support.stores import Store

TRIALS = 6


@pytest.mark.parametrize("store", ["postgres sync", "mariadb async", "redis sync", "mongodb async"], indirect=True)
def test_i1_late_copies_of_take_overs(store: Store) -> None:
    report = late_takeovers(store, Budget(0, least=TRIALS), 1)
    assert report.findings == []
    assert report.counts["late copy"] == TRIALS


@pytest.mark.parametrize("store", ["postgres sync", "mariadb sync"], indirect=True)
def test_a_take_over_of_whatever_record_there_is_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClaimSql, "granted", lambda self, record="": "(1 = 1)")
    report = late_takeovers(store, Budget(0, least=TRIALS), 1)
    assert {finding.rule for finding in report.findings} == {"overlap"}
