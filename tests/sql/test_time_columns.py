"""Columns that follow the session's time zone are two moments for two sessions, and both would get the lock."""

import logging
import re

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from tests.sql.stores import ONE_ASYNC_EACH, ONE_EACH, Store, acquired, record_of

POSTGRES = [driver for driver in (*ONE_EACH, *ONE_ASYNC_EACH) if driver.startswith("postgresql")]
MARIADB = [driver for driver in (*ONE_EACH, *ONE_ASYNC_EACH) if driver.startswith("mysql")]


def create(store: Store, table: str, time: str, *, extra: bool) -> None:
    columns = f"fencing_token BIGINT, last_fire_time {time} NULL, " if extra else ""
    default = "" if store.is_postgres else "DEFAULT '2026-01-01'"
    store.execute(
        f"CREATE TABLE {table} (name VARCHAR(64) NOT NULL, lock_until {time} NOT NULL {default}, "
        f"locked_at {time} NOT NULL {default}, locked_by VARCHAR(255) NOT NULL, {columns}PRIMARY KEY (name))"
    )


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("driver", POSTGRES)
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
        assert provider.record(name) is None
        do_as_told(store, str(refused.value))
        assert provider.release(acquired(provider, name))


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("driver", MARIADB)
def test_timestamp_is_warned_of_once(
    driver: str, extra: bool, store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with store.table() as table:
        create(store, table, "TIMESTAMP(6)", extra=extra)
        provider = store.provider(table_name=table, extra_columns=extra)
        for _ in range(2):
            assert provider.release(acquired(provider, name))
        (warning,) = warnings_of(caplog)
        assert "time_zone" in warning
        do_as_told(store, warning)
        caplog.clear()
        assert provider.release(acquired(store.provider(table_name=table, extra_columns=extra), name))
        assert not warnings_of(caplog)


def do_as_told(store: Store, message: str) -> None:
    (remedy,) = re.findall(r"ALTER TABLE .*", message)
    store.execute(remedy)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if (record.name, record.levelno) == ("shedlock_py", logging.WARNING)
    ]


@pytest.mark.parametrize("schema", ["Odd Schema"])
@pytest.mark.parametrize("driver", POSTGRES)
def test_i1_in_another_schema(driver: str, schema: str, store: Store, name: str) -> None:
    store.execute(f'CREATE SCHEMA "{schema}"')
    try:
        create(store, f'"{schema}".shedlock', "timestamptz", extra=True)
        with pytest.raises(ProviderError, match=f'ALTER TABLE "{schema}".shedlock'):
            store.provider(schema=schema).acquire(LockRequest(name, "1m"))
        assert acquired(store.provider(), name)
    finally:
        store.execute(f'DROP SCHEMA "{schema}" CASCADE')


@pytest.mark.parametrize("driver", [*ONE_EACH, *ONE_ASYNC_EACH])
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
