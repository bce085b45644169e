"""Values without a meaning, or that Python cannot read: a clear error for that name; other records are listed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.stores.sql.stores import DRIVERS, ONE_ASYNC_EACH, ONE_EACH, Store, drivers_of, on
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of

POSTGRES = drivers_of("postgres")
MYSQL = drivers_of("mariadb", "mysql")


def assert_odd(provider: LockProvider, name: str, column: str, caplog: pytest.LogCaptureFixture) -> None:
    """Expect an error for this name only; ``other`` is in the same table."""
    with pytest.raises(ProviderError, match=rf"lock '{name}'.*{column} in its record is .* correct the record") as odd:
        provider.record(name)
    assert not isinstance(odd.value, ProviderUnreachable)
    assert odd.value.lock_name == name
    caplog.clear()
    assert [record.name for record in provider.records()] == ["other"]
    (warning,) = warnings_of(caplog)
    assert f"'{name}'" in warning
    assert column in warning


# PostgreSQL


@pytest.mark.parametrize("table_has", ["extra columns", "Java's columns"])
@on(POSTGRES)
def test_infinity_is_held_for_ever(driver: str, table_has: str, store: Store, name: str) -> None:
    provider = store.provider(extra_columns=table_has == "extra columns")
    acquired(provider, name)
    other = f"{name}-other"
    acquired(provider, other)
    store.execute("UPDATE shedlock SET lock_until = 'infinity' WHERE name = :name", name=name)
    record = record_of(provider, name)
    assert record.is_held
    assert record.remaining > timedelta(days=365 * 1000)
    for hours in (14, -12):
        assert record.lock_until.astimezone(UTC).utctimetuple()
        assert record.lock_until + timedelta(hours=hours), "people see it in their time zone"
    assert [each.name for each in provider.records(name)] == [name, other]
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert provider.force_release(name) is True
    assert provider.release(acquired(provider, name))


@pytest.mark.parametrize("moment", ["0044-03-15 12:00 BC", "-infinity"])
@on(POSTGRES)
def test_long_ago_is_free(driver: str, moment: str, store: Store, name: str) -> None:
    provider = store.provider()
    acquired(provider, name)
    store.execute(
        f"UPDATE shedlock SET lock_until = '{moment}', locked_at = '{moment}', last_fire_time = '{moment}' "
        "WHERE name = :name",
        name=name,
    )
    record = record_of(provider, name)
    assert not record.is_held
    assert record.locked_at.year == 1
    for hours in (14, -12):
        assert record.locked_at + timedelta(hours=hours), "people see it in their time zone"
    assert [each.name for each in provider.records(name)] == [name]
    provider.take_over(LockRequest(name, "1m", fire_time=datetime(2024, 5, 1, tzinfo=UTC)))
    assert record_of(provider, name).is_held


@on([*DRIVERS])
def test_the_first_moment_of_the_year_1_is_stored_as_such(driver: str, store: Store, name: str) -> None:
    """Asyncpg sends this moment as '-infinity', which sorts earlier for other drivers."""
    provider, first = store.provider(), datetime.min.replace(tzinfo=UTC)
    lease = acquired(provider, name, fire_time=first)
    assert record_of(provider, name).last_fire_time == first
    stored = "last_fire_time = '0001-01-01 00:00:00'"
    assert store.execute(f"UPDATE shedlock SET locked_at = last_fire_time WHERE name = :name AND {stored}", name=name)
    assert provider.release(lease)
    assert provider.acquire(LockRequest(name, "1m", fire_time=first)) is None, "I11"
    assert record_of(provider, name).locked_at == first
    assert provider.take_over(LockRequest(name, "1m", fire_time=first)), "of the record that was read"


@on(POSTGRES)
def test_a_lease_until_after_the_year_9999_is_held(driver: str, store: Store, name: str) -> None:
    provider = store.provider()
    lease = acquired(provider, name)
    far = "20000-01-01"
    store.execute(
        f"UPDATE shedlock SET lock_until = '{far}', locked_at = '{far}', last_fire_time = '{far}' WHERE name = :name",
        name=name,
    )
    assert record_of(provider, name).is_held
    assert [each.name for each in provider.records(name)] == [name]
    assert provider.acquire(LockRequest(name, "1m", fire_time=datetime(2024, 5, 1, tzinfo=UTC))) is None
    assert provider.release(lease)
    assert not record_of(provider, name).is_held


@pytest.mark.parametrize(
    "moment",
    [
        "9999-12-31 00:00:00",
        *(
            pytest.param(moment, marks=pytest.mark.slow("other moments of those days"))
            for moment in ("9999-12-31 23:59:59.000001", "9999-12-29 00:00:00.500000")
        ),
    ],
)
@on([*ONE_EACH, *ONE_ASYNC_EACH, "sqlite"])
def test_a_lease_until_the_end_of_the_year_9999_can_be_freed(driver: str, moment: str, store: Store, name: str) -> None:
    """An operator has written it. Days after December 30 appear as December 30."""
    provider: Any = store.provider()

    def write() -> None:
        acquired(provider, name)
        changes = "lock_until = :moment, locked_at = :moment, last_fire_time = :moment"
        store.execute(f"UPDATE shedlock SET {changes} WHERE name = :name", name=name, moment=moment)

    write()
    assert provider.forget_fire_time(name) is True
    assert record_of(provider, name).last_fire_time is None
    assert provider.force_release(name) is True
    assert not record_of(provider, name).is_held
    write()
    assert provider.release(provider.take_over(LockRequest(name, "1m")))


@on([*ONE_EACH, *ONE_ASYNC_EACH])
def test_a_holder_that_is_null_is_odd(driver: str, store: Store, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with store.table() as table:
        provider = store.provider(table_name=table)
        provider.create_schema()
        acquired(provider, "other")
        acquired(provider, name)
        nullable = "ALTER COLUMN locked_by DROP NOT NULL" if store.is_postgres else "MODIFY locked_by VARCHAR(255) NULL"
        store.execute(f"ALTER TABLE {table} {nullable}", f"UPDATE {table} SET locked_by = NULL WHERE name = '{name}'")
        assert_odd(provider, name, "locked_by", caplog)
        assert provider.acquire(LockRequest(name, "1m")) is None, "it is held all the same"
        with pytest.raises(ProviderError, match=rf"lock '{name}'.*locked_by in its record is .* correct the record"):
            provider.force_release(name)
        store.execute(f"UPDATE {table} SET locked_by = 'nobody' WHERE name = '{name}'")
        assert provider.force_release(name) is True
        acquired(provider, name)
        assert record_of(provider, name).is_held


@on([*ONE_EACH, *ONE_ASYNC_EACH])
def test_i7_the_last_token_is_granted_to_nobody(driver: str, store: Store, name: str) -> None:
    provider = store.provider()
    provider.release(acquired(provider, name))
    store.execute(f"UPDATE shedlock SET fencing_token = {2**63 - 1} WHERE name = :name", name=name)
    for acquire in (provider.acquire, provider.take_over):
        with pytest.raises(ProviderError, match=rf"lock '{name}'.*(out of range|no whole number of 64 bits)") as odd:
            acquire(LockRequest(name, "1m"))
        assert not isinstance(odd.value, ProviderUnreachable)
    with pytest.raises(ProviderError, match="fencing_token in its record is 92"):
        provider.record(name)
    store.execute("DELETE FROM shedlock WHERE name = :name", name=name)


@on([*ONE_EACH, *ONE_ASYNC_EACH])
def test_i1_a_take_over_with_the_last_token_frees_nothing(driver: str, store: Store, name: str) -> None:
    """The former holder may still trust its lease."""
    provider = store.provider()
    acquired(provider, name)
    store.execute(f"UPDATE shedlock SET fencing_token = {2**63 - 2} WHERE name = :name", name=name)
    with pytest.raises(ProviderError, match="fencing_token in its record is 92"):
        provider.take_over(LockRequest(name, "1m"))
    assert provider.acquire(LockRequest(name, "1m")) is None
    store.execute("DELETE FROM shedlock WHERE name = :name", name=name)


@on([*ONE_EACH, *ONE_ASYNC_EACH])
def test_a_token_in_text_is_odd(driver: str, store: Store, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The column has another type."""
    with store.table() as table:
        provider = store.provider(table_name=table)
        provider.create_schema()
        acquired(provider, "other")
        text = "TYPE text" if store.is_postgres else "MODIFY fencing_token TEXT"
        alter = f"ALTER COLUMN fencing_token {text}" if store.is_postgres else text
        store.execute(
            f"ALTER TABLE {table} {alter}",
            f"UPDATE {table} SET fencing_token = NULL",
            f"INSERT INTO {table} VALUES ('{name}', '2026-01-01', '2026-01-01', 'x', 'first', NULL)",
        )
        assert_odd(provider, name, "fencing_token", caplog)
        if store.is_postgres:  # MySQL reads a number from it, or rejects it, depending on the version
            with pytest.raises(ProviderError, match=name):
                provider.acquire(LockRequest(name, "1m"))


