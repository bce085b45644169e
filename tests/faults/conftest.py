"""Stores for the short form of the scenarios, on the servers that all tests share."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.faults.stores import (
    MongoStore,
    QuorumStore,
    RedisStore,
    SqliteStore,
    Store,
    mariadb_store,
    postgres_store,
)


@pytest.fixture(scope="session")
def _stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    def directory() -> Path:
        return tmp_path_factory.mktemp("faults")

    server = request.getfixturevalue
    make: dict[str, Callable[[], Store]] = {
        "sqlite": lambda: SqliteStore(directory()),
        "postgres": lambda: postgres_store(server("postgres_server")),
        "mariadb": lambda: mariadb_store(server("mariadb_server")),
        "redis": lambda: RedisStore(server("redis_server")),
        "quorum": lambda: QuorumStore(server("redis_nodes")[:3]),
        "mongodb": lambda: MongoStore(server("mongodb_server")),
    }
    same = cache(lambda name: make[name]())
    # Other tests restart the servers of a quorum, which keep nothing: each test has a new quorum on them.
    return lambda name: make[name]() if name == "quorum" else same(name)


@pytest.fixture
def fault_store(request: pytest.FixtureRequest, _stores: Callable[[str], Store]) -> Store:
    """``@pytest.mark.parametrize("fault_store", ["redis sync", "redis async"], indirect=True)``."""
    name, kind = request.param.split()
    store = _stores(name)
    return store.asynchronous() if kind == "async" else store.sync()
