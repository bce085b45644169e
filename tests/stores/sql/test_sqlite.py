"""SQLite: one writer at a time, and the database files."""

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, Pool, SingletonThreadPool, StaticPool, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import ConfigurationError, Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.providers.kit import locking
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider, lock_table
from shedlock_py.providers.sqlalchemy.statements import FirstRead, SqlCommand
from shedlock_py.runtime.program import drive
from tests.stores.sql.stores import SQLITE_DRIVERS, Store, carry_out
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until
from tests.support.timing import Stopwatch


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture(params=SQLITE_DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def provider(store: Store) -> LockProvider:
    return store.provider()


@pytest.fixture
def writer(provider: LockProvider, file: Path) -> Iterator[sqlite3.Connection]:
    """Open another connection, in the middle of a write transaction."""
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def test_waits_for_the_writer_and_counts_from_then_on(
    provider: LockProvider, writer: sqlite3.Connection, name: str
) -> None:
    got: list[Lease] = []
    acquiring = threading.Thread(target=lambda: got.append(acquired(provider, name)))
    acquiring.start()
    acquiring.join(0.3)
    assert acquiring.is_alive()
    done = datetime.now(UTC)
    writer.execute("COMMIT")
    acquiring.join(20)
    (lease,) = got
    record = record_of(provider, name)
    assert record.locked_at >= done - timedelta(milliseconds=1)
    assert record.lock_until - record.locked_at == timedelta(minutes=1)
    assert lease.trusted_for() < timedelta(minutes=1)
    assert provider.release(lease)


def test_i5_a_writer_that_does_not_end(store: Store, writer: sqlite3.Connection, name: str) -> None:
    provider = store.provider(timeout="1s")
    with pytest.raises(ProviderUnreachable, match="locked") as unreachable:
        provider.acquire(LockRequest(name, "1m"))
    assert unreachable.value.__cause__ is not None
    writer.execute("COMMIT")
    assert provider.release(acquired(provider, name))


def test_a_skip_does_not_wait_for_the_writer(provider: LockProvider, file: Path, name: str) -> None:
    acquired(provider, name)
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM shedlock")
        assert provider.acquire(LockRequest(name, "1m")) is None
        writer.execute("ROLLBACK")


def test_a_users_engine_is_left_as_it_is(file: Path, name: str) -> None:
    engine = create_engine(f"sqlite:///{file}-new", isolation_level="SERIALIZABLE")
    provider = SqlAlchemyLockProvider(engine)
    provider.create_schema()
    lease = acquired(provider, name)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"
        assert connection.get_isolation_level() == "SERIALIZABLE"
        connection.exec_driver_sql("CREATE TABLE work (n INTEGER)")
        connection.exec_driver_sql("INSERT INTO work VALUES (1)")
        connection.rollback()
        assert connection.exec_driver_sql("SELECT count(*) FROM work").scalar() == 0
    assert provider.release(lease)
    engine.dispose()


@pytest.mark.parametrize("pool", [StaticPool, SingletonThreadPool])
def test_i9_an_engine_whose_connection_we_would_share(pool: type[Pool], file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}", poolclass=pool)
    with pytest.raises(ConfigurationError, match=f"{pool.__name__}.*use a file.*default pool"):
        SqlAlchemyLockProvider(engine)
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{file}", poolclass=StaticPool)
    with pytest.raises(ConfigurationError, match="StaticPool"):
        AsyncSqlAlchemyLockProvider(async_engine)


def test_a_file_that_may_only_be_read_costs_no_time(store: Store, file: Path) -> None:
    lock_table(MetaData()).create(engine := create_engine(f"sqlite:///{file}-new"))
    engine.dispose()
    with Stopwatch() as watch:
        assert store.provider(url=f"{store.driver}:///file:{file}-new?mode=ro&uri=true").records() == []
    assert watch.seconds < 4


def test_times_are_text_of_one_length(provider: LockProvider, file: Path, name: str) -> None:
    acquired(provider, name, "1h", fire_time=datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC))
    with closing(sqlite3.connect(file)) as connection:
        (row,) = connection.execute("SELECT lock_until, locked_at, last_fire_time FROM shedlock").fetchall()
    assert {len(value) for value in row} == {26}
    assert row[2] == "2024-01-02 03:04:05.000000"


def test_i7_a_claim_that_waited_while_another_was_granted_and_deleted(
    file: Path, provider: LockProvider, name: str
) -> None:
    """The time in the command is older than the other token, and that token's record is gone."""
    tokens: list[int] = []

    def delay(read: FirstRead, row: Sequence[Any]) -> bool:
        may_claim = read.passes(row)
        other = acquired(provider, name)
        tokens.append(other.fencing_token or 0)
        assert provider.release(other)
        assert provider.prune(0) == 1
        passed = time.time_ns() + 2_000_000  # SQLite's clock has milliseconds
        wait_until(lambda: time.time_ns() > passed)
        return may_claim

    def execute(command: SqlCommand) -> object:
        if command.check is not None:
            command = command._replace(check=command.check._replace(passes=partial(delay, command.check)))
        return carry_out(slow, command)

    with closing(SqlAlchemyLockProvider(f"sqlite:///{file}")) as slow:
        lease = drive(locking.acquire(slow.programs, LockRequest(name, "1m")), execute)
        assert lease is not None
        assert lease.fencing_token is not None
        assert lease.fencing_token > tokens[0]
        assert slow.release(lease)


@pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 36), reason="since SQLite 3.36")
def test_a_database_that_is_no_file(name: str) -> None:
    """SQLite's VFS "memdb" shares a database in memory among a process's connections."""
    with closing(SqlAlchemyLockProvider(f"sqlite:///file:/{name}?vfs=memdb&uri=true")) as provider:
        provider.create_schema()
        lease = acquired(provider, name)
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.release(lease)
