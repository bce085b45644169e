"""lock_table(metadata): Alembic and create_all make the same table as create_schema()."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, MetaData, create_engine, inspect

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider, lock_table
from tests.stores.sql.stores import DRIVERS, ONE_EACH, Store, drivers_of, on, on_mysql_and_mariadb
from tests.support.locks import acquired


@pytest.fixture
def engine(store: Store) -> Engine:
    engine = create_engine(store.url())
    store.stack.callback(engine.dispose)
    return engine


def columns(engine: Engine, table: str, schema: str | None = None) -> list[tuple[str, str, bool]]:
    found = inspect(engine).get_columns(table, schema=schema)
    return [(column["name"], repr(column["type"]), column["nullable"]) for column in found]


@on(ONE_EACH, mariadb=True)
def test_create_all_makes_the_table_of_create_schema(driver: str, store: Store, engine: Engine, name: str) -> None:
    schema = "tests_sql_meta"
    store.execute(f"CREATE SCHEMA {schema}")
    try:
        metadata = MetaData()
        table = lock_table(metadata, "locks", schema)
        assert metadata.tables["tests_sql_meta.locks"] is table
        metadata.create_all(engine)
        provider = SqlAlchemyLockProvider(engine, table_name="locks", schema=schema)
        provider.create_schema()
        lease = acquired(provider, name)
        assert provider.acquire(LockRequest(name, "1m")) is None
        with engine.connect() as connection:
            row = connection.execute(table.select().where(table.c.name == name)).one()
            assert (row.locked_by, row.fencing_token) == (lease.locked_by, lease.fencing_token)
            provider.verify(lease, connection)
        assert provider.release(lease)
        assert columns(engine, "locks", schema) == columns(engine, "shedlock")
        assert inspect(engine).get_pk_constraint("locks", schema)["constrained_columns"] == ["name"]
    finally:
        store.execute(f"DROP SCHEMA {schema}" + (" CASCADE" if store.is_postgres else ""))


def test_create_all_makes_the_table_of_create_schema_on_sqlite(name: str, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db")
    metadata = MetaData()
    lock_table(metadata)
    metadata.create_all(engine)
    provider = SqlAlchemyLockProvider(engine)
    assert provider.release(acquired(provider, name))
    SqlAlchemyLockProvider(engine, table_name="made").create_schema()
    assert columns(engine, "shedlock") == columns(engine, "made")
    engine.dispose()


@pytest.fixture
def latin(store: Store) -> Iterator[str]:
    """A database from before UTF-8."""
    with store.server.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE tests_sql_latin CHARACTER SET latin1 COLLATE latin1_swedish_ci")
    yield "tests_sql_latin"
    store.server.drop_database("tests_sql_latin")


# Some MySQL collation makes each of these equal to "Größe-job".
LOOKALIKES = ["Größe-job", "größe-job", "Grösse-job", "Große-job", "Größe-job ", "Größe-Job", "Gro\u0308ße-job"]


@on(drivers_of("mariadb", "mysql"))
@pytest.mark.parametrize(
    "made_by", ["create_schema", pytest.param("create_all", marks=pytest.mark.slow("the same table"))]
)
def test_names_are_compared_byte_by_byte(driver: str, made_by: str, latin: str, store: Store) -> None:
    if made_by == "create_all":
        engine = create_engine(store.server.url(f"{DRIVERS[driver]}+pymysql", latin))
        metadata = MetaData()
        lock_table(metadata)
        metadata.create_all(engine)
        engine.dispose()
    provider = store.provider(url=store.server.url(driver, latin))
    provider.create_schema()
    leases = [acquired(provider, lock) for lock in LOOKALIKES]
    assert sorted(record.name for record in provider.records()) == sorted(LOOKALIKES)
    assert provider.release(leases[0])
    assert provider.acquire(LockRequest(LOOKALIKES[1], "1m")) is None
    assert provider.release(acquired(provider, "🐑" * 64))


@on(on_mysql_and_mariadb("pymysql", "aiomysql"), mariadb=True)
def test_a_connection_that_cannot_say_the_name_says_so(driver: str, latin: str, store: Store) -> None:
    provider = store.provider(url=store.server.url(driver, latin) + "?charset=latin1")
    provider.create_schema()
    lease = acquired(provider, "größe")
    assert provider.acquire(LockRequest("größe", "1m")) is None
    with pytest.raises(ProviderError):
        provider.acquire(LockRequest("🐑", "1m"))
    assert provider.release(lease)
    assert [record.name for record in store.provider(url=store.server.url(driver, latin)).records()] == ["größe"]


@on(["postgresql+psycopg", "postgresql+psycopg_async"], mariadb=True)
def test_a_table_whose_name_is_sent_in_another_character_set(driver: str, store: Store) -> None:
    table = "größe_der_sperren"
    provider = store.provider(url=f"{store.url()}?client_encoding=latin1", table_name=table)
    try:
        provider.create_schema()
        lease = acquired(provider, "größe")
        assert provider.acquire(LockRequest("größe", "1m")) is None
        assert provider.release(lease)
    finally:
        store.execute(f'DROP TABLE IF EXISTS "{table}"')
