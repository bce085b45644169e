"""create_schema(): idempotent, from many processes at once, in odd places, for users with few rights."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, make_url, text

from shedlock_py import ConfigurationError, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider, lock_table
from tests.stores.sql.stores import (
    DRIVERS,
    ONE_ASYNC_EACH,
    ONE_EACH,
    SQLITE_DRIVERS,
    SYNC_DRIVERS,
    Store,
    marks_of,
    on_mysql_and_mariadb,
    programs_on,
)
from tests.support.database import DatabaseServer
from tests.support.locks import acquired, record_of
from tests.support.workers import CallAll, workers

ROUNDS = 8
"""One round in three showed the rarest of the old failures."""


def create_schema(url: str, table: str) -> None:
    provider = SqlAlchemyLockProvider(url, table_name=table)
    provider.create_schema()
    provider.close()


def create_schema_with_engine(url: str, table: str) -> None:
    engine = create_engine(url)
    SqlAlchemyLockProvider(engine, table_name=table).create_schema()
    engine.dispose()


def create_schema_async(url: str, table: str) -> None:
    async def create() -> None:
        provider = AsyncSqlAlchemyLockProvider(url, table_name=table)
        await provider.create_schema()
        await provider.close()

    asyncio.run(create())


SYNC, ASYNC = (*ONE_EACH, "sqlite"), (*ONE_ASYNC_EACH, "sqlite+aiosqlite")
CREATE = [
    *(pytest.param(driver, create) for driver in SYNC for create in (create_schema, create_schema_with_engine)),
    *(
        pytest.param(driver, create_schema_async, marks=marks_of(driver, (*SYNC, *ASYNC), programs=True, mariadb=True))
        for driver in ASYNC
    ),
]


@pytest.fixture(scope="module")
def call_all() -> Iterator[CallAll]:
    with workers() as call_all:
        yield call_all


@pytest.mark.slow("ten processes, eight times")
@pytest.mark.parametrize(("driver", "create"), CREATE)
def test_ten_processes_create_the_table_at_once(
    driver: str, create: Callable[[str, str], None], store: Store, call_all: CallAll, tmp_path: Path
) -> None:
    """In a new SQLite file each time, or in one new database."""
    database = "tests_sql_fresh"
    if not store.is_sqlite:
        store.server.drop_database(database)
        store.server.create_database(database)
    for i in range(ROUNDS):
        url = f"{driver}:///{tmp_path}/{i}.db" if store.is_sqlite else store.server.url(driver, database)
        assert set(call_all(create, url, f"locks_{i}")) == {None}
        provider = store.provider(url=url, table_name=f"locks_{i}")
        assert provider.release(acquired(provider, "job"))
    store.stack.close()
    if not store.is_sqlite:
        store.server.drop_database(database)


@programs_on([*DRIVERS, *SQLITE_DRIVERS])
def test_to_create_it_twice_keeps_the_records(store: Store) -> None:
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
@programs_on([*SYNC_DRIVERS, *ONE_ASYNC_EACH])
def test_odd_table_names_work(driver: str, table: str, store: Store) -> None:
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
def test_odd_table_names_work_on_sqlite(table: str, tmp_path: Path) -> None:
    provider = SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db", table_name=table)
    provider.create_schema()
    provider.create_schema()
    assert provider.release(acquired(provider, "job"))
    provider.close()


@pytest.mark.parametrize("options", [{"table_name": "100%s"}, {"table_name": "a :name"}, {"schema": "100%s"}])
def test_names_that_drivers_would_misread_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot name the lock table"):
        SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db", **options)


@programs_on(["postgresql+psycopg", "postgresql+asyncpg"], mariadb=True)
@pytest.mark.parametrize("schema", ["jobs", "Odd Schema"])
def test_a_table_in_another_schema(driver: str, schema: str, store: Store) -> None:
    provider = store.provider(schema=schema)
    with pytest.raises(ProviderError, match="create_schema") as missing:
        provider.acquire(LockRequest("job", "1m"))
    assert not isinstance(missing.value, ProviderUnreachable)
    with pytest.raises(ProviderError, match="CREATE SCHEMA") as missing:
        provider.create_schema()
    assert "create_schema()" not in str(missing.value), "it was just done"
    (remedy,) = re.findall("CREATE SCHEMA .*", str(missing.value))
    store.execute(remedy)
    try:
        provider.create_schema()
        acquired(provider, "job")
        assert store.query(f'SELECT name FROM "{schema}".shedlock') == "job"
        assert store.provider().record("job") is None
    finally:
        store.execute(f'DROP SCHEMA "{schema}" CASCADE')


@programs_on(on_mysql_and_mariadb("pymysql"), mariadb=True)
def test_a_table_in_another_database(driver: str, store: Store) -> None:
    store.server.create_database("tests_sql_other")
    try:
        provider = store.provider(schema="tests_sql_other")
        provider.create_schema()
        acquired(provider, "job")
        assert store.query("SELECT name FROM tests_sql_other.shedlock") == "job"
    finally:
        store.server.drop_database("tests_sql_other")


@pytest.fixture
def modest_url(store: Store) -> Iterator[str]:
    """Yield the URL of a user who may use the table but cannot make it."""
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


@programs_on(DRIVERS)
def test_a_user_who_may_not_create_uses_a_table_that_is_there(store: Store, modest_url: str, name: str) -> None:
    provider = store.provider(url=modest_url)
    provider.create_schema()
    assert provider.release(acquired(provider, name))

    other = store.provider(url=modest_url, table_name="not_there")
    with pytest.raises(ProviderError, match=r"(?i)denied") as refused:
        other.create_schema()
    assert not isinstance(refused.value, ProviderUnreachable)
    assert refused.value.operation == "create_schema"
    assert refused.value.__cause__ is not None


@programs_on(["postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg"], mariadb=True)
def test_a_database_without_an_encoding(store: Store, postgres: DatabaseServer) -> None:
    """initdb does this in the locale C. The drivers would use the database's encoding for the session."""
    database = "tests_sql_ascii"
    try:
        with postgres.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {database} ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0"))
        provider = store.provider(url=postgres.url(store.driver, database))
        provider.create_schema()
        for name in ("job", "größe", "🔒"):
            assert provider.release(acquired(provider, name))
            assert record_of(provider, name).name == name
    finally:
        store.stack.close()
        postgres.drop_database(database)


@programs_on(ONE_EACH, mariadb=True)
def test_a_table_name_that_the_server_would_cut(store: Store) -> None:
    """PostgreSQL cuts names silently: two such tables would be the same table."""
    provider: Any = store.provider()
    longest = provider.programs.dialect.max_identifier_length
    with pytest.raises(ConfigurationError, match=f"may have {longest} bytes at most"):
        store.provider(table_name="ü" + "t" * (longest - 1))
    store.provider(table_name="t" * longest)


def test_a_table_with_other_columns_is_refused(postgres: DatabaseServer) -> None:
    provider = SqlAlchemyLockProvider(postgres.url("postgresql+psycopg", "tests_sql"), table_name="strange")
    with postgres.connect("tests_sql") as connection:
        connection.execute(text("CREATE TABLE strange (id INTEGER)"))
        with pytest.raises(ProviderError, match="column"):
            provider.create_schema()
        connection.execute(text("DROP TABLE strange"))
    provider.close()
