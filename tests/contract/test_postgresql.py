"""The contract on PostgreSQL."""

from __future__ import annotations

import pytest

from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    AsyncPauseContract,
    EventLoopContract,
    ExclusionContract,
    ForkContract,
    HistoryContract,
    HoldTimesContract,
    LockProviderContract,
    PauseContract,
    ProcessContract,
)
from tests.contract.sql import SqlNetworkContract, SqlServerContract


class PostgresContract(SqlServerContract):
    server = "postgres_server"
    admin_driver = "postgresql+psycopg"


class TestPsycopg(
    PostgresContract, SqlNetworkContract, LockProviderContract, HistoryContract, ProcessContract, ForkContract
):
    driver = "postgresql+psycopg"


@pytest.mark.matrix
class TestPsycopg2(PostgresContract, SqlNetworkContract, LockProviderContract, HistoryContract, ForkContract):
    driver = "postgresql+psycopg2"


class TestAsyncpg(
    PostgresContract, SqlNetworkContract, AsyncLockProviderContract, HistoryContract, ProcessContract, EventLoopContract
):
    driver = "postgresql+asyncpg"


@pytest.mark.matrix
class TestPsycopgAsync(
    PostgresContract, SqlNetworkContract, AsyncLockProviderContract, HistoryContract, EventLoopContract
):
    driver = "postgresql+psycopg_async"


class UsersEngine(PostgresContract, SqlNetworkContract):
    users_client = True
    most_connections = 1


class TestPsycopgUsersEngine(UsersEngine, LockProviderContract, HistoryContract, ForkContract):
    programs_in = TestPsycopg
    driver = "postgresql+psycopg"


@pytest.mark.matrix  # another driver for TestPsycopgUsersEngine
class TestPsycopg2UsersEngine(UsersEngine, HistoryContract, ForkContract):
    driver = "postgresql+psycopg2"


@pytest.mark.matrix
class TestAsyncpgUsersEngine(UsersEngine, AsyncLockProviderContract, HistoryContract):
    driver = "postgresql+asyncpg"


class TestWithoutExtraColumns(PostgresContract, ExclusionContract, HoldTimesContract):
    driver = "postgresql+psycopg"
    extra_columns = False


class TestPause(PostgresContract, PauseContract):
    driver = "postgresql+psycopg"


class TestAsyncPause(PostgresContract, AsyncPauseContract):
    driver = "postgresql+asyncpg"


class TestPauseWithoutExtraColumns(PostgresContract, PauseContract):
    driver = "postgresql+psycopg"
    extra_columns = False
    test_i11_a_pause_uses_up_no_fire_time = None  # type: ignore[assignment]  # the table has none
