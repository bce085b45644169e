"""The short form of scenario 6: answers that take up to twice the lease."""

import pytest

from tests.faults.registry import Budget
from tests.faults.scenarios import latency
from tests.faults.stores import Store


@pytest.mark.parametrize("fault_store", ["redis async"], indirect=True)
def test_slow_network(fault_store: Store) -> None:
    report = latency.slow(fault_store, Budget(0), seed=1)
    assert report.findings == []
    assert report.counts["acquire granted"] >= 6
