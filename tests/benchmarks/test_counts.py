"""A guard against relapse: what can be counted is counted, and is the same on every run.

Round trips are counted in the tests of each store, and that a skip writes nothing in ``sql/test_skip_writes_nothing``.
Times are the benchmark's alone.
"""

from collections.abc import Iterator

import pytest

from benchmarks import cost, inprocess, wire
from benchmarks.contenders import US, Contender, find
from benchmarks.cost import READERS, Counters
from benchmarks.servers import DurablePostgres, RunningStore, Site
from tests.support.availability import private_server

OURS = (US, f"{US}, your own client", f"{US}: hold", f"{US}: decorator")


class QuietPostgres(DurablePostgres):
    """Writes to its log only what statements make it write."""

    def _command(self, port: int) -> list[str]:
        return [*super()._command(port), "-c", "autovacuum=off", "-c", "checkpoint_timeout=1d"]


@pytest.fixture(scope="module")
def postgres() -> Iterator[RunningStore]:
    with private_server("postgres", QuietPostgres) as server:
        yield RunningStore(Site("postgres", server.address), server.pid, "")


def counted(store: RunningStore, contender: Contender) -> Counters:
    with READERS[store.site.store](store.site) as read:
        return cost.count(store, contender, read)


# An acquire and its release


@pytest.mark.parametrize("name", OURS)
def test_the_log_of_postgresql(name: str, postgres: RunningStore) -> None:
    found = counted(postgres, find("postgres", name))
    assert (found["skip_wal_bytes"], found["skip_row_locks"]) == (0, 0)
    assert found["cycle_row_locks"] <= 1
    assert 0 < found["cycle_wal_bytes"] <= 350


@pytest.mark.parametrize("running_store", ["redis"], indirect=True)
@pytest.mark.parametrize("name", OURS)
def test_the_commands_of_redis(name: str, running_store: RunningStore) -> None:
    # Each script is one command, and calls others: TIME, HMGET, HSET, PEXPIRE.
    assert counted(running_store, find("redis", name)) == {"cycle_commands": 10, "skip_commands": 3}


@pytest.mark.parametrize("running_store", ["mariadb"], indirect=True)
def test_the_statements_of_mariadb(running_store: RunningStore) -> None:
    found = counted(running_store, find("mariadb", US))
    assert (found["cycle_statements"], found["skip_statements"]) == (2, 1)
    assert (found["cycle_row_updates"], found["skip_row_updates"]) == (2, 0)


# What goes over the wire. Names and holders are a part of it: a longer host name makes a few bytes more.


@pytest.mark.parametrize(
    ("running_store", "cycle", "skip"), [("redis", 480, 250), ("mariadb", 2300, 2000)], indirect=["running_store"]
)
def test_bytes_on_the_wire(running_store: RunningStore, cycle: float, skip: float) -> None:
    check_wire(running_store, cycle, skip)


def test_bytes_on_the_wire_of_postgresql(postgres: RunningStore) -> None:
    # The whole statement goes over each time: behind a pooler such as PgBouncer, prepared ones would fail.
    check_wire(postgres, 1800, 1400)


def check_wire(store: RunningStore, cycle: float, skip: float) -> None:
    found = wire.count(store, find(store.site.store, US))
    assert (found["cycle_round_trips"], found["skip_round_trips"]) == (2, 1)
    assert (found["cycle_connections"], found["skip_connections"]) == (0, 0)
    assert 0 < found["cycle_bytes"] <= cycle
    assert 0 < found["skip_bytes"] <= skip


# Importing


def test_modules_that_are_imported() -> None:
    assert inprocess.modules("import shedlock_py") - inprocess.modules("pass") <= 80


def test_this_would_see_a_module_more() -> None:
    assert inprocess.modules("import shedlock_py, json.tool") > inprocess.modules("import shedlock_py")
