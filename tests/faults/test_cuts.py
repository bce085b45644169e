"""The short form of scenario 4: a worker that is cut off from the store, and comes back."""

import pytest

from tests.faults.registry import Budget, Run
from tests.faults.scenarios import cuts
from tests.support.stores import Store


@pytest.mark.parametrize(
    ("run", "store"),
    [
        (cuts.both_ways, "postgres async"),
        (cuts.to_the_store, "mariadb sync"),
        (cuts.to_the_worker, "postgres sync"),
        (cuts.to_the_worker, "redis async"),
        (cuts.both_ways, "quorum sync"),
        (cuts.closed, "redis sync"),
    ],
    indirect=["store"],
)
def test_cut_off(store: Store, run: Run) -> None:
    report = run(store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["cut"] == report.counts["healed"] == 1
    assert report.takeovers
