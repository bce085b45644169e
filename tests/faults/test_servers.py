"""The short form of scenario 3: the server stands still, is restarted or dies, and comes back. I1, I7, I12."""

import pytest

from tests.faults.registry import Budget, Run
from tests.faults.scenarios import servers
from tests.faults.stores import Store


@pytest.mark.parametrize(
    ("run", "fault_store"),
    [
        (servers.killed, "postgres sync"),
        (servers.stopped, "mongodb async"),
        (servers.restarted, "mariadb async"),
        (servers.minority, "quorum sync"),
    ],
    indirect=["fault_store"],
)
def test_an_outage_costs_nothing_but_time(fault_store: Store, run: Run) -> None:
    report = run(fault_store, Budget(0), 1)
    assert report.findings == []
    assert report.worst_overlap == 0
    assert report.counts["cut"] == 1


@pytest.mark.parametrize("fault_store", ["redis async"], indirect=True)
def test_a_redis_that_forgets_gives_the_lock_away_and_tokens_tell(fault_store: Store) -> None:
    report = servers.forgetful(fault_store, Budget(0), 1)
    assert report.findings == []
    assert report.worst_overlap > 0, "it was not promised, and the trial can tell"
    assert report.counts["write refused"] > 0
