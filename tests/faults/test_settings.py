"""The short form of scenario 8: databases with awkward defaults, and PgBouncer before PostgreSQL."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.faults.checker import Report
from tests.faults.history import History, Operation
from tests.faults.private import on_private_server
from tests.faults.scenarios import settings
from tests.support.availability import private_server
from tests.support.database import DatabaseServer
from tests.support.pgbouncer import PgBouncer
from tests.support.stores import Store, postgres_store

SETTINGS = {
    "postgres": {setting.name: setting for setting in settings.POSTGRES},
    "mariadb": {setting.name: setting for setting in settings.MARIADB},
}


@pytest.fixture
def own_store(store: Store) -> Iterator[Store]:
    """Not on a server that somebody else runs."""
    with on_private_server(store) as own:
        yield own


@pytest.fixture(scope="module")
def own_postgres(postgres_server: DatabaseServer) -> Iterator[DatabaseServer]:
    with on_private_server(postgres_store(postgres_server)) as own:
        yield own.servers[0]


@pytest.mark.parametrize(
    ("store", "setting", "by_engine"),
    [
        ("postgres sync", "serializable", True),
        ("postgres async", "serializable", False),
        ("mariadb async", "serializable", True),
        ("mariadb sync", "ANSI_QUOTES", False),
        ("mariadb sync", "no autocommit", False),
        ("mariadb sync", "no autocommit", True),
    ],
    indirect=["store"],
)
def test_not_noticed(own_store: Store, setting: str, by_engine: bool) -> None:
    chosen = SETTINGS[own_store.name][setting]
    assert settings.one_setting(own_store, chosen, 1, by_engine=by_engine).findings == []


@pytest.mark.parametrize(
    ("store", "setting"),
    [
        ("postgres async", "time limits"),
        ("postgres sync", "few connections"),
        ("mariadb sync", "time limits"),
        ("mariadb async", "few connections"),
    ],
    indirect=["store"],
)
def test_fails_closed_and_works_again(own_store: Store, setting: str) -> None:
    report = settings.one_setting(own_store, SETTINGS[own_store.name][setting], 1, by_engine=False)
    assert report.findings == []
    assert sum(number for kind, number in report.counts.items() if kind.endswith(" error")) >= 1


@pytest.mark.parametrize(
    ("failed", "finds"),
    [
        ([], False),
        (["ProviderError: could not serialize access due to concurrent update"], False),
        (["ProviderError: Deadlock found when trying to get lock"] * 2, True),
        (["ProviderError: anything else"], True),
    ],
)
def test_which_errors_are_noticed(failed: list[str], finds: bool) -> None:
    granted = [Operation("w1", "acquire", "a", i, i + 0.1, "granted") for i in range(150)]
    errors = [Operation("w1", "acquire", "a", i, i + 0.1, "error", error=error) for i, error in enumerate(failed)]
    report = Report()
    settings._judge_errors(report, History((*granted, *errors)), "here")
    assert bool(report.findings) == finds


# PgBouncer


@pytest.fixture(scope="module")
def pooler(own_postgres: DatabaseServer) -> Iterator[PgBouncer]:
    with private_server("pgbouncer", lambda: PgBouncer(own_postgres)) as pooler:
        yield pooler


@pytest.mark.parametrize(
    ("store", "driver", "by_engine"),
    [
        ("postgres sync", "postgresql+psycopg", True),
        ("postgres sync", "postgresql+psycopg2", False),
        ("postgres async", "postgresql+psycopg", False),
    ],
    indirect=["store"],
)
def test_transaction_pooling(own_store: Store, pooler: PgBouncer, driver: str, by_engine: bool) -> None:
    history, report = settings.through_pooler(own_store, pooler, driver, 1, by_engine=by_engine)
    assert report.findings == []
    assert [operation.error for operation in history.operations if operation.outcome == "error"] == []


@pytest.mark.parametrize("store", ["postgres async"], indirect=True)
def test_asyncpg_prepares_statements_and_fails_closed(own_store: Store, pooler: PgBouncer) -> None:
    """Every failure is an error that says why; what is granted is granted once."""
    history, report = settings.through_pooler(own_store, pooler, "postgresql+asyncpg", 1, by_engine=False)
    assert report.findings == []
    failed = [operation for operation in history.operations if operation.outcome == "error"]
    assert failed
    words = ("prepared statement", "does not exist", "already exists")
    assert all(operation.error.startswith("Provider") for operation in failed)
    assert any(word in operation.error for operation in failed for word in words)


def test_a_pooler_is_named_in_the_error(own_postgres: DatabaseServer) -> None:
    """Two engines as psycopg makes them: each prepares what it has executed five times, under the same names."""
    table = f"faults_{uuid4().hex[:8]}"
    with private_server("pgbouncer", lambda: PgBouncer(own_postgres, pool_size=1)) as pooler:
        engines = [create_engine(pooler.url("postgresql+psycopg")) for _ in range(2)]
        providers = [SqlAlchemyLockProvider(engine, table_name=table) for engine in engines]
        providers[0].create_schema()
        with pytest.raises(ProviderError, match=r"prepared statement .* PgBouncer .*prepare_threshold"):
            _acquire_often(providers * 2)
        for engine in engines:
            engine.dispose()


def _acquire_often(providers: list[SqlAlchemyLockProvider]) -> None:
    for provider in providers:
        for _ in range(8):
            lease = provider.acquire(LockRequest("pooled", "1m"))
            assert lease is None or provider.release(lease)


async def test_the_names_of_our_prepared_statements_are_nobody_elses(own_postgres: DatabaseServer) -> None:
    """What the pooler found: asyncpg's own numbers were another client's statements, which the server then ran."""
    names: set[str] = set()
    count = 0
    for _ in range(2):
        url = own_postgres.url("postgresql+asyncpg")
        provider = AsyncSqlAlchemyLockProvider(url, table_name=f"faults_{uuid4().hex[:8]}")
        await provider.create_schema()
        lease = await provider.acquire(LockRequest("named", "1m"))
        assert lease
        client: Any = provider._client  # the provider's own sessions have no public name
        async with client.of_this_loop().engine.connect() as connection:
            found = await connection.exec_driver_sql("SELECT name FROM pg_prepared_statements")
            mine = {name for (name,) in found}
        assert await provider.release(lease)
        await provider.close()
        assert mine
        assert all(name.startswith("shedlock_") for name in mine)
        names |= mine
        count += len(mine)
    assert len(names) == count
