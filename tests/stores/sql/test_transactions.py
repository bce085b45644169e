"""verify() in transactions on connections that the application opens itself, with a driver or with Django."""

from __future__ import annotations

import sqlite3
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.apps import apps
from django.db import connection as django_connection
from django.db import connections
from django.db import transaction as django_transaction
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from shedlock_py import (
    AsyncLeaderElector,
    ConfigurationError,
    InMemoryLockProvider,
    LeaderElector,
    LeaseLostError,
    LockRequest,
    ProviderUnreachable,
)
from tests.stores.sql.stores import DRIVERS, ONE_EACH, SQLITE_DRIVERS, Application, Store, is_waiting
from tests.stores.sql.transactions import Transaction
from tests.support.django_projects import add_database, database
from tests.support.locks import acquired
from tests.support.polling import wait_until

REASONS = {
    "mysqldb": pytest.mark.slow("mysqlclient is built from source"),
    "aiomysql": pytest.mark.slow("asyncmy has the same interface"),
    "mariadb": pytest.mark.slow("MariaDB has the drivers of MySQL"),
}


def on(*drivers: str) -> pytest.MarkDecorator:
    """Parametrize a test with drivers. Each driver has its own code."""
    params = [(driver, [mark for part, mark in REASONS.items() if part in driver]) for driver in drivers]
    return pytest.mark.parametrize("driver", [pytest.param(driver, marks=marks) for driver, marks in params])


on_each_driver = on(*DRIVERS, *SQLITE_DRIVERS)


@pytest.fixture
def work(store: Store) -> str:
    """A table for the application's work. It is dropped after the test's connections are closed."""
    table = store.stack.enter_context(store.table())
    store.execute(f"CREATE TABLE {table} (n INTEGER PRIMARY KEY)")
    return table


@pytest.fixture
def name() -> str:
    """A lock name that must not become a part of a statement."""
    return f"o'clock-%s-%(a)s-:a-?-$1-{uuid4().hex[:12]}"


def count(store: Store, work: str) -> int:
    return int(store.query(f"SELECT count(*) FROM {work}"))


def check_that_a_take_over_waits(store: Store, name: str, work: str, commit: Callable[[], object]) -> None:
    """``commit`` writes one row."""
    if store.is_sqlite:  # nobody can see who waits for a file
        with pytest.raises(ProviderUnreachable, match="locked"):
            store.provider(timeout="200ms").take_over(LockRequest(name, "1m"))
        assert count(store, work) == 0
        commit()
        store.provider().take_over(LockRequest(name, "1m"))
        assert count(store, work) == 1
        return
    counts: list[int] = []
    successor = store.provider()

    def take_over() -> None:
        successor.take_over(LockRequest(name, "1m"))
        counts.append(count(store, work))

    taking = threading.Thread(target=take_over)
    taking.start()
    wait_until(lambda: is_waiting(store), what="the successor waiting for the row")
    assert not counts
    commit()
    taking.join(20)
    assert counts == [1], "the successor must see what the holder did"


@on_each_driver
def test_i7_a_holder_commits_and_a_stale_holder_is_rolled_back(store: Store, work: str, name: str) -> None:
    provider = store.provider()
    first = acquired(provider, name)
    transaction = Transaction(store, provider)
    transaction.execute(f"INSERT INTO {work} VALUES (1)")
    transaction.verify(first)
    transaction.commit()
    successor = provider.take_over(LockRequest(name, "1m"))
    stale = Transaction(store, provider)
    stale.execute(f"INSERT INTO {work} VALUES (2)")
    with pytest.raises(LeaseLostError, match="taken over; roll back"):
        stale.verify(first)
    stale.rollback()
    last = Transaction(store, provider)
    last.execute(f"INSERT INTO {work} VALUES (4)")
    last.verify(successor)
    last.commit()
    assert store.query(f"SELECT sum(n) FROM {work}") == 5


@on_each_driver
def test_i7_a_take_over_waits_for_the_commit(store: Store, work: str, name: str) -> None:
    provider = store.provider()
    lease = acquired(provider, name)
    transaction = Transaction(store, provider)
    transaction.execute(f"INSERT INTO {work} VALUES (1)")
    transaction.verify(lease)
    check_that_a_take_over_waits(store, name, work, transaction.commit)


