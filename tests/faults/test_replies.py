"""The short form of scenario 5: the store did it, and its reply is lost."""

import pytest

from tests.faults.registry import Budget, Run
from tests.faults.scenarios import replies
from tests.support.stores import Store


@pytest.mark.parametrize(
    ("run", "store"),
    [
        (replies.acquire, "postgres async"),
        (replies.extend, "mariadb sync"),
        (replies.acquire, "redis sync"),
        (replies.release, "mongodb sync"),
        (replies.extend, "quorum async"),
    ],
    indirect=["store"],
)
def test_lost_replies(store: Store, run: Run) -> None:
    report = run(store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["reply lost"] >= replies.LOSSES_PER_TRIAL
