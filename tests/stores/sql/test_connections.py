"""The provider's statements leave a pooled connection as the application expects it."""

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import Connection, Pool, SingletonThreadPool, StaticPool, create_engine, event, text

from shedlock_py import ConfigurationError, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import (
    DRIVERS,
    KINDS,
    ONE_EACH,
    SQLITE_DRIVERS,
    SYNC_DRIVERS,
    Application,
    Store,
    drivers_of,
    on,
    on_mysql_and_mariadb,
)
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until
from tests.support.signals import TooLong, raised_by

POSTGRES_DRIVERS = drivers_of("postgres")
NO_RESET = pytest.mark.slow("a pool that resets no connection, on each database")


@on(SQLITE_DRIVERS)
def test_i1_an_engine_whose_listener_begins_transactions(driver: str, store: Store, name: str) -> None:
    """SQLAlchemy's documentation recommends it on SQLite. SQLAlchemy would also roll back the provider's statements."""
    application = Application(store)
    engine, provider = application.sync_engine, application.provider
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    lease = acquired(provider, name)
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert record_of(provider, name).locked_by == lease.locked_by
    assert provider.release(lease)
    assert not record_of(provider, name).is_held


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "autocommit"), reason="since Python 3.12")
def test_i1_a_connection_of_sqlite_that_never_commits_by_itself(tmp_path: Path, name: str) -> None:
    SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db").create_schema()
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db", connect_args={"autocommit": False})
    provider = SqlAlchemyLockProvider(engine)
    acquired(provider, name)
    assert record_of(provider, name).is_held
    engine.dispose()


@on(POSTGRES_DRIVERS)
@pytest.mark.parametrize(
    "level", [None, pytest.param("SERIALIZABLE", marks=pytest.mark.slow("another level")), "AUTOCOMMIT"]
)
@pytest.mark.parametrize("table", ["shedlock", "no_such_table"])
def test_a_users_connection_leaves_autocommit_again(
    driver: str, level: str | None, table: str, store: Store, name: str
) -> None:
    """Both after a reply and after an error."""
    engine_options: dict[str, Any] = {"isolation_level": level} if level else {}
    application = Application(store, options={"table_name": table}, pool_size=1, max_overflow=0, **engine_options)
    if table == "shedlock":
        acquired(application.provider, name)
    else:
        with pytest.raises(ProviderError):
            application.provider.acquire(LockRequest(name, "1m"))

    def work(connection: Connection) -> object:
        found = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
        insert = "INSERT INTO shedlock VALUES (:name, '2026-01-01', '2026-01-01', 'x', 1, NULL)"
        connection.execute(text(insert), {"name": name + "-work"})
        return found

    found = application.run(work, commit=False)
    assert found == ("serializable" if level == "SERIALIZABLE" else "read committed")
    committed = store.query("SELECT count(*) FROM shedlock WHERE name = :name", name=name + "-work")
    assert committed == (level == "AUTOCOMMIT")


@on(DRIVERS)
@pytest.mark.parametrize("moment", ["connect", "checkout"])
@pytest.mark.parametrize("reset", ["rollback", pytest.param(None, marks=NO_RESET)])
def test_i1_a_listener_that_queries_the_database(
    driver: str, moment: str, reset: str | None, store: Store, name: str
) -> None:
    """The query begins a transaction. The provider must not write inside it: nobody will commit it."""

    def query(connection: Any, *_: object) -> None:
        cursor = connection.cursor()
        cursor.execute("SELECT 1")
        cursor.fetchall()
        cursor.close()

    application, other = Application(store, pool_reset_on_return=reset), store.provider()
    provider = application.provider
    event.listen(application.sync_engine, moment, query)
    lease = acquired(provider, name)
    assert record_of(other, name).locked_by == lease.locked_by
    assert other.acquire(LockRequest(name, "1m")) is None
    assert provider.extend(lease, "1h") is lease
    assert record_of(other, name).remaining > timedelta(minutes=59)
    assert provider.release(lease)
    assert not record_of(other, name).is_held