@on(*SQLITE_DRIVERS)
def test_i7_a_check_before_the_first_write_keeps_a_successor_out(store: Store, work: str, name: str) -> None:
    """The drivers of SQLite begin no transaction before the first write."""
    provider = store.provider()
    lease = acquired(provider, name)
    transaction = Transaction(store, provider)
    transaction.verify(lease)

    def commit() -> None:
        transaction.execute(f"INSERT INTO {work} VALUES (1)")
        transaction.commit()

    check_that_a_take_over_waits(store, name, work, commit)


@on("postgresql+psycopg", "sqlite")
@pytest.mark.parametrize("make", [sessionmaker, lambda engine: scoped_session(sessionmaker(engine))])
def test_i7_a_session_that_writes_at_its_commit(store: Store, make: Any, work: str, name: str) -> None:
    application = Application(store)
    provider: Any = application.provider
    lease = acquired(provider, name)
    session = make(application.engine)
    session = session if isinstance(session, scoped_session) else session()
    store.stack.callback(session.close)
    provider.verify(lease, session)

    def commit() -> None:
        session.execute(text(f"INSERT INTO {work} VALUES (1)"))
        session.commit()

    check_that_a_take_over_waits(store, name, work, commit)
    session.execute(text(f"INSERT INTO {work} VALUES (2)"))
    with pytest.raises(LeaseLostError):
        provider.verify(lease, session)
    session.rollback()
    assert count(store, work) == 1


@on("postgresql+asyncpg", "sqlite+aiosqlite")
def test_i7_an_async_session(store: Store, work: str, name: str) -> None:
    application = Application(store)
    provider: Any = application.provider
    lease = acquired(provider, name)

    async def insert(number: int) -> None:
        async with AsyncSession(application.engine) as session, session.begin():
            await session.execute(text(f"INSERT INTO {work} VALUES ({number})"))
            await provider.async_provider.verify(lease, session)

    provider.run(insert(1))
    provider.take_over(LockRequest(name, "1m"))
    with pytest.raises(LeaseLostError):
        provider.run(insert(2))
    assert count(store, work) == 1


# Autocommit


@on_each_driver
def test_a_connection_in_autocommit_mode_is_refused(store: Store, work: str, name: str) -> None:
    provider = store.provider()
    lease = acquired(provider, name)
    transaction = Transaction(store, provider, autocommit=True)
    transaction.execute(f"INSERT INTO {work} VALUES (1)")
    with pytest.raises(ConfigurationError, match="this connection is in autocommit mode: ") as refused:
        transaction.verify(lease)
    cures = ("connection.transaction():", "connection.autocommit = False", "autocommit(False)", "execute BEGIN")
    assert any(cure in str(refused.value) for cure in cures)


@on(*ONE_EACH, "postgresql+asyncpg", "mysql+asyncmy", *SQLITE_DRIVERS)
def test_an_engine_in_autocommit_mode_is_refused(store: Store, name: str) -> None:
    application = Application(store, isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigurationError, match="an engine without isolation_level='AUTOCOMMIT'"):
        application.run_verified(acquired(application.provider, name), lambda _: None)


@on("postgresql+psycopg", "sqlite")
def test_i7_a_transaction_that_was_begun_in_autocommit_mode(store: Store, work: str, name: str) -> None:
    provider = store.provider()
    lease = acquired(provider, name)
    transaction = Transaction(store, provider, autocommit=True)
    transaction.execute("BEGIN")
    transaction.execute(f"INSERT INTO {work} VALUES (1)")
    transaction.verify(lease)
    check_that_a_take_over_waits(store, name, work, transaction.commit)


# Connections of many kinds


