"""create_schema(): idempotent, from many processes at once, in odd places, by users with few rights."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, make_url, text

from shedlock_py import ConfigurationError, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider, lock_table
from tests.stores.sql.crowd import Crowd, create_schema, create_schema_async, create_schema_with_engine, crowd
from tests.stores.sql.stores import ONE_ASYNC_EACH, ONE_EACH, SYNC_DRIVERS, Store, acquired
from tests.support.database import DatabaseServer

ROUNDS = 20

Create = Callable[[str, str], None]


@pytest.fixture(scope="module")
def ten_processes() -> Iterator[Crowd]:
    with crowd() as processes:
        yield processes


@pytest.mark.parametrize("create", [create_schema, create_schema_with_engine])
def test_ten_processes_at_once_on_sqlite(create: Create, ten_processes: Crowd, tmp_path: Path) -> None:
    for i in range(ROUNDS):
        url = f"sqlite:///{tmp_path}/{i}.db"
        assert set(ten_processes.call(create, url, "shedlock")) == {None}
        use(url, "shedlock")


def test_ten_processes_at_once_on_async_sqlite(ten_processes: Crowd, tmp_path: Path) -> None:
    for i in range(ROUNDS):
        file = f"{tmp_path}/{i}.db"
        assert set(ten_processes.call(create_schema_async, f"sqlite+aiosqlite:///{file}", "shedlock")) == {None}
        use(f"sqlite:///{file}", "shedlock")


@pytest.mark.parametrize("create", [create_schema, create_schema_with_engine])
@pytest.mark.parametrize("driver", ONE_EACH)
def test_ten_processes_at_once(driver: str, create: Create, store: Store, ten_processes: Crowd) -> None:
    crowd_creates(store, ten_processes, create)


@pytest.mark.parametrize("driver", ONE_ASYNC_EACH)
def test_ten_processes_at_once_async(driver: str, store: Store, ten_processes: Crowd) -> None:
    crowd_creates(store, ten_processes, create_schema_async)


def crowd_creates(store: Store, processes: Crowd, create: Create) -> None:
    database = "tests_sql_fresh"
    store.server.drop_database(database)
    store.server.create_database(database)
    try:
        for i in range(ROUNDS):
            url = store.server.url(store.driver, database)
            assert set(processes.call(create, url, f"locks_{i}")) == {None}
        driver = "postgresql+psycopg" if store.is_postgres else "mysql+pymysql"
        use(store.server.url(driver, database), "locks_0")
    finally:
        store.server.drop_database(database)


def use(url: str, table: str) -> None:
    provider = SqlAlchemyLockProvider(url, table_name=table)
    assert provider.release(acquired(provider, "job"))
    provider.close()


def test_twice(store: Store) -> None:
    with store.table() as table:
        provider = store.provider(table_name=table)
        provider.create_schema()
        acquired(provider, "job")
        provider.create_schema()
        assert provider.acquire(LockRequest("job", "1m")) is None, "the record must have survived"


@pytest.mark.parametrize(
    "table",
    [
        "Shed Lock",
        "o'clock",
        'say "hi"',
        "back`tick",
        "SELECT",
        "größe",
        "{table}",
        "$shedlock$",
        "a$shedlock$b $shedlock_$",
    ],
)
@pytest.mark.parametrize("driver", [*SYNC_DRIVERS, "postgresql+asyncpg", "mysql+asyncmy"])
def test_odd_table_names(driver: str, table: str, store: Store) -> None:
    provider = store.provider(table_name=table)
    try:
        provider.create_schema()
        provider.create_schema()
        lease = acquired(provider, "job")
        assert provider.acquire(LockRequest("job", "1m")) is None
        assert provider.extend(lease, "2m") is lease
        assert [record.name for record in provider.records()] == ["job"]
        assert provider.release(lease)
    finally:
        with store.connect() as connection:
            lock_table(MetaData(), table).drop(connection)


@pytest.mark.parametrize("table", ["Shed Lock", "o'clock", 'say "hi"', "SELECT", "größe", "{table}"])
def test_odd_table_names_on_sqlite(table: str, tmp_path: Path) -> None:
    provider = SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db", table_name=table)
    provider.create_schema()
    provider.create_schema()
    assert provider.release(acquired(provider, "job"))
    provider.close()


@pytest.mark.parametrize("options", [{"table_name": "100%s"}, {"table_name": "a :name"}, {"schema": "100%s"}])
def test_names_that_drivers_would_misread_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot name the lock table"):
        SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db", **options)


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+asyncpg"])
@pytest.mark.parametrize("schema", ["jobs", "Odd Schema"])
def test_another_schema(driver: str, schema: str, store: Store) -> None:
    provider = store.provider(schema=schema)
    with pytest.raises(ProviderError, match="create_schema") as missing:
        provider.acquire(LockRequest("job", "1m"))
    assert not isinstance(missing.value, ProviderUnreachable)
    with pytest.raises(ProviderError, match="CREATE SCHEMA") as missing:
        provider.create_schema()
    assert "create_schema()" not in str(missing.value), "that is what was just done"
    (remedy,) = re.findall("CREATE SCHEMA .*", str(missing.value))
    store.execute(remedy)
    try:
        provider.create_schema()
        acquired(provider, "job")
        assert store.ask(f'SELECT name FROM "{schema}".shedlock') == "job"
        assert store.provider().record("job") is None
    finally:
        store.execute(f'DROP SCHEMA "{schema}" CASCADE')


@pytest.mark.parametrize("driver", ["mysql+pymysql"])
def test_another_database_on_mariadb(driver: str, store: Store) -> None:
    store.server.create_database("tests_sql_other")
    try:
        provider = store.provider(schema="tests_sql_other")
        provider.create_schema()
        acquired(provider, "job")
        assert store.ask("SELECT name FROM tests_sql_other.shedlock") == "job"
    finally:
        store.server.drop_database("tests_sql_other")


@pytest.fixture
def modest_url(store: Store) -> Iterator[str]:
    """The URL of a user who may use the table and not make one."""
    url = make_url(store.url()).set(username="modest", password="modest-pw")
    if store.is_postgres:
        store.execute(
            "CREATE ROLE modest LOGIN PASSWORD 'modest-pw'", "REVOKE CREATE ON SCHEMA public FROM public",
            "GRANT SELECT, INSERT, UPDATE ON shedlock TO modest",
        )  # fmt: skip
        clean = ["DROP OWNED BY modest", "DROP ROLE modest"]
    else:
        store.execute(
            "CREATE USER modest@'%' IDENTIFIED BY 'modest-pw'", "GRANT SELECT, INSERT, UPDATE ON shedlock TO modest@'%'"
        )
        clean = ["DROP USER modest@'%'"]
    yield url.render_as_string(hide_password=False)
    store.execute(*clean)


def test_by_a_user_who_may_not_create(store: Store, modest_url: str, name: str) -> None:
    provider = store.provider(url=modest_url)
    provider.create_schema()
    assert provider.release(acquired(provider, name))

    other = store.provider(url=modest_url, table_name="not_there")
    with pytest.raises(ProviderError, match=r"(?i)denied") as refused:
        other.create_schema()
    assert not isinstance(refused.value, ProviderUnreachable)
    assert refused.value.operation == "create_schema"
    assert refused.value.__cause__ is not None


def test_a_table_that_is_not_ours(postgres: DatabaseServer) -> None:
    provider = SqlAlchemyLockProvider(postgres.url("postgresql+psycopg", "tests_sql"), table_name="strange")
    with postgres.connect("tests_sql") as connection:
        connection.execute(text("CREATE TABLE strange (id INTEGER)"))
        with pytest.raises(ProviderError, match="column"):
            provider.create_schema()
        connection.execute(text("DROP TABLE strange"))
    provider.close()
