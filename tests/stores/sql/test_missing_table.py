"""A missing table or column: the error names the fix, and no restart is needed afterwards."""

import re
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from shedlock_py import ConfigurationError, LockProvider, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.stores.sql.stores import DRIVERS, KINDS, Store, on
from tests.support.locks import acquired, record_of


@pytest.fixture
def table(store: Store) -> Iterator[str]:
    with store.table() as table:
        yield table


@pytest.fixture
def provider(kind: str, store: Store, table: str) -> LockProvider:
    options: dict[str, Any] = {"table_name": table}
    return store.provider(**options) if kind == "url" else store.provider_of_engine(options=options)


@on(DRIVERS, kinds=KINDS)
def test_without_a_table_the_error_says_how_to_create_it(
    provider: LockProvider, store: Store, table: str, name: str
) -> None:
    for _ in range(2):
        with pytest.raises(ProviderError, match=rf"create the table {table}\b.*create_schema\(\)") as missing:
            provider.acquire(LockRequest(name, "1m"))
        assert not isinstance(missing.value, ProviderUnreachable)
        assert "lock_table(metadata)" in str(missing.value)
        assert "".join(traceback.format_exception(missing.value)).count("Traceback") == 1  # our own traceback
        assert missing.value.__cause__ is None
    with pytest.raises(ProviderError, match="create_schema"):
        provider.records()
    store.provider(table_name=table).create_schema()
    assert provider.release(acquired(provider, name))


@on(DRIVERS, kinds=KINDS)
def test_without_the_extra_columns_the_error_says_how_to_add_them(
    provider: LockProvider, store: Store, table: str, name: str
) -> None:
    time = "TIMESTAMP" if store.is_postgres else "DATETIME(6)"
    store.execute(
        f"CREATE TABLE {table} (name VARCHAR(64) NOT NULL PRIMARY KEY, lock_until {time} NOT NULL, "
        f"locked_at {time} NOT NULL, locked_by VARCHAR(255) NOT NULL)"
    )
    with pytest.raises(ProviderError, match="extra_columns=False") as missing:
        provider.acquire(LockRequest(name, "1m"))
    assert not isinstance(missing.value, ProviderUnreachable)
    with pytest.raises(ProviderError, match="extra_columns=False"):
        provider.create_schema()

    without = store.provider(table_name=table, extra_columns=False)
    without.create_schema()
    lease = acquired(without, name)
    assert lease.fencing_token is None
    assert without.acquire(LockRequest(name, "1m")) is None
    assert without.extend(lease, "2m") is lease
    record = record_of(without, name)
    assert (record.locked_by, record.fencing_token, record.last_fire_time) == (lease.locked_by, None, None)
    with pytest.raises(ConfigurationError, match="last_fire_time"):
        without.acquire(LockRequest(name, "1m", fire_time=datetime.now(UTC)))
    assert without.release(lease) is True

    # Run the statements from the error message.
    remedy = re.findall(r"ALTER TABLE [^;]+;", str(missing.value))
    assert len(remedy) == 2
    store.execute(*(statement.rstrip(";") for statement in remedy))
    first = acquired(provider, name)  # on a record without a token
    assert provider.release(first)
    second = acquired(provider, name, fire_time=datetime.now(UTC))
    assert (second.fencing_token or 0) > (first.fencing_token or 0) > 0
    # Providers with and without tokens exclude each other.
    assert without.acquire(LockRequest(name, "1m")) is None


def test_on_sqlite_the_errors_say_the_same(name: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    provider = SqlAlchemyLockProvider(url)
    with pytest.raises(ProviderError, match="create_schema"):
        provider.acquire(LockRequest(name, "1m"))
    without = SqlAlchemyLockProvider(url, table_name="java", extra_columns=False)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE java (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP, "
            "locked_at TIMESTAMP, locked_by TEXT)"
        )
    lease = acquired(without, name)
    assert without.acquire(LockRequest(name, "1m")) is None
    assert without.release(lease)
    provider.create_schema()
    assert provider.release(acquired(provider, name))
    with pytest.raises(ProviderError, match="ALTER TABLE java ADD COLUMN fencing_token"):
        SqlAlchemyLockProvider(engine, table_name="java").acquire(LockRequest(name, "1m"))
    provider.close()
    without.close()
    engine.dispose()
