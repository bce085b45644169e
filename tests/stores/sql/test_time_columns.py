"""Columns that follow the session's time zone mean different moments in two sessions: both would get the lock."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from tests.stores.sql.stores import ONE_ASYNC_EACH, ONE_EACH, Store, on_mysql_and_mariadb, programs_on
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of

ALL_TIMES = ("lock_until", "locked_at", "last_fire_time")
OTHERS = pytest.mark.slow("other zones and columns, where one shows it")
POSTGRES = [driver for driver in (*ONE_EACH, *ONE_ASYNC_EACH) if driver.startswith("postgresql")]
MYSQL = [driver for driver in (*ONE_EACH, *ONE_ASYNC_EACH) if not driver.startswith("postgresql")]


def create(store: Store, table: str, time: str, *, extra: bool) -> None:
    fire_time = time.replace("(3)", "(6)")  # fire times have microseconds
    columns = f"fencing_token BIGINT, last_fire_time {fire_time} NULL, " if extra else ""
    default = "" if store.is_postgres else "DEFAULT '2026-01-01'"
    store.execute(
        f"CREATE TABLE {table} (name VARCHAR(64) NOT NULL, lock_until {time} NOT NULL {default}, "
        f"locked_at {time} NOT NULL {default}, locked_by VARCHAR(255) NOT NULL, {columns}PRIMARY KEY (name))"
    )


@pytest.mark.parametrize("extra", [True, False])
@programs_on(POSTGRES, mariadb=True)
def test_i1_timestamptz_is_refused(driver: str, extra: bool, store: Store, name: str) -> None:
    with store.table() as table:
        create(store, table, "timestamptz(6)", extra=extra)
        provider = store.provider(table_name=table, extra_columns=extra)
        for _ in range(2):
            with pytest.raises(ProviderError, match="time zone") as refused:
                provider.acquire(LockRequest(name, "1m"))
        assert (refused.value.operation, refused.value.lock_name) == ("acquire", name)
        assert not isinstance(refused.value, ProviderUnreachable)
        with pytest.raises(ProviderError, match="time zone"):
            provider.take_over(LockRequest(name, "1m"))
        do_as_told(store, str(refused.value))
        assert provider.release(acquired(provider, name))


@pytest.mark.parametrize(
    "zone", ["Asia/Tokyo", *(pytest.param(zone, marks=OTHERS) for zone in ("UTC", "America/New_York"))]
)
@programs_on(POSTGRES, mariadb=True)
def test_i5_a_held_lock_in_timestamptz_is_not_called_free(driver: str, zone: str, store: Store, name: str) -> None:
    """ShedLock for Java writes this with usingDbTime(): UTC without a zone, in a session that has a zone."""
    with store.table() as table:
        create(store, table, "timestamptz", extra=True)
        in_zone = f"SET timezone = '{zone}'"
        utc = "timezone('utc', CURRENT_TIMESTAMP)"
        columns, values = "name, lock_until, locked_at, locked_by", f":name, {utc} + interval '1 h', {utc}, 'java'"
        store.execute(in_zone, f"INSERT INTO {table} ({columns}) VALUES ({values})", name=name)
        provider = store.provider(table_name=table)
        operations: list[Callable[[], object]] = [
            lambda: provider.record(name),
            provider.records,
            lambda: provider.force_release(name),
            lambda: provider.prune(0),
        ]
        for operate in operations:
            with pytest.raises(ProviderError, match=r"timestamptz.* .locked_at must read as UTC.: ALTER TABLE") as no:
                operate()
        do_as_told(store, str(no.value), in_zone)
        record = record_of(provider, name)
        assert record.is_held
        assert abs(record.remaining - timedelta(hours=1)) < timedelta(minutes=1)
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.force_release(name) is True


@programs_on(["postgresql+psycopg"], mariadb=True)
def test_only_the_columns_that_follow_the_zone_are_changed(driver: str, store: Store, name: str) -> None:
    with store.table() as table:
        create(store, table, "timestamp", extra=True)
        store.execute(f"ALTER TABLE {table} ALTER COLUMN locked_at TYPE timestamptz")
        provider = store.provider(table_name=table)
        with pytest.raises(ProviderError, match=r"ALTER COLUMN locked_at TYPE timestamp$"):
            provider.acquire(LockRequest(name, "1m"))


@pytest.mark.parametrize("extra", [True, False])
@programs_on(MYSQL, mariadb=True)
def test_timestamp_is_warned_of_once(
    driver: str, extra: bool, store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with store.table() as table:
        create(store, table, "TIMESTAMP(6)", extra=extra)
        provider = store.provider(table_name=table, extra_columns=extra)
        for _ in range(2):
            assert provider.release(acquired(provider, name))
        (warning,) = warnings_of(caplog, "time_zone")
        assert "time_zone" in warning
        caplog.clear()
        assert len(store.provider(table_name=table, extra_columns=extra).records()) == 1
        assert warnings_of(caplog, "time_zone") == [warning], "a reader must know as well"
        do_as_told(store, warning)
        caplog.clear()
        assert provider.release(acquired(store.provider(table_name=table, extra_columns=extra), name))
        assert not warnings_of(caplog, "time_zone")


@pytest.mark.parametrize("zone", ["+09:00", *(pytest.param(zone, marks=OTHERS) for zone in ("+00:00", "-08:00"))])
@pytest.mark.parametrize("digits", ["(3)", pytest.param("(6)", marks=OTHERS)])
@programs_on(on_mysql_and_mariadb("pymysql"), mariadb=True)
def test_i5_a_lock_held_in_timestamp_by_another_zone_is_not_called_free(
    driver: str, digits: str, zone: str, store: Store, name: str
) -> None:
    with store.table() as table:
        create(store, table, f"TIMESTAMP{digits}", extra=True)
        in_zone = f"SET time_zone = '{zone}'"
        options = {"table_name": table}
        there = store.provider_of_engine(options=options, connect_args={"init_command": in_zone})
        acquired(there, name, "1h")
        here = store.provider(table_name=table)
        operations: list[Callable[[], object]] = [
            lambda: here.record(name),
            here.records,
            lambda: here.force_release(name),
            lambda: here.prune(0),
            lambda: here.take_over(LockRequest(name, "1m")),
        ]
        for operate in operations:
            with pytest.raises(ProviderError, match=r"time zone .* h from this session's.*ALTER TABLE") as refused:
                operate()
        assert there.force_release("nobody's") is False
        assert record_of(there, name).is_held
        do_as_told(store, str(refused.value), in_zone)
        record = record_of(store.provider(table_name=table), name)
        assert record.is_held
        assert abs(record.remaining - timedelta(hours=1)) < timedelta(minutes=1)


@programs_on(on_mysql_and_mariadb("pymysql"), mariadb=True)
def test_timestamp_is_right_where_all_sessions_have_one_zone(driver: str, store: Store, name: str) -> None:
    with store.table() as table:
        create(store, table, "TIMESTAMP(6)", extra=True)
        provider, other = store.provider(table_name=table), store.provider(table_name=table)
        lease = acquired(provider, name)
        assert [record.is_held for record in other.records()] == [True]
        assert other.force_release(name) is True
        assert other.force_release(name) is False
        assert other.prune(0) == 1
        assert provider.release(lease) is False
        other.take_over(LockRequest(name, "1m"))
        other.take_over(LockRequest(name, "1m"))


@programs_on(on_mysql_and_mariadb("pymysql"), mariadb=True)
def test_i1_columns_with_names_in_capitals_are_checked_too(
    driver: str, store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with store.table() as table:
        create(store, table, "TIMESTAMP(6)", extra=True)
        store.execute(
            *(f"ALTER TABLE {table} CHANGE {column} {column.upper()} TIMESTAMP(6) NULL" for column in ALL_TIMES)
        )
        in_zone = {"init_command": "SET time_zone = '+09:00'"}
        acquired(store.provider_of_engine(options={"table_name": table}, connect_args=in_zone), name, "1h")
        assert len(warnings_of(caplog, "time_zone")) == 1
        with pytest.raises(ProviderError, match=r"time zone .* h from this session's"):
            store.provider(table_name=table).record(name)


@pytest.mark.parametrize("zone", [pytest.param("+00:00", marks=OTHERS), "+09:00"])
@programs_on(on_mysql_and_mariadb("pymysql"), mariadb=True)
def test_i1_a_lock_until_that_mysql_sets_by_itself_stays(driver: str, zone: str, store: Store, name: str) -> None:
    """With this setting, MySQL adds ON UPDATE CURRENT_TIMESTAMP to the first TIMESTAMP of ShedLock's table."""
    with store.table() as table:
        store.execute(
            "SET explicit_defaults_for_timestamp = OFF",
            f"CREATE TABLE {table} (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, "
            f"locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, "
            f"PRIMARY KEY (name))",
            f"ALTER TABLE {table} ADD COLUMN fencing_token BIGINT, ADD COLUMN last_fire_time DATETIME(6)",
        )
        with store.connect() as connection:
            query = "SELECT extra FROM information_schema.columns WHERE table_name = :t AND column_name = 'lock_until'"
            assert "on update" in connection.execute(text(query), {"t": table}).scalar_one().lower()
        in_zone = {"init_command": f"SET time_zone = '{zone}'"}
        provider: Any = store.provider_of_engine(options={"table_name": table}, connect_args=in_zone)
        lease = acquired(provider, name, "1h", fire_time=datetime.now(UTC))
        granted = record_of(provider, name)
        assert provider.acquire(LockRequest(name, "1h")) is None
        assert provider.forget_fire_time(name) is True
        record = record_of(provider, name)
        assert (record.lock_until, record.last_fire_time) == (granted.lock_until, None)
        assert provider.acquire(LockRequest(name, "1h")) is None
        assert lease.is_trusted()


