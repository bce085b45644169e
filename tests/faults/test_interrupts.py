"""I12: an acquire in sync code that Ctrl-C or SIGTERM interrupts leaves nothing behind, on every store and driver."""

from __future__ import annotations

import signal

import pytest

from tests.faults.scenarios.interrupts import SIGNALS, interrupt
from tests.support.database import DatabaseServer
from tests.support.stores import WITH_NETWORK, SqlServerStore, Store

STORES = [
    *(f"{name} sync" for name in WITH_NETWORK if name != "kubernetes"),
    pytest.param("kubernetes sync", marks=pytest.mark.matrix),  # the client is etcd's
    "postgres async",  # behind a sync facade, as the command line has it
    pytest.param("mysql async", marks=pytest.mark.matrix),
]


ONE_EACH = [
    pytest.param(number, marks=[] if number is signal.SIGINT else pytest.mark.matrix, id=number.name)
    for number in SIGNALS
]
"""Both signals on one driver in `make test`, psycopg2: what Python does with them does not depend on the store."""


@pytest.mark.parametrize("number", ONE_EACH)
@pytest.mark.parametrize("store", STORES, indirect=True)
def test_i12_an_interrupted_acquire(store: Store, number: signal.Signals) -> None:
    assert interrupt(store, number) == ""


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_i12_an_interrupted_acquire_with_psycopg2(postgres_server: DatabaseServer, number: signal.Signals) -> None:
    store = SqlServerStore(postgres_server, "postgres", ("postgresql+psycopg2", "postgresql+asyncpg"))
    assert interrupt(store, number) == ""