# MySQL and MariaDB


@pytest.mark.parametrize("column", ["lock_until", "locked_at"])
@on(MYSQL)
def test_the_day_0000_00_00_is_odd(
    driver: str, column: str, store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with store.table() as table:
        provider = store.provider(table_name=table)
        provider.create_schema()
        provider.release(acquired(provider, name))
        acquired(provider, "other")
        store.execute("SET sql_mode = ''", f"UPDATE {table} SET {column} = '0000-00-00' WHERE name = '{name}'")
        assert_odd(provider, name, column, caplog)
        acquired(provider, name)
        assert record_of(provider, name).is_held, "the next acquire mends it"


@on([*ONE_EACH, *ONE_ASYNC_EACH])
def test_i7_a_token_that_is_no_bigint_is_granted_to_nobody(driver: str, store: Store, name: str) -> None:
    with store.table() as table:
        provider = store.provider(table_name=table)
        provider.create_schema()
        provider.release(acquired(provider, name))
        alter = (
            "ALTER COLUMN fencing_token TYPE numeric" if store.is_postgres else "MODIFY fencing_token BIGINT UNSIGNED"
        )
        store.execute(f"ALTER TABLE {table} {alter}", f"UPDATE {table} SET fencing_token = {2**63}")
        with pytest.raises(ProviderError, match=name):
            provider.acquire(LockRequest(name, "1m"))
        now = "timezone('utc', clock_timestamp())" if store.is_postgres else "UTC_TIMESTAMP(6)"
        assert store.query(f"SELECT count(*) FROM {table} WHERE lock_until <= {now}") == 1


# SQLite, which accepts any value in any column


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def sqlite(path: Path) -> Iterator[SqlAlchemyLockProvider]:
    provider = SqlAlchemyLockProvider(f"sqlite:///{path}")
    provider.create_schema()
    provider.release(acquired(provider, "job"))
    acquired(provider, "other")
    yield provider
    provider.close()


def execute(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql, values)


NO_TIMES = [
    "tomorrow",
    "",
    "2026-11-22T10:00:00",
    "2026-13-01 00:00:00",
    "9999-12-31 24:00:00",
    1795269798903,
    1.5,
    b"\0",
]


@pytest.mark.parametrize("column", ["lock_until", "locked_at", "last_fire_time"])
def test_a_text_that_is_no_time_is_odd_on_sqlite(
    sqlite: SqlAlchemyLockProvider, path: Path, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    for value in NO_TIMES:
        execute(path, f"UPDATE shedlock SET {column} = ? WHERE name = 'job'", value)
        assert_odd(sqlite, "job", column, caplog)
        if column != "locked_at":  # this column decides nothing
            for acquire in (sqlite.acquire, sqlite.take_over):
                with pytest.raises(ProviderError, match=f"lock 'job'.*{column}"):
                    acquire(LockRequest("job", "1m"))
        execute(path, "DELETE FROM shedlock WHERE name = 'job'")
        assert sqlite.release(acquired(sqlite, "job"))


@pytest.mark.parametrize("value", ["first", 2**63 - 1, 1e19, b"\1"])
def test_a_value_that_is_no_token_is_odd_on_sqlite(
    sqlite: SqlAlchemyLockProvider, path: Path, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    execute(path, "UPDATE shedlock SET fencing_token = ? WHERE name = 'job'", value)
    assert_odd(sqlite, "job", "fencing_token", caplog)
    for acquire in (sqlite.acquire, sqlite.take_over):
        with pytest.raises(ProviderError, match=r"lock 'job'.*fencing_token"):
            acquire(LockRequest("job", "1m"))


@pytest.mark.parametrize("value", [7, b"host"])
def test_a_value_that_is_no_holder_is_odd_on_sqlite(
    sqlite: SqlAlchemyLockProvider, path: Path, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    execute(path, "DROP TABLE shedlock")
    execute(
        path,
        "CREATE TABLE shedlock (name PRIMARY KEY, lock_until, locked_at, locked_by, fencing_token, last_fire_time)",
    )
    acquired(sqlite, "other")
    acquired(sqlite, "job")
    execute(path, "UPDATE shedlock SET locked_by = ? WHERE name = 'job'", value)
    assert_odd(sqlite, "job", "locked_by", caplog)
    assert sqlite.acquire(LockRequest("job", "1m")) is None


def test_times_with_fewer_digits_are_read_on_sqlite(sqlite: SqlAlchemyLockProvider, path: Path) -> None:
    """``datetime('now')`` writes such times."""
    execute(path, "UPDATE shedlock SET lock_until = datetime('now', '+1 hour'), locked_at = datetime('now')")
    assert record_of(sqlite, "job").is_held
    assert sqlite.acquire(LockRequest("job", "1m")) is None
    sqlite.take_over(LockRequest("job", "1m"))
    assert record_of(sqlite, "job").remaining < timedelta(minutes=2)
