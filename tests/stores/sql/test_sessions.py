"""I1: an application's statements on a pooled connection do not lead to another lock table."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, event, make_url

from shedlock_py import LeaseLostError, LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.stores.sql.stores import DATABASE, KINDS, ONE_EACH, Application, Store, drivers_of, on, on_mysql_and_mariadb
from tests.support.locks import acquired, record_of


@pytest.fixture
def other_place(store: Store) -> Iterator[str]:
    """Another schema or database, with a lock table of the same name."""
    place = f"other_{uuid4().hex[:8]}"
    if store.is_postgres:
        store.execute(f"CREATE SCHEMA {place}", f"CREATE TABLE {place}.shedlock (LIKE shedlock INCLUDING ALL)")
        yield place
        store.execute(f"DROP SCHEMA {place} CASCADE")
    else:
        store.execute(f"CREATE DATABASE {place}", f"CREATE TABLE {place}.shedlock LIKE {DATABASE}.shedlock")
        yield place
        store.execute(f"DROP DATABASE {place}")


def wander(application: Application, store: Store, place: str) -> None:
    """Send every connection of the application's pool to another place, and leave it there."""

    def checked_out(connection: Any, *_: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET search_path TO {place}" if store.is_postgres else f"USE {place}")
        cursor.close()
        connection.commit()

    event.listen(application.sync_engine, "checkout", checked_out)


@pytest.mark.parametrize("is_warm", [False, True])
def test_i1_a_connection_that_was_sent_elsewhere_finds_the_same_table(
    store: Store, other_place: str, is_warm: bool, name: str
) -> None:
    application, other = Application(store), store.provider()
    provider = application.provider
    if is_warm:
        provider.record("warm")
    wander(application, store, other_place)
    lease = acquired(provider, name)
    assert record_of(other, name).locked_by == lease.locked_by
    assert other.acquire(LockRequest(name, "1m")) is None
    assert store.query(f"SELECT count(*) FROM {other_place}.shedlock") == 0
    assert provider.extend(lease, "1h") is lease
    assert provider.release(lease)


@on(ONE_EACH)
def test_verify_on_a_connection_that_was_sent_elsewhere(store: Store, other_place: str, name: str) -> None:
    provider, application = store.provider(), Application(store)
    wander(application, store, other_place)
    lease = acquired(provider, name)
    application.run_verified(lease, lambda _: None)
    assert provider.release(lease)
    with pytest.raises(LeaseLostError):
        application.run_verified(lease, lambda _: None)


@on(["postgresql+psycopg", "postgresql+asyncpg"])
def test_a_search_path_of_the_role_or_the_url_is_the_default(store: Store, other_place: str, name: str) -> None:
    """The provider uses that table, wherever the connections are sent."""
    connect_args: dict[str, Any] = (
        {"server_settings": {"search_path": other_place}}
        if store.is_async
        else {"options": f"-csearch_path={other_place}"}
    )
    application, plain = Application(store, connect_args=connect_args), store.provider()
    provider = application.provider
    wander(application, store, "public")
    lease = acquired(provider, name)
    assert store.query(f"SELECT count(*) FROM {other_place}.shedlock") == 1
    assert plain.record(name) is None
    assert provider.release(lease)


@on(["postgresql+psycopg"])
def test_i1_a_temporary_table_of_the_same_name_is_not_used(store: Store, name: str) -> None:
    application, other = Application(store), store.provider()

    def connected(connection: Any, _: object) -> None:
        connection.execute("CREATE TEMPORARY TABLE shedlock (LIKE public.shedlock INCLUDING ALL)")
        connection.commit()

    event.listen(application.engine, "connect", connected)
    acquired(application.provider, name)
    assert other.acquire(LockRequest(name, "1m")) is None


def test_i1_a_temporary_table_of_sqlite_is_not_used(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    with closing(SqlAlchemyLockProvider(url)) as other:
        other.create_schema()
        engine = create_engine(url)
        event.listen(
            engine,
            "connect",
            lambda connection, _: connection.execute("CREATE TEMPORARY TABLE shedlock AS SELECT * FROM main.shedlock"),
        )
        provider = SqlAlchemyLockProvider(engine)
        acquired(provider, name)
        assert other.acquire(LockRequest(name, "1m")) is None
        engine.dispose()


def test_the_table_is_created_in_the_default_place(store: Store, other_place: str, name: str) -> None:
    with store.table() as table:
        application = Application(store, options={"table_name": table})
        provider = application.provider
        wander(application, store, other_place)
        with pytest.raises(ProviderError, match=table):
            provider.acquire(LockRequest(name, "1m"))
        provider.create_schema()
        acquired(provider, name)
        assert store.query(f"SELECT count(*) FROM {table}") == 1


@on(on_mysql_and_mariadb("pymysql", "mysqldb"))
def test_an_engine_whose_url_names_no_database(store: Store, name: str) -> None:
    url = make_url(store.url())
    engine = create_engine(
        url.set(database=None), connect_args={"db" if "mysqldb" in store.driver else "database": DATABASE}
    )
    store.stack.callback(engine.dispose)
    provider = SqlAlchemyLockProvider(engine)
    acquired(provider, name)
    assert store.provider().acquire(LockRequest(name, "1m")) is None


@pytest.fixture
def autocommit_is_off(store: Store) -> Iterator[None]:
    with store.server.connect() as connection:
        connection.exec_driver_sql("SET GLOBAL autocommit = 0")
        yield
        connection.exec_driver_sql("SET GLOBAL autocommit = 1")


@pytest.mark.usefixtures("autocommit_is_off")
@on(drivers_of("mysql", "mariadb"), kinds=KINDS)
def test_i9_a_grant_is_committed_where_autocommit_is_off(kind: str, store: Store, name: str) -> None:
    """Otherwise nobody else saw the record, and it was gone with the connection."""
    provider = store.provider_of(kind)
    lease = acquired(provider, name)
    assert store.query("SELECT locked_by FROM shedlock WHERE name = :name", name=name) == lease.locked_by
    assert provider.release(lease)
    assert store.query("SELECT lock_until <= UTC_TIMESTAMP(6) FROM shedlock WHERE name = :name", name=name)


@on(["mariadb+pymysql"])
@pytest.mark.parametrize("mode", ["ORACLE", "EMPTY_STRING_IS_NULL"])
def test_records_where_an_empty_text_is_null(store: Store, name: str, mode: str) -> None:
    provider = store.provider(url=make_url(store.url()).update_query_dict({"sql_mode": mode}).render_as_string(False))
    lease = acquired(provider, name)
    assert name in [record.name for record in provider.records()]
    assert [record.name for record in provider.records(name)] == [name]
    assert provider.release(lease)
