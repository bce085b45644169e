"""The contract on PostgreSQL."""

from __future__ import annotations

import pytest

from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    EventLoopContract,
    ExclusionContract,
    ForkContract,
    HoldTimesContract,
    LockProviderContract,
    ProcessContract,
)
from tests.contract.sql import SqlContract, SqlNetworkContract
from tests.support.database import DatabaseServer
from tests.support.ports import free_port


class PostgresContract(SqlContract):
    @classmethod
    def urls(cls, request: pytest.FixtureRequest) -> tuple[str, str]:
        server: DatabaseServer = request.getfixturevalue("postgres_server")
        return server.url(cls.driver), server.url("postgresql+psycopg")

    @pytest.fixture
    def unreachable_url(self, postgres_server: DatabaseServer) -> str:
        return postgres_server.url(self.driver, via=("127.0.0.1", free_port()))


class TestPsycopg(PostgresContract, LockProviderContract, ProcessContract):
    driver = "postgresql+psycopg"


class TestPsycopgUsersEngine(PostgresContract, LockProviderContract):
    driver = "postgresql+psycopg"
    users_engine = True


class TestPsycopg2(PostgresContract, LockProviderContract):
    driver = "postgresql+psycopg2"


class TestAsyncpg(PostgresContract, AsyncLockProviderContract, ProcessContract):
    driver = "postgresql+asyncpg"


class TestAsyncpgUsersEngine(PostgresContract, AsyncLockProviderContract):
    driver = "postgresql+asyncpg"
    users_engine = True


class TestPsycopgAsync(PostgresContract, AsyncLockProviderContract):
    driver = "postgresql+psycopg_async"


class TestWithoutExtraColumns(PostgresContract, ExclusionContract, HoldTimesContract):
    driver = "postgresql+psycopg"
    extra_columns = False


class TestPsycopgNetwork(PostgresContract, SqlNetworkContract, ForkContract):
    driver = "postgresql+psycopg"
    most_connections = 5


class TestPsycopg2Network(PostgresContract, SqlNetworkContract, ForkContract):
    driver = "postgresql+psycopg2"
    most_connections = 5


class TestAsyncpgNetwork(PostgresContract, SqlNetworkContract, EventLoopContract):
    driver = "postgresql+asyncpg"
    most_connections = 5


class TestPsycopgAsyncNetwork(PostgresContract, SqlNetworkContract, EventLoopContract):
    driver = "postgresql+psycopg_async"
    most_connections = 5


class TestPsycopgUsersEngineNetwork(PostgresContract, SqlNetworkContract, ForkContract):
    driver = "postgresql+psycopg"
    users_engine = True
    most_connections = 1


class TestPsycopg2UsersEngineNetwork(PostgresContract, SqlNetworkContract, ForkContract):
    driver = "postgresql+psycopg2"
    users_engine = True
    most_connections = 1


class TestAsyncpgUsersEngineNetwork(PostgresContract, SqlNetworkContract):
    driver = "postgresql+asyncpg"
    users_engine = True
    most_connections = 1
