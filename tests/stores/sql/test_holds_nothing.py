"""I9: while a task runs, only the record is held: no connection, no transaction, no lock in the database."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import hold, hold_async
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.stores.sql.stores import ASYNC_DRIVERS, SYNC_DRIVERS, Store

ONE_CONNECTION: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 10}
ROWS = text("SELECT count(*) FROM shedlock WHERE name = :name")


def assert_nothing_open(store: Store) -> None:
    if store.is_postgres:
        sql = (
            "SELECT count(*) FROM pg_stat_activity LEFT JOIN pg_locks USING (pid) WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid() "
            "AND (state <> 'idle' OR xact_start IS NOT NULL OR pg_locks.pid IS NOT NULL)"
        )
    else:
        sql = "SELECT count(*) FROM information_schema.innodb_trx"
        time.sleep(0.11)  # the server repeats what it said before, unless nobody has asked for 0.1 s
    assert store.ask(sql) == 0, "a transaction or a lock"


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mysql+pymysql"])
def test_an_open_transaction_would_be_seen(driver: str, store: Store) -> None:
    engine = create_engine(store.url())
    with engine.begin() as connection:
        connection.execute(text("UPDATE shedlock SET locked_at = locked_at"))
        connection.execute(
            text("INSERT INTO shedlock VALUES ('never-committed', '2026-01-01', '2026-01-01', 'x', 1, NULL)")
        )
        with pytest.raises(AssertionError, match="a transaction or a lock"):
            assert_nothing_open(store)
        connection.rollback()
    engine.dispose()


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
def test_i9_a_task_can_use_the_only_connection(driver: str, store: Store, name: str) -> None:
    engine = create_engine(store.url(), **ONE_CONNECTION)
    store.stack.callback(engine.dispose)
    provider = SqlAlchemyLockProvider(engine)
    for _ in range(2):
        with hold(name, lock_at_most_for="1m", provider=provider) as lease:
            assert lease
            assert_nothing_open(store)
            with engine.begin() as connection:
                assert connection.execute(ROWS, {"name": name}).scalar() == 1
                connection.execute(text("UPDATE shedlock SET locked_at = locked_at WHERE name = 'none'"))
            assert_nothing_open(store)
            with hold(name + "-2", lock_at_most_for="1m", provider=provider) as inner:
                assert inner
            assert provider.extend(lease, "2m")
            assert_nothing_open(store)
    assert_nothing_open(store)


@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
def test_i9_an_async_task_can_use_the_only_connection(driver: str, store: Store, name: str) -> None:
    async def main() -> None:
        engine = create_async_engine(store.url(), **ONE_CONNECTION)
        provider = AsyncSqlAlchemyLockProvider(engine)
        for _ in range(2):
            async with hold_async(name, lock_at_most_for="1m", provider=provider) as lease:
                assert lease
                assert_nothing_open(store)
                async with engine.begin() as connection:
                    assert (await connection.execute(ROWS, {"name": name})).scalar() == 1
                assert_nothing_open(store)
                async with hold_async(name + "-2", lock_at_most_for="1m", provider=provider) as inner:
                    assert inner
                assert await provider.extend(lease, "2m")
                assert_nothing_open(store)
        await engine.dispose()

    asyncio.run(main())


def test_i9_own_connections_are_idle_too(store: Store, name: str) -> None:
    provider = store.provider()
    with hold(name, lock_at_most_for="1m", provider=provider) as lease:
        assert lease
        assert_nothing_open(store)
        with hold(name, lock_at_most_for="1m", provider=store.provider()) as second:
            assert second is None
        assert_nothing_open(store)


def assert_no_writer(file: Path) -> None:
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("is_own", [True, False])
def test_i9_sqlite(is_own: bool, name: str, tmp_path: Path) -> None:
    file = tmp_path / "locks.db"
    engine = create_engine(f"sqlite:///{file}", **ONE_CONNECTION)
    provider = SqlAlchemyLockProvider(f"sqlite:///{file}" if is_own else engine)
    provider.create_schema()
    with hold(name, lock_at_most_for="1m", provider=provider) as lease:
        assert lease
        assert_no_writer(file)
        with engine.begin() as connection:
            assert connection.execute(ROWS, {"name": name}).scalar() == 1
            connection.execute(text("CREATE TABLE work (n INTEGER)"))
        assert provider.extend(lease, "2m")
    assert_no_writer(file)
    provider.close()
    engine.dispose()


@pytest.mark.parametrize("is_own", [True, False])
def test_i9_async_sqlite(is_own: bool, name: str, tmp_path: Path) -> None:
    file = tmp_path / "locks.db"

    async def main() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{file}", **ONE_CONNECTION)
        provider = AsyncSqlAlchemyLockProvider(f"sqlite+aiosqlite:///{file}" if is_own else engine)
        await provider.create_schema()
        async with hold_async(name, lock_at_most_for="1m", provider=provider) as lease:
            assert lease
            assert_no_writer(file)
            async with engine.begin() as connection:
                assert (await connection.execute(ROWS, {"name": name})).scalar() == 1
                await connection.execute(text("CREATE TABLE work (n INTEGER)"))
            assert await provider.extend(lease, "2m")
        assert_no_writer(file)
        await provider.close()
        await engine.dispose()

    asyncio.run(main())
