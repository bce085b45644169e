"""Mutants: the checker finds each, and nothing in the sound copy of the algorithm."""

import pytest

from shedlock_py.providers.sqlalchemy.claims import ClaimSql
from tests.faults import controls
from tests.faults.controls import MUTANTS, Mutant
from tests.faults.registry import Budget
from tests.faults.scenarios.network import late_takeovers
from tests.support.stores import Store


@pytest.mark.parametrize(
    ("mutant", "store"),
    [pytest.param(mutant, f"{mutant.store} sync", id=mutant.variant) for mutant in MUTANTS],
    indirect=["store"],
)
def test_mutant_is_found(store: Store, mutant: Mutant) -> None:
    result = controls.control(mutant, store, seed=1)
    assert result.caught_by, result.trouble


@pytest.mark.parametrize("store", ["postgres sync", "mariadb sync", "mysql sync"], indirect=True)
def test_a_take_over_of_whatever_record_there_is_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClaimSql, "granted", lambda self, record="": "(1 = 1)")
    report = late_takeovers(store, Budget(0, least=6), 1)
    assert {finding.rule for finding in report.findings} == {"overlap"}