DATETIMES = {"postgresql": "TIMESTAMP", "mysql": "DATETIME", "mariadb": "DATETIME"}


@pytest.mark.parametrize("digits", ["(0)", pytest.param("(2)", marks=OTHERS)])
@pytest.mark.parametrize("extra", [True, False])
@programs_on([*ONE_EACH, *ONE_ASYNC_EACH], mariadb=True)
def test_i1_times_that_are_rounded_are_refused(driver: str, extra: bool, digits: str, store: Store, name: str) -> None:
    with store.table() as table:
        create(store, table, f"{DATETIMES[driver.partition('+')[0]]}{digits}", extra=extra)
        provider = store.provider(table_name=table, extra_columns=extra)
        with pytest.raises(ProviderError, match=r"lock_until, locked_at.* are rounded.*ALTER TABLE") as refused:
            provider.acquire(LockRequest(name, "1m"))
        assert (refused.value.operation, refused.value.lock_name) == ("acquire", name)
        assert not isinstance(refused.value, ProviderUnreachable)
        do_as_told(store, str(refused.value))
        assert provider.release(acquired(provider, name))


@programs_on(on_mysql_and_mariadb("pymysql"), mariadb=True)
def test_i1_a_timestamp_of_whole_seconds_is_refused(driver: str, store: Store, name: str) -> None:
    with store.table() as table:
        create(store, table, "TIMESTAMP", extra=False)
        with pytest.raises(ProviderError, match=r"are rounded.* .locked_at must read as UTC.: ALTER TABLE") as refused:
            store.provider(table_name=table, extra_columns=False).acquire(LockRequest(name, "1m"))
        do_as_told(store, str(refused.value))
        acquired(store.provider(table_name=table, extra_columns=False), name)


