"""The short form of scenario 1: a few kills on every store, sync or async. I1, I3, I4, I7."""

import pytest

from tests.faults.registry import Budget
from tests.faults.scenarios import crashes
from tests.support.stores import Store


@pytest.mark.parametrize(
    "store",
    ["sqlite sync", "postgres async", "mariadb sync", "redis sync", "quorum sync", "mongodb async"],
    indirect=True,
)
def test_killed_holders(store: Store) -> None:
    report = crashes.kills(store, Budget(0), seed=1)
    assert report.findings == []
    assert report.counts["killed"] == crashes.KILLS_PER_TRIAL
    assert report.takeovers, "somebody took over from a holder that was killed"
