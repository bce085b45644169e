"""Databases for the tests of this directory, and a different name for each lock."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import DATABASE, DRIVERS, SQLITE_DRIVERS, SqliteFile, Store, marks_of
from tests.support.database import DatabaseServer


def _with_database(server: DatabaseServer, driver: str) -> Iterator[DatabaseServer]:
    server.drop_database(DATABASE)
    server.create_database(DATABASE)
    provider = SqlAlchemyLockProvider(server.url(driver, DATABASE), timeout="60s")  # however busy the disk is
    provider.create_schema()
    provider.close()
    yield server
    server.start()
    server.drop_database(DATABASE)


@pytest.fixture(scope="package")
def postgres(postgres_server: DatabaseServer) -> Iterator[DatabaseServer]:
    yield from _with_database(postgres_server, "postgresql+psycopg")


@pytest.fixture(scope="package")
def mariadb(mariadb_server: DatabaseServer) -> Iterator[DatabaseServer]:
    yield from _with_database(mariadb_server, "mysql+pymysql")


@pytest.fixture(scope="package")
def mysql(mysql_server: DatabaseServer) -> Iterator[DatabaseServer]:
    yield from _with_database(mysql_server, "mysql+pymysql")


@pytest.fixture(params=[pytest.param(driver, marks=marks_of(driver, DRIVERS)) for driver in DRIVERS])
def driver(request: pytest.FixtureRequest) -> str:
    """Tests that need fewer drivers override this with `@on(drivers)`."""
    return str(request.param)


@pytest.fixture
def store(driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    is_sqlite = driver in SQLITE_DRIVERS
    store = Store(SqliteFile(tmp_path / "locks.db") if is_sqlite else request.getfixturevalue(DRIVERS[driver]), driver)
    with store.stack:
        if is_sqlite:
            store.provider(timeout="60s").create_schema()
        yield store


@pytest.fixture
def proxy(store: Store) -> Iterator[TcpProxy]:
    with TcpProxy(store.server.address) as proxy:
        yield proxy


@pytest.fixture
def name() -> str:
    return f"job-{uuid4().hex[:12]}"