@programs_on(ONE_EACH, mariadb=True)
def test_i11_a_fire_time_that_is_rounded_is_refused(driver: str, store: Store, name: str) -> None:
    """The other columns may have milliseconds, as ShedLock for Java writes them."""
    with store.table() as table:
        time = DATETIMES[driver.partition("+")[0]]
        create(store, table, f"{time}(3)", extra=True)
        assert store.provider(table_name=table).release(acquired(store.provider(table_name=table), name))
        of_type = "ALTER COLUMN last_fire_time TYPE" if store.is_postgres else "MODIFY last_fire_time"
        store.execute(f"ALTER TABLE {table} {of_type} {time}(3)")
        with pytest.raises(ProviderError, match=r"the times last_fire_time .*are rounded.*ALTER TABLE") as refused:
            store.provider(table_name=table).acquire(LockRequest(name, "1m"))
        without = store.provider(table_name=table, extra_columns=False)
        assert without.release(acquired(without, name)), "it does not use this column"
        do_as_told(store, str(refused.value))
        provider, fire_time = store.provider(table_name=table), datetime(2026, 11, 20, 10, 0, 0, 400, tzinfo=UTC)
        assert provider.release(acquired(provider, name, fire_time=fire_time))
        assert provider.acquire(LockRequest(name, "1m", fire_time=fire_time)) is None


def do_as_told(store: Store, message: str, *first: str) -> None:
    (remedy,) = re.findall(r"ALTER TABLE .*", message)
    store.execute(*first, remedy)


@programs_on(POSTGRES)
def test_i1_timestamptz_is_refused_in_another_schema(driver: str, store: Store, name: str) -> None:
    schema = "Odd Schema"
    store.execute(f'CREATE SCHEMA "{schema}"')
    try:
        create(store, f'"{schema}".shedlock', "timestamptz", extra=True)
        with pytest.raises(ProviderError, match=f'ALTER TABLE "{schema}".shedlock'):
            store.provider(schema=schema).acquire(LockRequest(name, "1m"))
        assert acquired(store.provider(), name)
    finally:
        store.execute(f'DROP SCHEMA "{schema}" CASCADE')


@programs_on([*ONE_EACH, *ONE_ASYNC_EACH], mariadb=True)
def test_a_table_that_is_made_later_is_looked_at_then(driver: str, store: Store, name: str) -> None:
    with store.table() as table:
        provider: LockProvider = store.provider(table_name=table)
        with pytest.raises(ProviderError, match="create the table"):
            provider.acquire(LockRequest(name, "1m"))
        if store.is_postgres:
            create(store, table, "timestamptz", extra=True)
            with pytest.raises(ProviderError, match="timestamptz"):
                provider.acquire(LockRequest(name, "1m"))
        else:
            provider.create_schema()
            acquired(provider, name)
            assert record_of(provider, name).is_held


@programs_on(on_mysql_and_mariadb("pymysql"), mariadb=True)
def test_a_time_that_a_timestamp_does_not_take_is_an_error_with_its_cure(driver: str, store: Store, name: str) -> None:
    """In spring, the session's zone skips an hour. Here the time is too early for the type."""
    with store.table() as table:
        create(store, table, "TIMESTAMP(6)", extra=True)
        provider = store.provider(table_name=table)
        with pytest.raises(ProviderError, match=r"(?i)incorrect datetime value") as caught:
            provider.acquire(LockRequest(name, "1m", fire_time=datetime(1960, 1, 1, tzinfo=UTC)))
        assert "set time_zone = '+00:00' in all sessions, or change the columns to" in str(caught.value.hint)
