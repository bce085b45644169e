"""Planted faults: the checker finds each, and nothing in the sound copy of the algorithm."""

import pytest

from tests.faults import controls
from tests.faults.controls import PLANTS, Plant
from tests.faults.stores import Store


@pytest.mark.parametrize(
    ("plant", "fault_store"),
    [pytest.param(plant, f"{plant.store} sync", id=plant.variant) for plant in PLANTS],
    indirect=["fault_store"],
)
def test_planted_fault(fault_store: Store, plant: Plant) -> None:
    result = controls.control(plant, fault_store, seed=1)
    assert result.caught_by, result.trouble
