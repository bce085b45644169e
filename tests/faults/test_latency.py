"""The short form of scenario 6: answers that take up to twice the lease."""

import pytest

from tests.faults.registry import Budget
from tests.faults.scenarios import latency
from tests.support.stores import Store


@pytest.mark.parametrize("store", ["redis async"], indirect=True)
def test_slow_network(store: Store) -> None:
    report = latency.slow(store, Budget(0), seed=1)
    assert report.findings == []
    assert report.counts["acquire granted"] >= 6
