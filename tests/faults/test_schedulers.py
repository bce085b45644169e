"""The short form of scenario 15: a leader whose job store fails, and whose scheduler dies."""

import pytest

from tests.faults.registry import Budget
from tests.faults.scenarios import schedulers
from tests.support.stores import Store


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("store", ["sqlite sync", "postgres sync"], indirect=True)
def test_a_job_store_that_fails(store: Store) -> None:
    report = schedulers.job_store_fails(store, Budget(0), seed=1)
    assert report.findings == []
    assert report.counts["update failed"] >= 4
    assert report.counts["run"] >= 20
