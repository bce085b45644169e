"""I9: a running task holds only its record: no connection, no transaction, no lock in the database."""

import sqlite3
import time
from contextlib import closing

import pytest
from sqlalchemy import Connection, text

from shedlock_py import hold, try_hold
from tests.stores.sql.stores import DRIVERS, ONE_EACH, SQLITE_DRIVERS, Application, Store, on


def assert_nothing_open(store: Store) -> None:
    if store.is_sqlite:
        with closing(sqlite3.connect(store.server.path, timeout=0, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
        return
    if store.is_postgres:
        sql = (
            "SELECT count(*) FROM pg_stat_activity LEFT JOIN pg_locks USING (pid) WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid() "
            "AND (state <> 'idle' OR xact_start IS NOT NULL OR pg_locks.pid IS NOT NULL)"
        )
    else:
        sql = "SELECT count(*) FROM information_schema.innodb_trx"
        time.sleep(0.11)  # the server repeats its last reply for 0.1 s
    assert store.query(sql) == 0, "a transaction or a lock"


@on([*ONE_EACH, "sqlite"])
def test_an_open_transaction_would_be_seen(driver: str, store: Store) -> None:
    def work(connection: Connection) -> None:
        connection.execute(
            text("INSERT INTO shedlock VALUES ('never-committed', '2026-01-01', '2026-01-01', 'x', 1, NULL)")
        )
        with pytest.raises((AssertionError, sqlite3.OperationalError), match=r"a transaction or a lock|is locked"):
            assert_nothing_open(store)

    Application(store).run(work, commit=False)


@on([*DRIVERS, *SQLITE_DRIVERS])
def test_i9_a_task_can_use_the_only_connection(driver: str, store: Store, name: str) -> None:
    application = Application(store, pool_size=1, max_overflow=0, pool_timeout=10)
    provider = application.provider

    def work(connection: Connection) -> None:
        rows = text("SELECT count(*) FROM shedlock WHERE name = :name")
        assert connection.execute(rows, {"name": name}).scalar() == 1
        connection.execute(text("UPDATE shedlock SET locked_at = locked_at WHERE name = 'none'"))

    for _ in range(2):
        with hold(name, lock_at_most_for="1m", provider=provider) as lease:
            assert lease
            assert_nothing_open(store)
            application.run(work)
            assert_nothing_open(store)
            with hold(name + "-2", lock_at_most_for="1m", provider=provider) as inner:
                assert inner
            assert provider.extend(lease, "2m")
            assert_nothing_open(store)
    assert_nothing_open(store)


@on([*DRIVERS, *SQLITE_DRIVERS], mariadb=True)
def test_i9_managed_connections_are_idle_while_a_task_runs(driver: str, store: Store, name: str) -> None:
    with hold(name, lock_at_most_for="1m", provider=store.provider()) as lease:
        assert lease
        assert_nothing_open(store)
        with try_hold(name, lock_at_most_for="1m", provider=store.provider()) as second:
            assert second is None
        assert_nothing_open(store)
