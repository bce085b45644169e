"""The contract on MariaDB."""

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
from tests.contract.sql import SqlNetworkContract, SqlServerContract


class MariaDbContract(SqlServerContract):
    server = "mariadb_server"
    admin_driver = "mysql+pymysql"


class TestPymysql(MariaDbContract, SqlNetworkContract, LockProviderContract, ProcessContract, ForkContract):
    driver = "mysql+pymysql"


@pytest.mark.matrix
class TestMysqlclient(MariaDbContract, SqlNetworkContract, LockProviderContract, ForkContract):
    driver = "mysql+mysqldb"


class TestAsyncmy(MariaDbContract, SqlNetworkContract, AsyncLockProviderContract, ProcessContract, EventLoopContract):
    driver = "mysql+asyncmy"


@pytest.mark.matrix
class TestAiomysql(MariaDbContract, SqlNetworkContract, AsyncLockProviderContract, EventLoopContract):
    driver = "mysql+aiomysql"


class UsersEngine(MariaDbContract, SqlNetworkContract):
    users_client = True
    most_connections = 1
    test_i2_a_claim_that_is_granted_again_is_not_its_lease = None  # type: ignore[assignment]  # nothing commits it


@pytest.mark.matrix
class TestPymysqlUsersEngine(UsersEngine, LockProviderContract, ForkContract):
    driver = "mysql+pymysql"


class TestMysqlclientUsersEngine(UsersEngine, ForkContract):
    driver = "mysql+mysqldb"


class TestAiomysqlUsersEngine(UsersEngine, AsyncLockProviderContract):
    driver = "mysql+aiomysql"


class TestWithoutExtraColumns(MariaDbContract, ExclusionContract, HoldTimesContract):
    driver = "mysql+pymysql"
    extra_columns = False
