"""The short form of scenario 8: databases with awkward defaults, and PgBouncer before PostgreSQL."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from sqlalchemy import create_engine

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.faults.scenarios import settings
from tests.support.availability import private_server
from tests.support.database import DatabaseServer
from tests.support.pgbouncer import PgBouncer
from tests.support.stores import Store, on_private_server, postgres_store

SETTINGS = {
    "postgres": {setting.name: setting for setting in settings.POSTGRES},
    "mariadb": {setting.name: setting for setting in settings.MARIADB},
}


@pytest.fixture
def private(store: Store) -> Iterator[Store]:
    with on_private_server(store) as private:
        yield private


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
def test_not_noticed(private: Store, setting: str, by_engine: bool) -> None:
    chosen = SETTINGS[private.name][setting]
    assert settings.one_setting(private, chosen, 1, by_engine=by_engine).findings == []


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
def test_fails_closed_and_works_again(private: Store, setting: str) -> None:
    report = settings.one_setting(private, SETTINGS[private.name][setting], 1, by_engine=False)
    assert report.findings == []
    assert sum(number for kind, number in report.counts.items() if kind.endswith(" error")) >= 1


# PgBouncer


@pytest.fixture(scope="module")
def private_postgres(postgres_server: DatabaseServer) -> Iterator[DatabaseServer]:
    with on_private_server(postgres_store(postgres_server)) as private:
        yield private.servers[0]


@pytest.fixture(scope="module")
def pooler(private_postgres: DatabaseServer) -> Iterator[PgBouncer]:
    with private_server("pgbouncer", lambda: PgBouncer(private_postgres)) as pooler:
        yield pooler


@pytest.mark.parametrize(
    ("store", "driver", "by_engine"),
    [
        ("postgres sync", "postgresql+psycopg", True),
        ("postgres sync", "postgresql+psycopg2", False),
        ("postgres async", "postgresql+psycopg", False),
        ("postgres async", "postgresql+asyncpg", False),
    ],
    indirect=["store"],
)
def test_transaction_pooling(private: Store, pooler: PgBouncer, driver: str, by_engine: bool) -> None:
    """asyncpg prepares statements, which are then in another session: each such failure is an error that says why."""
    history, report = settings.through_pooler(private, pooler, driver, 1, by_engine=by_engine)
    assert report.findings == []
    errors = [operation.error for operation in history.operations if operation.outcome == "error"]
    assert bool(errors) is driver.endswith("asyncpg")
    assert all(error.startswith("Provider") for error in errors)
    words = ("prepared statement", "does not exist", "already exists")
    assert not errors or any(word in error for error in errors for word in words)


def test_a_pooler_is_named_in_the_error(private_postgres: DatabaseServer) -> None:
    """Two engines as psycopg makes them: each prepares what it has executed five times, under the same names."""
    with private_server("pgbouncer", lambda: PgBouncer(private_postgres, pool_size=1)) as pooler:
        engines = [create_engine(pooler.url("postgresql+psycopg")) for _ in range(2)]
        table = f"faults_{uuid4().hex[:8]}"
        providers = [SqlAlchemyLockProvider(engine, table_name=table) for engine in engines]
        providers[0].create_schema()
        with pytest.raises(ProviderError, match=r"prepared statement .* PgBouncer .*prepare_threshold"):
            _use_often(providers)
        for engine in engines:
            engine.dispose()


def _use_often(providers: list[SqlAlchemyLockProvider]) -> None:
    for provider in providers * 16:
        lease = provider.acquire(LockRequest("pooled", "1m"))
        assert lease is None or provider.release(lease)
