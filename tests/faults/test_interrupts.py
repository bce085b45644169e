"""I12: if Ctrl-C or SIGTERM interrupts an acquire in sync code, nothing stays locked, on every store and driver."""

from __future__ import annotations

import signal

import pytest

from tests.faults.scenarios.interrupts import SIGNALS, interrupt
from tests.support.database import DatabaseServer
from tests.support.stores import WITH_NETWORK, SqlServerStore, Store

pytestmark = pytest.mark.slow("starts a process for each acquire")
ONE_CLIENT = pytest.mark.matrix("another store shows it with the same client, or with one like it")
STORES = [
    *(f"{name} sync" for name in WITH_NETWORK if name != "kubernetes"),
    pytest.param("kubernetes sync", marks=ONE_CLIENT),
    "postgres async",  # behind a sync facade, as the command line uses it
    pytest.param("mysql async", marks=ONE_CLIENT),
]
ONE_SIGNAL = pytest.mark.matrix("what Python does with both signals does not depend on the store: psycopg2 has both")
ONE_EACH = [
    pytest.param(number, marks=[] if number is signal.SIGINT else ONE_SIGNAL, id=number.name) for number in SIGNALS
]


@pytest.mark.parametrize("number", ONE_EACH)
@pytest.mark.parametrize("store", STORES, indirect=True)
def test_i12_an_interrupted_acquire_leaves_nothing_behind(store: Store, number: signal.Signals) -> None:
    assert interrupt(store, number) == ""


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_i12_an_acquire_with_psycopg2_leaves_nothing_behind_after_either_signal(
    postgres_server: DatabaseServer, number: signal.Signals
) -> None:
    store = SqlServerStore(postgres_server, "postgres", ("postgresql+psycopg2", "postgresql+asyncpg"))
    assert interrupt(store, number) == ""
