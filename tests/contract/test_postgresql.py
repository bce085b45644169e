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
    NetworkContract,
    PauseContract,
    ProcessContract,
)
from shedlock_py.testing.contract.network import LostRepliesContract
from shedlock_py.testing.contract.threads import ThreadsContract
from tests.contract.parts import MANY_PROCESSES, SAME_PROGRAMS, SAME_STATEMENTS, AsyncClient, BeforeStore, without
from tests.contract.sql import SqlServerContract


class PostgresContract(SqlServerContract):
    server = "postgres_server"
    admin_driver = "postgresql+psycopg"


@without(BeforeStore)
class TestPsycopg(PostgresContract, NetworkContract, LockProviderContract, HistoryContract, ForkContract):
    driver = "postgresql+psycopg"


class TestAsyncpg(PostgresContract, AsyncClient, LostRepliesContract, EventLoopContract):
    driver = "postgresql+asyncpg"


@pytest.mark.slow("the same programs, through a driver with other types")
@without(TestAsyncpg)
class TestAsyncpgPrograms(
    PostgresContract, NetworkContract, AsyncLockProviderContract, HistoryContract, AsyncPauseContract
):
    driver = "postgresql+asyncpg"


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(PostgresContract, ProcessContract):
    driver = "postgresql+psycopg"


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncProcesses(PostgresContract, ProcessContract):
    driver = "postgresql+asyncpg"


@pytest.mark.matrix(SAME_STATEMENTS)
class TestPsycopg2(PostgresContract, NetworkContract, LockProviderContract, HistoryContract, ForkContract):
    driver = "postgresql+psycopg2"


@pytest.mark.matrix(SAME_PROGRAMS)
class TestPsycopgAsync(
    PostgresContract, NetworkContract, AsyncLockProviderContract, HistoryContract, EventLoopContract
):
    driver = "postgresql+psycopg_async"


class UsersEngine(PostgresContract):
    users_client = True
    most_connections = 1


class TestUsersEngine(UsersEngine, LostRepliesContract, ThreadsContract, ForkContract):
    driver = "postgresql+psycopg"


@pytest.mark.matrix(SAME_STATEMENTS)
@without(TestUsersEngine)
class TestAllWithUsersEngine(UsersEngine, NetworkContract, LockProviderContract, HistoryContract):
    driver = "postgresql+psycopg"


@pytest.mark.matrix(SAME_STATEMENTS)
class TestPsycopg2UsersEngine(UsersEngine, NetworkContract, HistoryContract, ForkContract):
    driver = "postgresql+psycopg2"


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncpgUsersEngine(UsersEngine, NetworkContract, AsyncLockProviderContract, HistoryContract):
    driver = "postgresql+asyncpg"


@pytest.mark.slow("SQLite tries the same statements")
class TestWithoutExtraColumns(PostgresContract, ExclusionContract, HoldTimesContract):
    driver = "postgresql+psycopg"
    extra_columns = False


@pytest.mark.slow("SQLite tries the same statements")
@without(BeforeStore)
class TestPause(PostgresContract, PauseContract):
    driver = "postgresql+psycopg"


@pytest.mark.slow("SQLite tries the same statements")
class TestPauseWithoutExtraColumns(PostgresContract, PauseContract):
    driver = "postgresql+psycopg"
    extra_columns = False
    test_i11_a_pause_uses_up_no_fire_time = None  # type: ignore[assignment]  # the table has none
