"""Planted faults: the checker finds each, and nothing in the sound copy of the algorithm."""

import pytest

from tests.faults import controls
from tests.faults.controls import MUTANTS, Mutant
from tests.support.stores import Store


@pytest.mark.parametrize(
    ("mutant", "store"),
    [pytest.param(mutant, f"{mutant.store} sync", id=mutant.variant) for mutant in MUTANTS],
    indirect=["store"],
)
def test_mutant_is_found(store: Store, mutant: Mutant) -> None:
    result = controls.control(mutant, store, seed=1)
    assert result.caught_by, result.trouble
