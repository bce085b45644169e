"""The short form of scenario 3: the server stands still, is restarted or dies, and comes back. I1, I7, I12."""

import socket
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.checker import Report
from tests.faults.drained import unserved
from tests.faults.history import History, Mark, Operation
from tests.faults.registry import Budget, Run
from tests.faults.scenarios import servers
from tests.support.polling import wait_until
from tests.support.ports import LOOPBACK
from tests.support.stores import Store

MOST_TRIALS = 5


@pytest.mark.parametrize(
    ("run", "store"),
    [
        (servers.killed, "postgres sync"),
        (servers.stopped, "mongodb async"),
        (servers.restarted, "mariadb async"),
        (servers.minority, "quorum sync"),
    ],
    indirect=["store"],
)
def test_an_outage_costs_nothing_but_time(store: Store, run: Run) -> None:
    report = run(store, Budget(0), 1)
    assert report.findings == []
    assert report.worst_overlap == 0
    assert report.counts["cut"] == 1


@pytest.mark.parametrize("store", ["redis async"], indirect=True)
def test_a_redis_that_forgets_gives_the_lock_away_and_tokens_tell(store: Store) -> None:
    """How much two of them share is a matter of luck; that the scenario can tell is not."""
    report = Report()
    for seed in range(MOST_TRIALS):
        report.add(servers.forgetful(store, Budget(0), seed))
        if report.worst_overlap > 0 and report.counts["write refused"] > 0:
            break
    assert report.findings == []
    assert report.worst_overlap > 0, "it was not promised, and the scenario can tell"
    assert report.counts["write refused"] > 0


# The judge itself

HELD = Operation("w1", "acquire", "job", 0.0, 0.1, "granted", "c1", 1, at_most=2.0, trusted_until=1.9)
NEXT = Operation("w2", "acquire", "job", 0.5, 0.6, "granted", "c2", 2, at_most=2.0, trusted_until=2.4)
THIRD = Operation("w3", "acquire", "job", 0.8, 0.9, "granted", "c3", 3, at_most=2.0, trusted_until=2.7)
KILLED = Mark("cut", "w1", 0.2, 0.4)


def test_what_was_forgotten_is_excused_and_nothing_else(fault_sqlite: Store) -> None:
    def judged(*operations: Operation) -> list[str]:
        report = servers.judge(History(operations, (KILLED,)), fault_sqlite, servers.FORGOTTEN)
        assert report.worst_overlap > 1.0, "measured all the same"
        return [finding.rule for finding in report.findings]

    assert judged(HELD, NEXT) == []
    assert judged(HELD, NEXT, THIRD) == ["overlap"]
    assert judged(HELD, replace(NEXT, started=0.1, ended=0.15, trusted_until=2.07)) == ["overlap"]
    assert judged(replace(HELD, token=3), NEXT) == ["token"]


# What it waits for


def test_a_request_of_whom_has_given_up_is_seen_until_it_is_served() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        address = server.getsockname()
        client = socket.create_connection(address)
        assert unserved([address]) == 0
        client.sendall(b"a request")
        client.close()
        wait_until(lambda: unserved([address]) == 1, what="the kernel to hear of it")
        served, _ = server.accept()
        assert served.recv(20) == b"a request"
        assert unserved([address]) == 1
        served.close()
        wait_until(lambda: unserved([address]) == 0, what="the kernel to hear of it")


@pytest.fixture
def fault_sqlite(shared_store: Callable[[str], Store]) -> Store:
    return shared_store("sqlite")
