"""SQLite's one writer at a time, and its files."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import MetaData, Pool, SingletonThreadPool, StaticPool, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import ConfigurationError, Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py._program import run
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider, lock_table
from shedlock_py.providers.sqlalchemy.programs import SqlCommand
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.stores.sql.stores import acquired, record_of
from tests.support.polling import wait_until


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture(params=["sqlite", "sqlite+aiosqlite"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def open_provider(url: str) -> SqlAlchemyLockProvider | BlockingLockProvider:
    if "aiosqlite" in url:
        return BlockingLockProvider(lambda: AsyncSqlAlchemyLockProvider(url))
    return SqlAlchemyLockProvider(url)


@pytest.fixture
def provider(scheme: str, file: Path) -> Iterator[LockProvider]:
    with closing(open_provider(f"{scheme}:///{file}")) as provider:
        provider.create_schema()
        yield provider


@pytest.fixture
def writer(provider: LockProvider, file: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else, in the middle of a write transaction."""
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


@pytest.mark.usefixtures("provider")
def test_i5_a_writer_that_does_not_end(scheme: str, file: Path, writer: sqlite3.Connection, name: str) -> None:
    with closing(open_provider(f"{scheme}:///{file}?timeout=0.2")) as impatient:
        with pytest.raises(ProviderUnreachable, match="locked") as unreachable:
            impatient.acquire(LockRequest(name, "1m"))
        assert unreachable.value.__cause__ is not None
        writer.execute("COMMIT")
        assert impatient.release(acquired(impatient, name))


def test_a_skip_does_not_wait_for_the_writer(provider: LockProvider, file: Path, name: str) -> None:
    acquired(provider, name)
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM shedlock")
        assert provider.acquire(LockRequest(name, "1m")) is None
        writer.execute("ROLLBACK")


def test_a_users_engine_is_left_as_it_is(file: Path, name: str) -> None:
    engine = create_engine(f"sqlite:///{file}", isolation_level="SERIALIZABLE")
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


def test_a_file_that_may_only_be_read_costs_no_time(scheme: str, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        lock_table(MetaData()).create(engine := create_engine(f"sqlite:///{file}"))
        engine.dispose()
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    started = time.monotonic()
    with closing(open_provider(f"{scheme}:///file:{file}?mode=ro&uri=true")) as provider:
        assert provider.records() == []
    assert time.monotonic() - started < 4


@pytest.mark.parametrize("operation", ["extend", "release"])
def test_i2_a_lease_shown_to_another_store_is_still_its_own_stores(
    operation: str, provider: LockProvider, scheme: str, tmp_path: Path, name: str
) -> None:
    lease = acquired(provider, name)
    with closing(open_provider(f"{scheme}:///{tmp_path}/others.db")) as other:
        other.create_schema()
        assert not (other.extend(lease, "2m") if operation == "extend" else other.release(lease))
    assert not lease.is_trusted()
    assert provider.release(lease) is True
    assert not record_of(provider, name).is_held
    assert provider.release(lease) is False


def test_times_are_text_of_one_length(provider: LockProvider, file: Path, name: str) -> None:
    acquired(provider, name, "1h", fire_time=datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC))
    with closing(sqlite3.connect(file)) as connection:
        (row,) = connection.execute("SELECT lock_until, locked_at, last_fire_time FROM shedlock").fetchall()
    assert {len(value) for value in row} == {26}
    assert row[2] == "2024-01-02 03:04:05.000000"


def test_one_token_more_for_each_acquisition(provider: LockProvider, file: Path, name: str) -> None:
    tokens = []
    for i in range(50):
        lease = acquired(provider, name)
        tokens.append(lease.fencing_token or 0)
        provider.release(lease)
        if i % 2:
            provider.prune(0)  # the record is gone; the token grows all the same
    assert tokens == sorted(set(tokens))


def test_i7_a_claim_that_waited_while_another_was_granted_and_deleted(
    file: Path, provider: LockProvider, name: str
) -> None:
    """The time that it brings is older than the token of the other, whose record is gone."""
    tokens: list[int] = []

    def execute(ask: SqlCommand) -> object:
        if ask.can_grant:
            other = acquired(provider, name)
            tokens.append(other.fencing_token or 0)
            assert provider.release(other)
            assert provider.prune(0) == 1
            passed = time.time_ns() + 2_000_000  # SQLite's clock has milliseconds
            wait_until(lambda: time.time_ns() > passed)
        return slow._client.execute(ask, 5.0)

    with closing(SqlAlchemyLockProvider(f"sqlite:///{file}")) as slow:
        lease = run(slow.programs.acquire(LockRequest(name, "1m")), execute)
        assert lease is not None
        assert lease.fencing_token is not None
        assert lease.fencing_token > tokens[0]
        assert slow.release(lease)


def test_i1_threads_on_one_file(provider: LockProvider, name: str) -> None:
    winners: list[Lease] = []
    barrier = threading.Barrier(8)

    def contend() -> None:
        barrier.wait(20)
        if lease := provider.acquire(LockRequest(name, "1m")):
            winners.append(lease)

    for _ in range(10):
        threads = [threading.Thread(target=contend) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(winners) == 1
        assert provider.release(winners.pop())
    wait_until(lambda: not record_of(provider, name).is_held)
