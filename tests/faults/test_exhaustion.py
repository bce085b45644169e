"""The short form of scenario 13: stores that take no writes, no file descriptors, an outage with fifty waiters."""

from collections.abc import Callable, Iterator

import pytest

from tests.faults import stores
from tests.faults.checker import Report
from tests.faults.history import Operation
from tests.faults.registry import Budget, Run
from tests.faults.scenarios import exhaustion
from tests.faults.stores import Store


@pytest.fixture(scope="module")
def mounts() -> None:
    try:
        with exhaustion.tmpfs("64k"):
            pass
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize("fault_store", ["sqlite async"], indirect=True)
def test_disk_full(fault_store: Store) -> None:
    _assert_refused(exhaustion.full, fault_store)


@pytest.mark.parametrize(
    ("run", "fault_store"),
    [
        (exhaustion.full, "redis async"),
        (exhaustion.read_only, "redis sync"),
        (exhaustion.read_only, "postgres async"),
        (exhaustion.read_only, "mariadb sync"),
    ],
    indirect=["fault_store"],
)
def test_no_writes_for_a_while(fault_store: Store, run: Run) -> None:
    _assert_refused(run, fault_store)


def _assert_refused(run: Run, store: Store) -> None:
    report = run(store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["acquire error"] >= 6
    assert report.counts["acquire granted"] >= 4


@pytest.mark.parametrize(
    "fault_store",
    ["sqlite sync", "postgres sync", "postgres async", "mariadb async", "redis sync", "redis async", "quorum sync"],
    indirect=True,
)
def test_no_file_descriptors(fault_store: Store) -> None:
    assert exhaustion.no_descriptors(fault_store, Budget(0), 1).findings == []


@pytest.fixture
def own_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """With a server that may be stopped: what Redis has is gone then."""
    name, kind = request.param.split()
    with stores.OPEN[name]() as store:
        yield store.asynchronous() if kind == "async" else store


@pytest.mark.parametrize("own_store", ["redis async", "postgres sync"], indirect=True)
def test_outage_with_50_waiters(own_store: Store) -> None:
    report = exhaustion.outage_of(own_store, 2.5)
    assert report.findings == []
    assert report.counts["attempt in outage"] >= exhaustion.WAITERS


@pytest.mark.parametrize(
    ("moment", "finds"),
    [
        (lambda i: i / 100, False),  # evenly
        (lambda i: 10.0 + i / 1000, True),  # all when it is back
        (lambda i: 5.0 + i / 1000, True),  # ever faster while it is gone
    ],
)
def test_what_a_herd_is(moment: Callable[[int], float], finds: bool) -> None:
    report = Report()
    moments = sorted(moment(i) for i in range(2000))
    attempts = [Operation("all", "record", "e", at, at) for at in moments]
    exhaustion._figures(report, attempts, calm_from=0.0, gone=4.0, back=10.0, end=20.0)
    assert bool(report.findings) == finds
