"""The short form: the old primary turns read-only and the name moves; a SQLite file is replaced. I1, I5."""

import pytest

from tests.faults.registry import Budget
from tests.faults.scenarios import deletions, replaced_files, switchovers
from tests.faults.stores import Store


@pytest.mark.parametrize("fault_store", ["postgres sync", "postgres async"], indirect=True)
def test_i5_every_worker_comes_back_after_a_switchover(fault_store: Store) -> None:
    report = switchovers.switchover(fault_store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["switchover"] == 1


@pytest.mark.parametrize("fault_store", ["sqlite sync", "sqlite async"], indirect=True)
def test_i1_no_worker_goes_on_in_a_file_that_was_replaced(fault_store: Store) -> None:
    report = replaced_files.replaced(fault_store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["deleted"] == deletions.DELETIONS_PER_TRIAL
