"""Mutants: the checker finds each mutant, and nothing in the sound copy of the algorithm."""

import pytest

from shedlock_py.providers.sqlalchemy.claims import ClaimSql
from tests.faults import controls
from tests.faults.controls import MUTANTS, Mutant
from tests.faults.registry import Budget
from tests.faults.scenarios.network import late_takeovers
from tests.support.stores import Store

IN_MAKE_TEST = ("ReadThenWrite", "ReleasesAnybodys", "ClientClock", "RestartingCounter")


def marks_of(mutant: Mutant) -> list[pytest.MarkDecorator]:
    return [] if mutant.variant in IN_MAKE_TEST else [pytest.mark.slow("starts workers, and waits for their leases")]


@pytest.mark.parametrize(
    ("mutant", "store"),
    [pytest.param(mutant, f"{mutant.store} sync", id=mutant.variant, marks=marks_of(mutant)) for mutant in MUTANTS],
    indirect=["store"],
)
def test_the_checker_finds_a_mutant(store: Store, mutant: Mutant) -> None:
    result = controls.control(mutant, store, seed=1)
    assert result.caught_by, result.trouble


@pytest.mark.slow("starts workers, and waits for their leases")
@pytest.mark.parametrize("store", ["postgres sync", "mariadb sync", "mysql sync"], indirect=True)
def test_a_take_over_of_whatever_record_there_is_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClaimSql, "granted", lambda self, record="": "(1 = 1)")
    report = late_takeovers(store, Budget(0, least=6), 1)
    assert {finding.rule for finding in report.findings} == {"overlap"}
