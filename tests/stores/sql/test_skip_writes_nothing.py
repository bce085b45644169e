"""Skips are the most frequent operation: a skip takes no row lock or transaction id, and writes nothing."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from shedlock_py import LockProvider, LockRequest, ProviderError
from tests.stores.sql.stores import DATABASE, Store, on_mysql_and_mariadb, programs_on
from tests.support import tiers
from tests.support.database import DatabaseServer
from tests.support.locks import acquired
from tests.support.polling import wait_until
from tests.support.servers import PostgresServer

SKIPS = 100 if tiers.runs("full") else 20
FIRE_TIME = datetime(2024, 7, 1, tzinfo=UTC)


class QuietPostgres(PostgresServer):
    """A server that writes its log only for statements."""

    def command(self, port: int) -> list[str]:
        quiet = {"autovacuum": "off", "checkpoint_timeout": "1d", "wal_level": "minimal", "max_wal_senders": "0"}
        options = [word for name, value in quiet.items() for word in ("-c", f"{name}={value}")]
        return [*super().command(port), *options]


@pytest.fixture(scope="module")
def quiet_server(postgres_server: DatabaseServer) -> Iterator[DatabaseServer]:
    if not isinstance(postgres_server, PostgresServer):
        pytest.skip("needs a PostgreSQL without other users, but the environment names another server")
    with QuietPostgres() as server:
        server.create_database(DATABASE)
        yield server


@pytest.fixture
def quiet(quiet_server: DatabaseServer, driver: str) -> Iterator[Store]:
    store = Store(quiet_server, driver)
    with store.stack:
        yield store


def rows_written(store: Store) -> int:
    """The number is final once nobody is connected: a session reports its work at its end."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    wait_until(lambda: store.query(others) == 0, what="the sessions gone")
    count = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE relname LIKE 'shedlock%'"
    return int(store.query(count))


def traces(store: Store, name: str) -> tuple[object, ...]:
    """Return the log's end, the next transaction id, and the row with its place, its writer and its locker."""
    with store.connect() as connection:
        log = connection.execute(text("SELECT pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot())"))
        row = connection.execute(text("SELECT ctid, xmin, xmax, * FROM shedlock WHERE name = :name"), {"name": name})
        return (*log.one(), *row.one())


KINDS = ["held", "already ran", "fire time, held", "table of ShedLock for Java"]
SKIPPED = pytest.mark.parametrize(
    ("kind", "history"),
    [
        *((kind, 0) for kind in KINDS),
        ("held", 3),
        *(pytest.param(kind, 3, marks=pytest.mark.slow("each reason to skip, with history")) for kind in KINDS[1:]),
    ],
)


@SKIPPED
@programs_on(["postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg"])
def test_a_skip_writes_nothing_on_postgres(driver: str, kind: str, history: int, quiet: Store, name: str) -> None:
    fire_time = FIRE_TIME if kind in ("already ran", "fire time, held") else None
    options: dict[str, Any] = {"extra_columns": kind != "table of ShedLock for Java", "history": history}
    provider = quiet.provider(**options)
    provider.create_schema()
    lease = acquired(provider, name, fire_time=fire_time)
    if kind == "already ran":
        assert provider.release(lease)
    if kind == "fire time, held":
        fire_time = FIRE_TIME + timedelta(days=1)
    request = LockRequest(name, "1m", fire_time=fire_time)
    assert provider.acquire(request) is None
    quiet.stack.close()
    written, before = rows_written(quiet), traces(quiet, name)

    provider = quiet.provider(**options)
    for _ in range(SKIPS):
        assert provider.acquire(request) is None
    quiet.stack.close()
    assert (rows_written(quiet), traces(quiet, name)) == (written, before)

    provider = quiet.provider(**options)
    assert provider.take_over(request)
    quiet.stack.close()
    assert rows_written(quiet) == written + (2 if history else 1), "this test would not have seen a write"
    assert traces(quiet, name)[:2] != before[:2]


@programs_on(["postgresql+psycopg", "postgresql+asyncpg"])
def test_postgres_refuses_a_late_fire_time_without_a_trace(driver: str, quiet: Store, name: str) -> None:
    provider = quiet.provider()
    provider.create_schema()
    provider.release(acquired(provider, name))
    refuse_late(provider, name)
    quiet.stack.close()
    written, before = rows_written(quiet), traces(quiet, name)
    provider = quiet.provider()
    for _ in range(SKIPS // 4):
        refuse_late(provider, name)
    quiet.stack.close()
    assert (rows_written(quiet), traces(quiet, name)) == (written, before)


def refuse_late(provider: LockProvider, name: str) -> None:
    """A record of ``name`` exists, but no other record."""
    late = datetime.now(UTC) + timedelta(minutes=6)
    for lock in (name, f"{name}-absent"):
        for acquire in (provider.acquire, provider.take_over):
            with pytest.raises(ProviderError, match="later than the store's clock"):
                acquire(LockRequest(lock, "1m", fire_time=late))


@programs_on(["postgresql+psycopg"])
def test_postgres_does_not_wait_for_whoever_locks_the_row(driver: str, store: Store, name: str) -> None:
    provider = store.provider()
    acquired(provider, name)
    with store.connect() as connection, connection.execution_options(isolation_level="READ COMMITTED").begin():
        connection.execute(text("SELECT 1 FROM shedlock WHERE name = :name FOR UPDATE"), {"name": name})
        assert provider.acquire(LockRequest(name, "1m")) is None


def written_by_mysql(store: Store, name: str) -> tuple[object, ...]:
    """Return the row, the handlers' writes, and the binary log's end (MariaDB's tests turn that log off)."""
    counters = "SHOW GLOBAL STATUS WHERE variable_name IN ('Handler_update', 'Innodb_rows_inserted')"
    with store.connect() as connection:
        row = connection.execute(text("SELECT * FROM shedlock WHERE name = :name"), {"name": name}).one()
        log = [] if store.is_mariadb else connection.execute(text("SHOW BINARY LOG STATUS")).all()
        assert log or store.is_mariadb, "MySQL writes a binary log by default"
        return (*row, *connection.execute(text(counters)).all(), *log)


@SKIPPED
@programs_on(on_mysql_and_mariadb("pymysql", "mysqldb", "asyncmy"))
def test_a_skip_writes_nothing_on_mysql_and_mariadb(
    driver: str, kind: str, history: int, store: Store, name: str
) -> None:
    provider = store.provider(extra_columns=kind != "table of ShedLock for Java", history=history)
    provider.create_schema()
    fire_time = FIRE_TIME if kind in ("already ran", "fire time, held") else None
    lease = acquired(provider, name, fire_time=fire_time)
    if kind == "already ran":
        provider.release(lease)
    if kind == "fire time, held":
        fire_time = FIRE_TIME + timedelta(days=1)
    before = written_by_mysql(store, name)
    for _ in range(SKIPS):
        assert provider.acquire(LockRequest(name, "1m", fire_time=fire_time)) is None
    assert written_by_mysql(store, name) == before
    provider.take_over(LockRequest(name, "1m"))
    assert written_by_mysql(store, name) != before, "this test would not have seen a write"


@programs_on(on_mysql_and_mariadb("pymysql", "aiomysql"))
def test_mysql_and_mariadb_refuse_a_late_fire_time_without_a_trace(driver: str, store: Store, name: str) -> None:
    provider = store.provider()
    provider.release(acquired(provider, name))
    before = written_by_mysql(store, name)
    for _ in range(20):
        refuse_late(provider, name)
    assert written_by_mysql(store, name) == before
