"""The short form of scenario 8: databases with awkward defaults, and PgBouncer before PostgreSQL."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from sqlalchemy import create_engine

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.faults.scenarios import settings
from tests.faults.stores import Store
from tests.services.availability import private_server
from tests.services.database import DatabaseServer
from tests.services.pgbouncer import PgBouncer

SETTINGS = {
    "postgres": {setting.name: setting for setting in settings.POSTGRES},
    "mariadb": {setting.name: setting for setting in settings.MARIADB},
}


@pytest.mark.parametrize(
    ("fault_store", "setting", "by_engine"),
    [
        ("postgres sync", "serializable", True),
        ("postgres async", "serializable", False),
        ("mariadb async", "serializable", True),
        ("mariadb sync", "ANSI_QUOTES", False),
        ("mariadb sync", "no autocommit", False),
        ("mariadb sync", "no autocommit", True),
    ],
    indirect=["fault_store"],
)
def test_not_noticed(fault_store: Store, setting: str, by_engine: bool) -> None:
    chosen = SETTINGS[fault_store.name][setting]
    assert settings.one_setting(fault_store, chosen, 1, by_engine=by_engine).findings == []


@pytest.mark.parametrize(
    ("fault_store", "setting"),
    [
        ("postgres async", "time limits"),
        ("postgres sync", "few connections"),
        ("mariadb sync", "time limits"),
        ("mariadb async", "few connections"),
    ],
    indirect=["fault_store"],
)
def test_fails_closed_and_works_again(fault_store: Store, setting: str) -> None:
    report = settings.one_setting(fault_store, SETTINGS[fault_store.name][setting], 1, by_engine=False)
    assert report.findings == []
    assert sum(number for kind, number in report.counts.items() if kind.endswith(" error")) >= 1


# PgBouncer


@pytest.fixture(scope="module")
def pooler(postgres_server: DatabaseServer) -> Iterator[PgBouncer]:
    with private_server("pgbouncer", lambda: PgBouncer(postgres_server)) as pooler:
        yield pooler


@pytest.mark.parametrize(
    ("fault_store", "driver", "by_engine"),
    [
        ("postgres sync", "postgresql+psycopg", True),
        ("postgres sync", "postgresql+psycopg2", False),
        ("postgres async", "postgresql+psycopg", False),
    ],
    indirect=["fault_store"],
)
def test_transaction_pooling(fault_store: Store, pooler: PgBouncer, driver: str, by_engine: bool) -> None:
    history, report = settings.through_pooler(fault_store, pooler, driver, 1, by_engine=by_engine)
    assert report.findings == []
    assert [operation.error for operation in history.operations if operation.outcome == "error"] == []


@pytest.mark.parametrize("fault_store", ["postgres async"], indirect=True)
def test_asyncpg_prepares_statements_and_fails_closed(fault_store: Store, pooler: PgBouncer) -> None:
    """Every failure is an error that says why; what is granted is granted once."""
    history, report = settings.through_pooler(fault_store, pooler, "postgresql+asyncpg", 1, by_engine=False)
    assert report.findings == []
    failed = [operation for operation in history.operations if operation.outcome == "error"]
    assert failed
    words = ("prepared statement", "does not exist", "already exists")
    assert all(operation.error.startswith("Provider") for operation in failed)
    assert any(word in operation.error for operation in failed for word in words)


def test_a_pooler_is_named_in_the_error(postgres_server: DatabaseServer) -> None:
    """Two engines as psycopg makes them: each prepares what it has executed five times, under the same names."""
    table = f"faults_{uuid4().hex[:8]}"
    with private_server("pgbouncer", lambda: PgBouncer(postgres_server, pool_size=1)) as pooler:
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


async def test_the_names_of_our_prepared_statements_are_nobody_elses(postgres_server: DatabaseServer) -> None:
    """What the pooler found: asyncpg's own numbers were another client's statements, which the server then ran."""
    names: set[str] = set()
    count = 0
    for _ in range(2):
        url = postgres_server.url("postgresql+asyncpg")
        provider = AsyncSqlAlchemyLockProvider(url, table_name=f"faults_{uuid4().hex[:8]}")
        await provider.create_schema()
        lease = await provider.acquire(LockRequest("named", "1m"))
        assert lease
        async with provider._engine_of_this_loop().connect() as connection:
            found = await connection.exec_driver_sql("SELECT name FROM pg_prepared_statements")
            mine = {name for (name,) in found}
        assert await provider.release(lease)
        await provider.close()
        assert mine
        assert all(name.startswith("shedlock_") for name in mine)
        names |= mine
        count += len(mine)
    assert len(names) == count
