"""The short form of scenario 4: a worker that is cut off from the store, and comes back."""

import pytest

from tests.faults.registry import Budget, Run
from tests.faults.scenarios import cuts
from tests.faults.stores import Store


@pytest.mark.parametrize(
    ("run", "fault_store"),
    [
        (cuts.both_ways, "postgres async"),
        (cuts.to_the_store, "mariadb sync"),
        (cuts.to_the_worker, "postgres sync"),
        (cuts.to_the_worker, "redis async"),
        (cuts.both_ways, "quorum sync"),
        (cuts.closed, "redis sync"),
    ],
    indirect=["fault_store"],
)
def test_cut_off(fault_store: Store, run: Run) -> None:
    report = run(fault_store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["cut"] == report.counts["healed"] == 1
    assert report.takeovers