def named_tuple(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> Any:
    """Return a row as in Python's documentation."""
    return namedtuple("Row", [column[0] for column in cursor.description])(*row)


@pytest.mark.parametrize(
    ("driver", "options"),
    [
        ("postgresql+psycopg", {"row_factory": "psycopg.rows:dict_row"}),
        ("postgresql+psycopg2", {"cursor_factory": "psycopg2.extras:RealDictCursor"}),
        ("mysql+pymysql", {"cursorclass": "pymysql.cursors:SSDictCursor"}),
        pytest.param("mysql+mysqldb", {"cursorclass": "MySQLdb.cursors:SSDictCursor"}, marks=REASONS["mysqldb"]),
        ("sqlite", {}),
    ],
)
def test_i7_a_cursor_with_any_kind_of_rows(store: Store, options: dict[str, str], work: str, name: str) -> None:
    provider: Any = store.provider()
    lease = acquired(provider, name)
    transaction = Transaction(store, provider, **{key: resolve_name(path) for key, path in options.items()})
    if store.is_sqlite:
        transaction.connection.row_factory = named_tuple
    cursor = transaction.connection.cursor()
    provider.verify(lease, cursor)
    transaction.commit()
    provider.take_over(LockRequest(name, "1m"))
    with pytest.raises(LeaseLostError):
        provider.verify(lease, cursor)
    cursor.close()


@on(*ONE_EACH, "postgresql+asyncpg", "sqlite")
def test_the_name_of_the_table_is_quoted(store: Store, name: str) -> None:
    provider = store.provider(table_name='the "locks" of `jobs`')
    provider.create_schema()
    lease = acquired(provider, name)
    Transaction(store, provider).verify(lease)


@on("postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg", "mariadb+pymysql")
def test_a_heartbeat_since_the_snapshot_says_the_way_round(store: Store, work: str, name: str) -> None:
    provider = store.provider()
    lease = acquired(provider, name)
    transaction = Transaction(store, provider)
    if store.is_mariadb:
        transaction.execute("SET innodb_snapshot_isolation = ON")
    else:
        transaction.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    transaction.execute(f"SELECT n FROM {work}")
    assert provider.extend(lease, "1m") is lease
    with pytest.raises(Exception, match=r"could not serialize|changed since last read") as failed:
        transaction.verify(lease)
    assert "READ COMMITTED" in failed.value.__notes__[0]


# Other objects


def wrong_objects(store: Store) -> Iterator[Any]:
    other = create_engine("sqlite://")
    file = sqlite3.connect(":memory:")
    store.stack.callback(file.close)
    store.stack.callback(other.dispose)
    yield from (other, store.url(), None, file, file.cursor(), psycopg.Connection)
    with other.connect() as connection, Session(other) as session:
        yield from (connection, session)
    asynchronous = create_async_engine("sqlite+aiosqlite://")
    yield from (asynchronous, AsyncSession(asynchronous), asynchronous.connect())


@on("postgresql+psycopg")
def test_another_object_is_refused(store: Store, name: str) -> None:
    provider: Any = store.provider()
    lease = acquired(provider, name)
    for wrong in wrong_objects(store):
        with pytest.raises(ConfigurationError, match=r"the postgresql database of the locks, as .*psycopg.Connection"):
            provider.verify(lease, wrong)
    with pytest.raises(ConfigurationError, match="given str: give it the connection of the transaction") as refused:
        provider.verify(lease, store.url())
    assert "s3cret" not in str(refused.value)
    transaction = Transaction(store, provider)
    with pytest.raises(ConfigurationError, match=r"needs the lease first, not psycopg.Connection"):
        provider.verify(transaction.connection, lease)


@on("postgresql+asyncpg")
def test_a_connection_of_ordinary_code_is_refused_by_an_async_provider(store: Store, name: str) -> None:
    provider: Any = store.provider()
    lease = acquired(provider, name)
    ordinary = Transaction(Store(store.server, "postgresql+psycopg", store.stack), provider)
    for wrong in (ordinary.connection, ordinary.connection.cursor()):
        with pytest.raises(ConfigurationError, match=r"asyncpg.Connection; SqlAlchemyLockProvider takes"):
            provider.verify(lease, wrong)
    transaction = Transaction(store, provider)
    ordinary_provider: Any = Store(store.server, "postgresql+psycopg", store.stack).provider()
    with pytest.raises(ConfigurationError, match=r"AsyncSqlAlchemyLockProvider takes connections of asyncio"):
        ordinary_provider.verify(lease, transaction.connection)


# Django


@pytest.fixture
def django(store: Store) -> Iterator[Any]:
    """Django's connection to the store."""
    add_database("default", database(store.url()))
    apps.populate([])  # without applications
    yield django_connection
    django_connection.close()
    del connections["default"]
    del connections.settings["default"]


@on("postgresql+psycopg", "mysql+mysqldb", "sqlite")
def test_i7_a_block_of_django(store: Store, django: Any, work: str, name: str) -> None:
    provider: Any = store.provider()
    lease = acquired(provider, name)

    def insert(number: int) -> None:
        with django.cursor() as cursor:
            cursor.execute(f"INSERT INTO {work} VALUES ({number})")

    with django_transaction.atomic():
        insert(1)
        provider.verify(lease, django)
        with django.cursor() as cursor:
            provider.verify(lease, cursor)
    with pytest.raises(ConfigurationError, match=r"with transaction.atomic\(\):"):
        provider.verify(lease, django)
    provider.take_over(LockRequest(name, "1m"))
    with pytest.raises(LeaseLostError), django_transaction.atomic():  # noqa: PT012 (the block is rolled back)
        insert(2)
        provider.verify(lease, django)
    assert count(store, work) == 1


@on("postgresql+psycopg", "mysql+mysqldb", "sqlite")
def test_i7_a_transaction_that_django_does_not_end(store: Store, django: Any, work: str, name: str) -> None:
    provider: Any = store.provider()
    lease = acquired(provider, name)
    django_transaction.set_autocommit(False)
    with django.cursor() as cursor:
        cursor.execute(f"INSERT INTO {work} VALUES (1)")
    provider.verify(lease, connections["default"])
    check_that_a_take_over_waits(store, name, work, django_transaction.commit)


@on("postgresql+psycopg")
def test_a_connection_of_django_to_another_database_is_refused(store: Store, name: str) -> None:
    provider: Any = store.provider()
    add_database("other", database("sqlite://"))
    with pytest.raises(ConfigurationError, match=r"given django\..*django.db.connection"):
        provider.verify(acquired(provider, name), connections["other"])


# Leaders


@on("postgresql+psycopg", "postgresql+asyncpg", "sqlite")
def test_i7_a_leader_commits_and_a_stale_leader_is_rolled_back(store: Store, work: str, name: str) -> None:
    provider: Any = store.provider()
    transaction = Transaction(store, provider)
    make: Any = LeaderElector if not store.is_async else AsyncLeaderElector
    settings = {"lease_duration": "1h", "renew_deadline": "50m", "retry_period": "30m"}
    elector, follower = (make(getattr(provider, "async_provider", provider), name, **settings) for _ in range(2))
    with pytest.raises(LeaseLostError, match="this node does not lead; roll back"):
        transaction.run(follower.verify(transaction.connection))
    transaction.run(elector.start())
    assert transaction.run(elector.wait_until_leader("20s"))
    transaction.execute(f"INSERT INTO {work} VALUES (1)")
    transaction.run(elector.verify(transaction.connection))
    transaction.commit()
    provider.take_over(LockRequest(name, "1m"))
    stale = Transaction(store, provider)
    stale.execute(f"INSERT INTO {work} VALUES (2)")
    assert elector.is_leader(), "it does not know yet"
    with pytest.raises(LeaseLostError):
        stale.run(elector.verify(stale.connection))
    stale.rollback()
    transaction.run(elector.stop())
    assert count(store, work) == 1


@on("sqlite")
async def test_an_elector_on_a_store_without_such_transactions(store: Store) -> None:
    with pytest.raises(ConfigurationError, match=r"needs locks in a SQL database: .* this is InMemoryLockProvider"):
        LeaderElector(InMemoryLockProvider(), "e").verify(None)
    with pytest.raises(ConfigurationError, match="for asyncio AsyncSqlAlchemyLockProvider; this is SqlAlchemy"):
        await AsyncLeaderElector(store.provider(), "e").verify(None)
