"""The short form of scenario 9: the primary dies and its standby is promoted; a quorum loses servers. I1, I7.

In `make faults` only: an asynchronous standby, a synchronous one whose commits are not cancelled, a Redis without
``WAIT``, one whose only replica is promoted, and an old primary that lives on beside an asynchronous standby or with
``WAIT``.
"""

import pytest

from tests.faults.registry import Budget, Run
from tests.faults.scenarios import failover
from tests.support.stores import Store

TRIALS = 5


@pytest.mark.parametrize(
    ("run", "store"),
    [
        (failover.replica_behind, "redis sync"),
        (failover.redis_split, "redis async"),
    ],
    indirect=["store"],
)
def test_what_the_standby_lacks_is_given_away_and_tokens_tell(store: Store, run: Run) -> None:
    """Two leases at once are not forbidden here, and one of a few trials can tell."""
    for seed in range(1, TRIALS + 1):
        report = run(store, Budget(0), seed)
        assert report.findings == []
        assert report.notes
        if report.worst_overlap > 0:
            return
    pytest.fail(f"no two leases at once in {TRIALS} trials")


@pytest.mark.parametrize(
    ("run", "store", "happened"),
    [
        (failover.cancelled_acquire, "postgres sync", "commit cancel"),
        (failover.synchronous_split, "postgres async", "cut"),
        (failover.majority, "quorum sync", "acquire error"),
        (failover.emptied_and_split, "quorum async", "cut"),
    ],
    indirect=["store"],
)
def test_nothing_is_granted_twice(store: Store, run: Run, happened: str) -> None:
    report = run(store, Budget(0), 1)
    assert report.findings == []
    assert report.worst_overlap == 0
    assert report.counts[happened] > 0
