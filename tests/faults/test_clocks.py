"""Tests that clocks of servers and workers can be set; then the short form of scenario 7. I1, I7, I10, I11."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from shedlock_py import Lease, LockProvider, LockRequest
from tests.faults.checker import Report
from tests.faults.clocked import ClockedStore, clocked, worker_clocks
from tests.faults.clocks import Clock, offset_to
from tests.faults.fleet import ForkServer
from tests.faults.history import monotonic
from tests.faults.registry import Budget
from tests.faults.scenarios import clocks, elections, time_zones
from tests.faults.scenarios.clocks import HOUR
from tests.support.stores import ONE_SERVER, Store

ONCE = Budget(0.0, least=1)


def is_ahead(seconds: float, begin: float, offset: float, *, exact_to: float = 0.01) -> bool:
    """Whether a clock that is ``offset`` ahead of this machine's clock has shown this time since ``begin``."""
    return begin + offset - exact_to <= seconds <= time.time() + offset + exact_to


# Servers

SERVER_OF_ITS_OWN = pytest.mark.slow("starts a server of its own; in `make test`, Redis shows it")


@pytest.fixture(
    scope="module",
    params=[name if name == "redis" else pytest.param(name, marks=SERVER_OF_ITS_OWN) for name in ONE_SERVER],
)
def clocked_store(request: pytest.FixtureRequest) -> Iterator[ClockedStore]:
    with clocked(request.param, environment={"TZ": "Pacific/Apia"}) as clocked_store:
        yield clocked_store


def test_i10_records_and_tokens_are_by_the_servers_clock(clocked_store: ClockedStore) -> None:
    provider, kept = clocked_store.store.open(), clocked_store.store.kept_longer
    for offset in (HOUR, -HOUR, 400 * 24 * HOUR, 0.0):
        clocked_store.set(offset)
        assert provider.force_release("nobody") is False  # the server works
        begin, exact_to = time.time(), kept + 0.01
        lease = provider.acquire(LockRequest(f"clock {offset}", "1m"))
        assert lease is not None
        record = provider.record(f"clock {offset}")
        assert is_ahead(record.locked_at.timestamp(), begin, offset, exact_to=exact_to)
        longer = record.lock_until - record.locked_at - timedelta(minutes=1)
        assert timedelta(milliseconds=-2) < longer < timedelta(seconds=kept, milliseconds=2)
        assert is_ahead(lease.fencing_token / 1e6, begin, offset, exact_to=exact_to)
    provider.close()


# Workers

CLOCKS = """
import sys, threading, time
for line in sys.stdin:
    before = time.monotonic()
    time.sleep(0.1)
    threading.Event().wait(0.1)
    print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic() - before, flush=True)
"""


