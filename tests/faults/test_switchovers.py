"""The short form: the old primary turns read-only and the name moves; a SQLite file is replaced. I1, I5."""

import pytest

from tests.faults.registry import Budget
from tests.faults.scenarios import deletions, replaced_files, switchovers
from tests.support.stores import Store


@pytest.mark.parametrize("store", ["postgres sync", "postgres async"], indirect=True)
def test_i5_every_worker_comes_back_after_a_switchover(store: Store) -> None:
    report = switchovers.switchover(store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["switchover"] == 1


@pytest.mark.parametrize("store", ["sqlite sync", "sqlite async"], indirect=True)
def test_i1_no_worker_goes_on_in_a_file_that_was_replaced(store: Store) -> None:
    report = replaced_files.replaced(store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["deleted"] == deletions.DELETIONS_PER_TRIAL
