"""verify(lease, connection): a stale holder's own transaction rolls back."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from shedlock_py import Lease, LeaseLostError, LockRequest
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.stores.sql.stores import ASYNC_DRIVERS, SYNC_DRIVERS, Store, acquired
from tests.support.polling import wait_until


@pytest.fixture
def work(store: Store) -> Iterator[str]:
    with store.table() as table:
        store.execute(f"CREATE TABLE {table} (n INTEGER PRIMARY KEY)")
        yield table


@pytest.fixture
def engine(store: Store) -> Engine:
    engine = create_engine(store.url())
    store.stack.callback(engine.dispose)
    return engine


def do_work(engine: Engine, work: str, provider: SqlAlchemyLockProvider, lease: Lease) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO {work} VALUES (2)"))
        provider.verify(lease, connection)


async def do_work_async(engine: AsyncEngine, work: str, provider: AsyncSqlAlchemyLockProvider, lease: Lease) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(f"INSERT INTO {work} VALUES (2)"))
        await provider.verify(lease, connection)


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
def test_a_holder_commits_and_a_stale_one_rolls_back(
    driver: str, store: Store, engine: Engine, work: str, name: str
) -> None:
    provider = SqlAlchemyLockProvider(engine)
    first = acquired(provider, name)
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO {work} VALUES (1)"))
        provider.verify(first, connection)
    successor = provider.take_over(LockRequest(name, "1m"))
    with pytest.raises(LeaseLostError, match=name):
        do_work(engine, work, provider, first)
    with engine.begin() as connection:
        provider.verify(successor, connection)
    provider.release(successor)
    with pytest.raises(LeaseLostError), engine.begin() as connection:
        provider.verify(successor, connection)
    assert store.ask(f"SELECT sum(n) FROM {work}") == 1


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
def test_a_successor_waits_for_the_commit(driver: str, store: Store, engine: Engine, work: str, name: str) -> None:
    provider = SqlAlchemyLockProvider(engine)
    successor = store.provider()
    lease = acquired(provider, name, "200ms")
    seen: list[Lease] = []

    def take() -> None:
        wait_until(lambda: not (record := provider.record(name)) or not record.is_held)
        found = acquired(successor, name)
        assert store.ask(f"SELECT count(*) FROM {work}") == 1, "the successor must see what the holder did"
        seen.append(found)

    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO {work} VALUES (1)"))
        provider.verify(lease, connection)
        taking = threading.Thread(target=take)
        taking.start()
        wait_until(lambda: waiting(store), what="the successor waiting for the row")
        assert not seen
    taking.join(20)
    assert seen


def waiting(store: Store) -> bool:
    if store.is_postgres:
        return bool(store.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
    status = "information_schema.global_status WHERE variable_name = 'Innodb_row_lock_current_waits'"
    return int(store.ask(f"SELECT variable_value FROM {status}")) > 0


@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
def test_async(driver: str, store: Store, work: str, name: str) -> None:
    async def main() -> None:
        engine = create_async_engine(store.url())
        provider = AsyncSqlAlchemyLockProvider(engine)
        successor = AsyncSqlAlchemyLockProvider(store.url())
        first = await provider.acquire(LockRequest(name, "1m"))
        assert first
        async with engine.begin() as connection:
            await connection.execute(text(f"INSERT INTO {work} VALUES (1)"))
            await provider.verify(first, connection)
            taking = asyncio.create_task(successor.take_over(LockRequest(name, "1m")))
            while not await asyncio.to_thread(waiting, store):
                assert not taking.done()
        await taking
        with pytest.raises(LeaseLostError, match=name):
            await do_work_async(engine, work, provider, first)
        await successor.close()
        await engine.dispose()

    asyncio.run(main())
    assert store.ask(f"SELECT sum(n) FROM {work}") == 1


SNAPSHOTS = {"postgresql+psycopg": "", "postgresql+psycopg2": "", "mysql+pymysql": "SET innodb_snapshot_isolation = ON"}


def insert(connection: Connection, work: str, driver: str) -> None:
    """Takes the transaction's snapshot."""
    if SNAPSHOTS[driver]:
        connection.execute(text(SNAPSHOTS[driver]))
    connection.execute(text(f"SELECT count(*) FROM {work}")).all()
    connection.execute(text(f"INSERT INTO {work} VALUES (1)"))


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("driver", [driver for driver in SNAPSHOTS if driver.startswith("postgresql")])
def test_a_heartbeat_since_the_snapshot_fails_closed_and_says_the_way_round(
    driver: str, level: str, store: Store, engine: Engine, work: str, name: str
) -> None:
    provider = SqlAlchemyLockProvider(engine)
    lease = acquired(provider, name)
    heartbeats = store.provider()

    def run(isolation_level: str, *, is_kept_alive: bool) -> None:
        with engine.execution_options(isolation_level=isolation_level).begin() as connection:
            insert(connection, work, driver)
            if is_kept_alive:
                assert heartbeats.extend(lease, "1m") is lease
            provider.verify(lease, connection)

    with pytest.raises(OperationalError) as failed:
        run(level, is_kept_alive=True)
    (note,) = failed.value.__notes__
    assert "READ COMMITTED" in note
    assert "keep_alive" in note
    assert store.ask(f"SELECT count(*) FROM {work}") == 0
    run("READ COMMITTED", is_kept_alive=True)
    store.execute(f"DELETE FROM {work}")
    run(level, is_kept_alive=False)
    assert store.ask(f"SELECT count(*) FROM {work}") == 1

    def run_late(isolation_level: str) -> None:
        first = provider.take_over(LockRequest(name, "1m"))
        with engine.execution_options(isolation_level=isolation_level).begin() as connection:
            connection.execute(text(f"INSERT INTO {work} VALUES (2)"))
            heartbeats.take_over(LockRequest(name, "1m"))
            provider.verify(first, connection)

    for isolation_level in ("READ COMMITTED", level):
        with pytest.raises((LeaseLostError, OperationalError)):
            run_late(isolation_level)
    assert store.ask(f"SELECT count(*) FROM {work}") == 1


@pytest.mark.parametrize("driver", ["mysql+pymysql"])
def test_the_same_on_mariadb_with_snapshot_isolation(
    driver: str, store: Store, engine: Engine, work: str, name: str
) -> None:
    provider = SqlAlchemyLockProvider(engine)
    lease = acquired(provider, name)

    def run(isolation_level: str) -> None:
        with engine.execution_options(isolation_level=isolation_level).begin() as connection:
            insert(connection, work, driver)
            assert store.provider().extend(lease, "1m") is lease
            provider.verify(lease, connection)

    with pytest.raises(DBAPIError) as failed:
        run("REPEATABLE READ")
    assert "READ COMMITTED" in failed.value.__notes__[0]
    run("READ COMMITTED")


@pytest.mark.parametrize("driver", ["postgresql+asyncpg"])
def test_async_at_repeatable_read(driver: str, store: Store, work: str, name: str) -> None:
    async def main() -> None:
        engine = create_async_engine(store.url(), isolation_level="REPEATABLE READ")
        provider = AsyncSqlAlchemyLockProvider(engine)
        lease = await provider.acquire(LockRequest(name, "1m"))
        assert lease

        async def run() -> None:
            async with engine.begin() as connection:
                await connection.execute(text(f"INSERT INTO {work} VALUES (1)"))
                await provider.extend(lease, "1m")
                await provider.verify(lease, connection)

        with pytest.raises(DBAPIError) as failed:
            await run()
        assert "READ COMMITTED" in failed.value.__notes__[0]
        await engine.dispose()

    asyncio.run(main())
