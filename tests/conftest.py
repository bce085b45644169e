"""Fixtures for all tests. One process runs them all: the servers are its children."""

from collections.abc import Iterator

import pytest

from tests.services.availability import database_server
from tests.services.database import DatabaseServer


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[DatabaseServer]:
    with database_server("postgres") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[DatabaseServer]:
    with database_server("mariadb") as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[DatabaseServer]:
    with database_server("mysql") as server:
        yield server