@on(SQLITE_DRIVERS)
@pytest.mark.parametrize("reset", ["rollback", None])
def test_a_statement_that_failed_leaves_no_transaction(driver: str, reset: str | None, store: Store, name: str) -> None:
    """SQLite would keep its write lock in that transaction."""
    application = Application(store, pool_reset_on_return=reset)
    store.execute("CREATE TRIGGER refused BEFORE INSERT ON shedlock BEGIN SELECT RAISE(ABORT, 'not today'); END")
    with pytest.raises(ProviderError, match="not today"):
        application.provider.acquire(LockRequest(name, "1m"))
    store.execute("DROP TRIGGER refused")
    with closing(SqlAlchemyLockProvider(f"sqlite:///{store.server.path}", timeout="2s")) as other:
        assert other.release(acquired(other, name))


def test_old_connections_are_replaced_a_limited_number_of_times(tmp_path: Path, name: str) -> None:
    """A job must not hang because the age of connections is unknown."""
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db")
    provider = SqlAlchemyLockProvider(engine)
    event.listen(engine, "checkout", lambda _, record, __: record.info.clear())
    with pytest.raises(ProviderUnreachable, match="replaced"):
        provider.acquire(LockRequest(name, "1m"))
    engine.dispose()


@on(SYNC_DRIVERS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_dead_connections_that_only_the_application_has_used(
    driver: str, when: str, store: Store, proxy: TcpProxy, name: str
) -> None:
    """Connections from before and after our provider."""
    engine = create_engine(store.url(proxy.address), pool_size=4)
    store.stack.callback(engine.dispose)
    provider = SqlAlchemyLockProvider(engine) if when == "after" else None
    with ExitStack() as connections:
        for _ in range(4):
            connections.enter_context(engine.connect())
    provider = provider or SqlAlchemyLockProvider(engine)
    proxy.cut()
    wait_until(lambda: proxy.open_connections == 0)
    assert provider.release(acquired(provider, name))


@pytest.fixture
def _alarm() -> Iterator[None]:
    with raised_by(signal.SIGUSR1, TooLong):
        yield


@on(ONE_EACH, kinds=KINDS)
@pytest.mark.usefixtures("_alarm")
def test_an_interrupted_connection_is_not_used_again(driver: str, kind: str, store: Store, name: str) -> None:
    """Half a reply may still be in flight."""
    acquired(store.provider(), name)
    provider = store.provider() if kind == "url" else store.provider_of_engine(pool_size=1, max_overflow=0)
    provider.record("warm")
    if store.is_postgres:
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        lock, unlock = "LOCK TABLE shedlock IN ACCESS EXCLUSIVE MODE", "ROLLBACK"
    else:
        blocked = "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%'"
        lock, unlock = "LOCK TABLES shedlock WRITE", "UNLOCK TABLES"

    def interrupt() -> None:
        wait_until(lambda: store.query(blocked) == 1, what="a statement that waits for the table")
        os.kill(os.getpid(), signal.SIGUSR1)

    with store.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql(lock)
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(TooLong):
            provider.record(name)
        interrupting.join()
        connection.exec_driver_sql(unlock)
    assert record_of(provider, name).name == name
    assert provider.record("none") is None


@pytest.mark.timeout(30)
@on(on_mysql_and_mariadb("pymysql"), kinds=KINDS)
def test_an_interruption_before_the_reply_is_read_does_not_wait_for_it(
    driver: str, kind: str, store: Store, name: str
) -> None:
    acquired(store.provider(), name)
    provider = store.provider() if kind == "url" else store.provider_of_engine(pool_size=1, max_overflow=0)
    provider.record("warm")

    def interrupt(_frame: FrameType, what: str, function: Any) -> None:
        if what == "c_return" and function.__name__ == "sendall":
            sys.setprofile(None)
            raise TooLong

    with store.connect() as connection:
        connection.exec_driver_sql("LOCK TABLES shedlock WRITE")  # so no reply comes
        sys.setprofile(interrupt)
        try:
            with pytest.raises(TooLong):
                provider.record(name)
        finally:
            sys.setprofile(None)
        connection.exec_driver_sql("UNLOCK TABLES")
    assert record_of(provider, name).name == name


@pytest.mark.parametrize("pool", [StaticPool, SingletonThreadPool])
@on(SYNC_DRIVERS)
def test_i9_an_engine_whose_connection_we_would_share(store: Store, pool: type[Pool]) -> None:
    """A commit or rollback of the provider would act on the application's transaction."""
    with pytest.raises(ConfigurationError, match=f"{pool.__name__}.*use an engine with its default pool"):
        store.provider_of_engine(poolclass=pool)