def read_clocks(process: subprocess.Popen[str]) -> tuple[float, float, float]:
    """Return its wall clock, its clock for leases, and how long it waited for 0.2 seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    wall, boot, waited = map(float, process.stdout.readline().split())
    return wall, boot, waited


def test_a_workers_wall_clock_is_set_and_no_other() -> None:
    with (
        Clock() as clock,
        subprocess.Popen(
            [sys.executable, "-c", CLOCKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clock.environment,
        ) as process,
    ):
        for offset in (0.0, HOUR, -HOUR + 0.5):
            clock.set(offset)
            begin, boot_begin = time.time(), monotonic()
            wall, boot, waited = read_clocks(process)
            assert is_ahead(wall, begin, offset)
            assert boot_begin <= boot <= monotonic()
            assert 0.2 <= waited <= monotonic() - boot_begin
        moment, begin = datetime(2027, 3, 14, 6, 59, 58, tzinfo=UTC), time.time()
        clock.set(offset_to(moment))
        assert is_ahead(read_clocks(process)[0], begin, moment.timestamp() - begin, exact_to=1.0)
        process.communicate(timeout=30)


# The scenarios

WITH_CLOCKS = pytest.mark.slow("starts servers or workers with clocks of their own")
ANOTHER_STORE = pytest.param("etcd sync", marks=pytest.mark.matrix("another store shows it"))


def no_findings(report: Report) -> bool:
    assert not report.findings, "\n".join(f"{finding.rule}: {finding.text}" for finding in report.findings)
    return True


@pytest.fixture(scope="module")
def workers() -> Iterator[list[tuple[Clock, ForkServer]]]:
    with worker_clocks(3, *({"TZ": zone} for zone in time_zones.ZONES)) as workers:
        yield workers


@WITH_CLOCKS
@pytest.mark.parametrize("store", ["redis sync", ANOTHER_STORE], indirect=True)
def test_i10_clocks_of_workers_that_jump_change_nothing(store: Store, workers: list[tuple[Clock, ForkServer]]) -> None:
    report = clocks.jump_workers(store, workers, 1, jumps=6)
    assert no_findings(report)
    assert report.counts["acquire granted"] > 1


@WITH_CLOCKS
@pytest.mark.parametrize("store", ["redis sync", ANOTHER_STORE], indirect=True)
def test_i7_tokens_grow_when_the_stores_clock_jumps(store: Store) -> None:
    report = clocks.store_jumps(store, ONCE, 1)
    assert no_findings(report)
    assert "3 times" in report.notes[0]
    assert report.counts["acquire granted"] > 3


@WITH_CLOCKS
@pytest.mark.parametrize("store", ["quorum sync"], indirect=True)
def test_i1_wrong_clocks_of_a_minority_change_nothing(store: Store) -> None:
    report = clocks.minority_wrong(store, ONCE, 1)
    assert no_findings(report)
    assert report.counts["acquire granted"] > 1


def lease_of_all(provider: LockProvider, name: str, clients: Sequence[redis.Redis], record: str) -> Lease:
    """Acquire a lease that all ``clients`` have confirmed: an acquire does not wait for a late server."""
    while True:
        lease = provider.acquire(LockRequest(name, "10m"))
        assert lease is not None
        locked_by = lease.locked_by.encode()
        until = time.monotonic() + 1
        while time.monotonic() < until:
            if all(client.hget(record, "locked_by") == locked_by for client in clients):
                return lease
        provider.release(lease)


def open_patient(store: Store) -> Any:
    """A provider with a time limit that a busy machine does not reach."""
    store.options["timeout"] = "20s"
    return store.open()


@WITH_CLOCKS
def test_a_lease_of_a_bare_majority_ends_when_one_of_its_clocks_jumps() -> None:
    """Two majorities may share only that server. A lease that all servers have granted survives jumps of a minority."""
    with (
        clocked("quorum", servers=5) as clocked_store,
        ExitStack() as stack,
        closing(open_patient(clocked_store.store)) as one,
        closing(open_patient(clocked_store.store)) as other,
    ):
        clients = [stack.enter_context(server.client()) for server in clocked_store.store.servers]
        for withheld, expected in ((0, False), (2, True)):
            name = f"job-{withheld}"
            record = f"{clocked_store.store.options['key_prefix']}:{{{name}}}"
            until = clients[0].time()[0] + HOUR
            for client in clients[:withheld]:  # promised to another claim, which gives up later
                client.hset(record, mapping={"vote_by": "another#1", "vote_until": f"{until * 1e6:.0f}"})
            lease = lease_of_all(one, name, clients[withheld:], record)
            assert other.acquire(LockRequest(name, "10m")) is None
            for client in clients[:withheld]:
                client.hdel(record, "vote_by", "vote_until")
            clocked_store.clocks[4].set(clocked_store.clocks[4].offset + HOUR)
            second = other.acquire(LockRequest(name, "10m"))
            assert (second is not None) is expected
            assert lease.is_trusted()
            assert second is None or second.fencing_token > lease.fencing_token


@WITH_CLOCKS
@pytest.mark.parametrize("store", ["redis async"], indirect=True)
def test_i6_never_two_leaders_by_the_observed_rule(store: Store) -> None:
    report = elections.elections(store, ONCE, 1, "observed", sizes=())
    assert no_findings(report)
    assert report.counts["reign"] > elections.ELECTIONS
    assert report.takeovers, "a dead leader was followed although the clock had been set back"


@WITH_CLOCKS
@pytest.mark.parametrize("store", ["mariadb sync"], indirect=True)
def test_i10_clock_changes_of_a_time_zone_change_nothing(store: Store, workers: list[tuple[Clock, ForkServer]]) -> None:
    report = time_zones.pass_moment(store, workers, time_zones.MOMENTS[2], 0)
    assert no_findings(report)
    assert report.counts["acquire granted"] > 5


@WITH_CLOCKS
@pytest.mark.parametrize(("store", "seed"), [("sqlite sync", 1)], indirect=["store"])
def test_i11_each_fire_time_of_a_cron_trigger_has_one_run(store: Store, seed: int) -> None:
    report = time_zones.cron(store, ONCE, seed)
    assert no_findings(report)
    assert report.counts["run"] > 1
    assert report.counts["run skipped"] > 0, "there are three replicas"
