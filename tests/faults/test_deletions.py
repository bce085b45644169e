"""The short form of scenario 10: records, tables and key spaces that vanish in mid-hold, on servers of their own."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.history import History, Mark, Operation
from tests.faults.registry import Budget, Run
from tests.faults.scenarios import deletions
from tests.support import stores
from tests.support.stores import Store


@pytest.mark.parametrize(
    ("run", "store"),
    [
        (deletions.record_deleted, "sqlite sync"),
        (deletions.record_deleted, "mariadb async"),
        (deletions.record_deleted, "mongodb sync"),
        (deletions.dropped, "postgres async"),
    ],
    indirect=["store"],
)
def test_records_and_tables(store: Store, run: Run) -> None:
    _assert_noticed(run, store)


@pytest.mark.parametrize(
    ("run", "name", "is_async"),
    [(deletions.dropped, "redis", True), (deletions.quorum_emptied, "quorum", False)],
)
def test_flushed(run: Run, name: str, is_async: bool) -> None:
    with stores.STORES[name].open() as store:
        _assert_noticed(run, store.asynchronous() if is_async else store)


def test_one_of_a_quorum() -> None:
    with stores.STORES["quorum"].open() as store:
        report = deletions.minority_emptied(store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["emptied"] == 1


def _assert_noticed(run: Run, store: Store) -> None:
    report = run(store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["deleted"] == deletions.DELETIONS_PER_TRIAL
    noticed = [report.counts[f"{kind} after deletion lost"] for kind in ("extend", "release")]
    assert sum(noticed) >= 1, "somebody held a lease whose record was deleted"


# The judge itself

ACQUIRE = Operation("w1", "acquire", "job", 0.0, 0.1, "granted", "c1", 1, at_most=2.0, trusted_until=1.9)
NEXT = Operation("w2", "acquire", "job", 0.5, 0.6, "granted", "c2", 2, at_most=2.0, trusted_until=2.4)
DELETED = Mark("deleted", "everybody", 0.3, 0.4)


def test_the_overlap_after_a_deletion_is_excused_and_measured(fault_sqlite: Store) -> None:
    report, overlap = deletions.judge(History((ACQUIRE, NEXT), (DELETED,)), fault_sqlite)
    assert (report.findings, report.worst_overlap) == ([], 0.0)
    assert overlap == pytest.approx(1.3)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda: ((replace(ACQUIRE, token=3), NEXT), (DELETED,)), "token"),
        (lambda: ((ACQUIRE, NEXT), (replace(DELETED, before=2.0, after=2.1),)), "overlap"),
        (lambda: ((ACQUIRE, _extend("done"), NEXT), (DELETED,)), "deletion"),
        (lambda: ((ACQUIRE, NEXT, replace(NEXT, worker="w3", started=0.7, ended=0.8, claim="c3", token=3)), (DELETED,)),
         "overlap"),
    ],
)  # fmt: skip
def test_what_a_deletion_does_not_excuse(
    fault_sqlite: Store,
    change: Callable[[], tuple[tuple[Operation, ...], tuple[Mark, ...]]],
    rule: str,
) -> None:
    report, _ = deletions.judge(History(*change()), fault_sqlite)
    assert rule in {finding.rule for finding in report.findings}


def _extend(outcome: str) -> Operation:
    return replace(ACQUIRE, kind="extend", started=0.42, ended=0.45, outcome=outcome)


@pytest.fixture
def fault_sqlite(shared_store: Callable[[str], Store]) -> Store:
    return shared_store("sqlite")
