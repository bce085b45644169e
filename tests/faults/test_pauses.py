"""The short form of scenario 2: a holder that stood still past its lease knows it, and fencing tells the others."""

import pytest

from tests.faults.registry import Budget
from tests.faults.scenarios import pauses
from tests.support.stores import Store


@pytest.mark.parametrize("store", ["sqlite async", "postgres sync", "redis async"], indirect=True)
def test_stopped_holders(store: Store) -> None:
    report = pauses.stops(store, Budget(0), seed=1)
    assert report.findings == []
    assert report.counts["stopped"] == report.counts["resumed"] == pauses.STOPS_PER_TRIAL
    assert report.counts["write refused"] > 0, "careless workers tried to write"
