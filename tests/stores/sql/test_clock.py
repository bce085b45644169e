"""I10: the server's clock decides, in UTC, whatever the time zones are."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from shedlock_py import LockProvider, LockRequest
from tests.stores.sql.stores import DATABASE, Store, on, on_mysql_and_mariadb
from tests.support.database import DatabaseServer
from tests.support.locks import acquired, record_of

# MariaDB and MySQL know named zones only after somebody has loaded them.
POSTGRES_ZONES = ["America/New_York", "Pacific/Kiritimati", "Australia/Lord_Howe"]
OFFSETS = ["-12:59", "+13:00"]
OTHERS = pytest.mark.slow("other time zones")


@pytest.fixture(params=[POSTGRES_ZONES[0], *(pytest.param(zone, marks=OTHERS) for zone in POSTGRES_ZONES[1:])])
def postgres_zone(request: pytest.FixtureRequest, postgres: DatabaseServer) -> Iterator[str]:
    with postgres.connect() as connection:
        connection.execute(text(f"ALTER DATABASE {DATABASE} SET timezone = '{request.param}'"))
        yield request.param
        connection.execute(text(f"ALTER DATABASE {DATABASE} RESET ALL"))


@pytest.fixture(params=[OFFSETS[0], *(pytest.param(zone, marks=OTHERS) for zone in OFFSETS[1:])])
def global_zone(request: pytest.FixtureRequest, store: Store) -> Iterator[str]:
    with store.server.connect() as connection:
        before = connection.execute(text("SELECT @@GLOBAL.time_zone")).scalar()
        connection.execute(text("SET GLOBAL time_zone = :zone"), {"zone": request.param})
        yield request.param
        connection.execute(text("SET GLOBAL time_zone = :zone"), {"zone": before})


@pytest.fixture(autouse=True, scope="module")
def local_zone() -> Iterator[None]:
    """This process uses a third time zone."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/St_Johns"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


POSTGRES = ["postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg"]


@on(POSTGRES, mariadb=True)
def test_i10_postgres_counts_alike_in_any_zone(
    driver: str, postgres_zone: str, postgres: DatabaseServer, name: str
) -> None:
    store = Store(postgres, driver)
    with store.stack:
        assert store.query("SHOW timezone") == postgres_zone
        check(store, name)


@on(on_mysql_and_mariadb("pymysql", "mysqldb", "asyncmy"), mariadb=True)
def test_i10_mysql_and_mariadb_count_alike_in_any_zone(driver: str, global_zone: str, store: Store, name: str) -> None:
    assert store.query("SELECT @@time_zone") == global_zone
    check(store, name)


def check(store: Store, name: str) -> None:
    provider = store.provider()
    before = server_time(store)
    lease = acquired(provider, name, "30s", fire_time=datetime(2024, 3, 31, 1, 30, tzinfo=UTC))
    record = record_of(provider, name)
    after = server_time(store)
    assert abs(record.lock_until - record.locked_at - timedelta(seconds=30)) < timedelta(seconds=1)
    assert before <= record.locked_at <= after
    assert before <= record.read_at <= after
    assert record.is_held
    assert after - record.locked_at < timedelta(seconds=25), "this machine is too busy for this test"
    assert record.last_fire_time == datetime(2024, 3, 31, 1, 30, tzinfo=UTC)
    assert abs((lease.fencing_token or 0) - record.locked_at.timestamp() * 1e6) < 1e6
    # A replica with its session in another zone sees the same times.
    assert in_another_zone(store, name) == [record.locked_at, record.lock_until]
    assert_fire_time_counts(provider, store, name)
    assert provider.release(lease) is True
    assert not record_of(provider, name).is_held


def server_time(store: Store) -> datetime:
    sql = "clock_timestamp() AT TIME ZONE 'UTC'" if store.is_postgres else "UTC_TIMESTAMP(6)"
    moment: datetime = store.query(f"SELECT {sql}")
    return moment.replace(tzinfo=UTC)


def in_another_zone(store: Store, name: str) -> list[datetime]:
    with store.connect() as connection:
        connection.execute(text("SET timezone = 'Asia/Tokyo'" if store.is_postgres else "SET time_zone = '+09:00'"))
        row = connection.execute(text("SELECT locked_at, lock_until FROM shedlock WHERE name = :name"), {"name": name})
        return [moment.replace(tzinfo=UTC) for moment in row.one()]


def assert_fire_time_counts(provider: LockProvider, store: Store, name: str) -> None:
    lock = f"{name}-fire"
    eastern = datetime.fromisoformat("2024-11-03T01:30:00-04:00")
    same = datetime.fromisoformat("2024-11-03T05:30:00+00:00")
    later = datetime.fromisoformat("2024-11-03T01:30:00-05:00")  # the same wall clock, after the change
    assert provider.release(acquired(provider, lock, fire_time=eastern))
    assert store.provider().acquire(LockRequest(lock, "1m", fire_time=same)) is None
    assert provider.release(acquired(provider, lock, fire_time=later))
    assert provider.acquire(LockRequest(lock, "1m", fire_time=eastern)) is None
