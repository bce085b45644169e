"""Five nodes as processes: never two leaders, and a new leader after each fault.

test_observed.py measures in virtual time how soon a new leader follows. tests/cli/test_lead.py has two processes.
"""

from __future__ import annotations

import signal
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from shedlock_py import provider_from_url
from tests.election.fleet import Fleet, Node, now
from tests.support import tiers
from tests.support.polling import wait_until
from tests.support.stores import ALL, Store

LEASE, RENEW, RETRY = 3.0, 2.0, 0.5
SLOW = 1.5
"""Seconds that an idle machine may add."""
LONGER = {"kubernetes": 2.0, "s3": 2.0}
"""A factor for LEASE, RENEW, RETRY and SLOW, for stores that are slow on a busy machine."""
CLOCK_ERROR = 1.0
"""The default of stores that estimate their time: they keep a lease that much longer."""
MATRIX = pytest.mark.matrix("the contract and the elections in virtual time show it for each store")
STORES = [
    name if name == "redis" else pytest.param(name, marks=MATRIX)
    for name in ALL
    if name != "quorum"  # its elections run the same code as Redis
]
ELECTIONS = [f"election-{number}" for number in range(20)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, make_store: Callable[..., Store]) -> Store:
    return make_store(request.param)


@pytest.fixture
def url(store: Store) -> str:
    url = str(store.where())
    with closing(provider_from_url(url)) as provider:  # type: ignore[type-var]  # all of these can be closed
        provider.create_schema()
    return url


@pytest.fixture
def longer(store: Store) -> float:
    return LONGER.get(store.name, 1.0)


@pytest.fixture
def fleet(url: str, longer: float, tmp_path: Path) -> Iterator[Fleet]:
    names = [f"{tmp_path.name[-30:]}-{name}" for name in ELECTIONS]
    options = {
        "lease_duration": f"{LEASE * longer}s",
        "renew_deadline": f"{RENEW * longer}s",
        "retry_period": f"{RETRY * longer}s",
    }
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(url, tmp_path, names, options=options))
        fleet.wait_for_leaders()
        yield fleet


def shown(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    print(
        f"{what}: {len(ordered)} fail-overs, min {ordered[0]:.2f} s, median {statistics.median(ordered):.2f} s, "
        f"max {ordered[-1]:.2f} s"
    )


def can_be_written(url: str) -> bool:
    """Whether no process keeps a SQLite file locked."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    return True


def pause_node(node: Node, url: str) -> None:
    """Pause a node, but not while it writes to a SQLite file, because the file would stay locked."""
    node.send(signal.SIGSTOP)
    while url.startswith("sqlite") and not can_be_written(url):
        node.send(signal.SIGCONT)
        wait_until(lambda: can_be_written(url))
        node.send(signal.SIGSTOP)


@pytest.mark.slow("100 electors in five processes")
@pytest.mark.timeout(240)
def test_i1_two_nodes_never_lead_and_a_fault_has_a_successor(
    fleet: Fleet, store: Store, url: str, longer: float
) -> None:
    lease, retry, slow = LEASE * longer, RETRY * longer, SLOW * longer
    kept_longer = store.kept_longer + CLOCK_ERROR if store.kept_longer else 0.0
    killed: list[float] = []
    for _ in range(2):
        node = fleet.busiest()
        at = now()
        node.send(signal.SIGKILL)
        node.process.wait()
        fleet.remove(node)
        fleet.wait_for_leaders()
        killed += fleet.successions(at, node)
        fleet.add().expect("ready")
    shown("killed", killed)
    assert max(killed) <= lease + kept_longer + retry * 1.2 + slow or not tiers.runs("all")

    node = fleet.busiest()
    at = now()
    node.stop()
    fleet.remove(node)
    fleet.wait_for_leaders()
    stopped = fleet.successions(at, node)
    shown("stopped", stopped)
    assert max(stopped) <= retry * 1.2 + slow or not tiers.runs("all")

    node = fleet.busiest()
    led = node.leads()
    pause_node(node, url)
    others = [other for other in fleet.nodes if other is not node]
    wait_until(lambda: led <= {name for other in others for name in other.leads()}, timeout=lease * 4)
    node.send(signal.SIGCONT)
    fleet.wait_for_leaders()

    taker = min(fleet.nodes, key=lambda node: len(node.leads()))
    taker.command("take_over")
    wait_until(lambda: taker.leads() == set(fleet.names), timeout=lease * 4, what="the taker leads all elections")
    fleet.nodes[0].command("demote 10s")
    wait_until(lambda: set(fleet.leaders()) == set(fleet.names) and not taker.leads(), timeout=lease * 4)
    time.sleep(0.05)  # a few more lines in the logs
    assert fleet.overlaps() == []
    terms: dict[str, list[int]] = {}
    for reign in fleet.reigns():
        if reign.term not in terms.setdefault(reign.name, []):
            terms[reign.name].append(reign.term)
    assert all(of_one == sorted(of_one) for of_one in terms.values())
