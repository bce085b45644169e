"""The short form of scenario 15: a store that does not answer costs no lease on another."""

import pytest

from tests.faults.registry import Budget
from tests.faults.scenarios import neighbours
from tests.support.stores import Store


@pytest.mark.parametrize("store", ["postgres sync", "redis sync"], indirect=True)
def test_a_silent_store_beside_a_healthy_one(store: Store) -> None:
    report = neighbours.silent_neighbour(store, Budget(0), seed=1)
    assert report.findings == []
    assert report.counts["heartbeat"] >= 6
    assert report.counts["poller without an answer"] >= 8, "the store was not silent"
