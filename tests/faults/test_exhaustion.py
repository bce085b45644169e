"""The short form of scenario 13: stores that take no writes, no file descriptors, an outage with fifty waiters."""

from collections.abc import Callable, Iterator

import pytest

from tests.faults import small_disks
from tests.faults.checker import Report
from tests.faults.history import Operation
from tests.faults.private import on_private_server
from tests.faults.registry import Budget, Run
from tests.faults.scenarios import exhaustion
from tests.support import stores
from tests.support.availability import private_server
from tests.support.redis import ExternalRedis, RedisServer
from tests.support.stores import RedisStore, Store


@pytest.fixture(scope="module")
def mounts() -> None:
    try:
        with small_disks.tmpfs("64k"):
            pass
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(
    ("run", "store"),
    [
        (exhaustion.full, "sqlite async"),
        (exhaustion.full, "postgres async"),
        (exhaustion.full_log, "postgres sync"),
    ],
    indirect=["store"],
)
def test_disk_full(store: Store, run: Run) -> None:
    """In `make faults` only: MariaDB, whose commits hang for half a minute then."""
    _assert_refused(run, store)


@pytest.mark.parametrize(
    ("run", "store"),
    [
        (exhaustion.full, "redis async"),
        (exhaustion.read_only, "redis sync"),
        (exhaustion.read_only, "postgres async"),
        (exhaustion.read_only, "mariadb sync"),
    ],
    indirect=["store"],
)
def test_no_writes_for_a_while(store: Store, run: Run) -> None:
    _assert_refused(run, store)


def _assert_refused(run: Run, store: Store) -> None:
    report = run(store, Budget(0), 1)
    assert report.findings == []
    assert report.counts["acquire error"] >= 6
    assert report.counts["acquire granted"] >= 4


def test_a_server_of_somebody_else_is_left_as_it_is() -> None:
    """Such as the one that ``SHEDLOCK_TEST_REDIS_URL`` names."""
    with private_server("redis", RedisServer) as server:
        _assert_refused(exhaustion.full, RedisStore(ExternalRedis(server.url(), variable="ANY")))
        with server.client() as client:
            assert "cmdstat_config|set" not in client.info("commandstats")


@pytest.mark.parametrize(
    "store",
    ["sqlite sync", "postgres sync", "postgres async", "mariadb async", "redis sync", "redis async", "quorum sync"],
    indirect=True,
)
def test_no_file_descriptors(store: Store) -> None:
    assert exhaustion.no_descriptors(store, Budget(0), 1).findings == []


@pytest.fixture
def own_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """With a server that may be stopped: what Redis has is gone then."""
    name, kind = request.param.split()
    with stores.STORES[name].open() as store, on_private_server(store) as own:
        yield own.asynchronous() if kind == "async" else own


@pytest.mark.parametrize("own_store", ["redis async", "postgres sync"], indirect=True)
def test_outage_with_50_waiters(own_store: Store) -> None:
    report = exhaustion.outage_of(own_store, 2.5)
    assert report.findings == []
    # The first to fail may have been under way when the store went.
    assert report.counts["attempt in outage"] >= (exhaustion.FAILURES - 1) * exhaustion.WAITERS


def electors_that_pause(part: Callable[[int, int], float]) -> list[Operation]:
    """Fails, by elector and number; each failure is followed by this part of the pause that is due."""
    operations = []
    for elector in range(exhaustion.WAITERS):
        moment = elector / 100
        for number in range(6):
            operations.append(Operation(f"n{elector}", "record", "e", moment, moment + 0.01, "error"))
            longest = min(exhaustion.RETRY * 2 ** (number + 1), exhaustion.LEASE)
            moment += 0.01 + part(elector, number) * longest
    return operations


EVENLY = [0.5 + i / 100 for i in range(150)]


@pytest.mark.parametrize(
    ("part", "meant", "rules"),
    [
        (lambda elector, number: 0.5 + elector / 100, EVENLY, set()),
        (lambda elector, number: 1.5, EVENLY, set()),  # a machine that is busy
        (lambda elector, number: 1.0, [1.0] * 50 + [2.0] * 50, {"herd"}),
        (lambda elector, number: 0.3 + elector / 100, EVENLY, {"pace"}),
        (lambda elector, number: 0.5 / 2**number, EVENLY, {"pace"}),  # ever faster
    ],
)
def test_what_a_herd_is(part: Callable[[int, int], float], meant: list[float], rules: set[str]) -> None:
    report = Report()
    exhaustion._judge(report, electors_that_pause(part), meant)
    assert {finding.rule for finding in report.findings} == rules


def test_the_pause_is_short_again_after_an_answer() -> None:
    outcomes = ["error", "error", "done", "error", "done"]
    moments = [0.0, 1.0, 3.0, 3.5, 4.5]
    operations = [
        Operation("n0", "record", "e", at, at, outcome) for at, outcome in zip(moments, outcomes, strict=True)
    ]
    assert list(exhaustion._parts(operations)) == [1.0, 1.0, 1.0]


def test_attempts_are_counted_before_during_and_after() -> None:
    report = Report()
    attempts = [Operation("n0", "record", "e", i / 10, i / 10) for i in range(100)]
    attempts += [Operation("n0", "record", "e", 8.0, 8.0)] * 30
    exhaustion._figures(report, attempts, calm_from=0.0, gone=4.0, back=6.0, end=10.0)
    (note,) = report.notes
    assert "10 attempts per second before, 10 during it" in note
    assert "at most 31 in 100 ms" in note
