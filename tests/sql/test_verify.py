"""verify(lease, connection): a stale holder's own transaction rolls back."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from shedlock_py import Lease, LeaseLostError, LockRequest
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.services.polling import wait_until
from tests.sql.stores import ASYNC_DRIVERS, SYNC_DRIVERS, Store, acquired


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
