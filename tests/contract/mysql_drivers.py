"""The contract through each driver for MySQL and MariaDB; a class of tests adds which of the two servers it is."""

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


class MySqlOrMariaDb(SqlServerContract):
    admin_driver = "mysql+pymysql"


class Pymysql(MySqlOrMariaDb, SqlNetworkContract, LockProviderContract, HistoryContract, ProcessContract, ForkContract):
    driver = "mysql+pymysql"


@pytest.mark.matrix
class Mysqlclient(MySqlOrMariaDb, SqlNetworkContract, LockProviderContract, HistoryContract, ForkContract):
    driver = "mysql+mysqldb"


class Asyncmy(
    MySqlOrMariaDb, SqlNetworkContract, AsyncLockProviderContract, HistoryContract, ProcessContract, EventLoopContract
):
    programs_in = Pymysql
    driver = "mysql+asyncmy"


@pytest.mark.matrix
class Aiomysql(MySqlOrMariaDb, SqlNetworkContract, AsyncLockProviderContract, HistoryContract, EventLoopContract):
    driver = "mysql+aiomysql"


class UsersEngine(MySqlOrMariaDb, SqlNetworkContract):
    users_client = True
    most_connections = 1
    test_i2_a_claim_that_is_granted_again_is_not_its_lease = None  # type: ignore[assignment]  # nothing commits it


class PymysqlUsersEngine(UsersEngine, LockProviderContract, HistoryContract, ForkContract):
    programs_in = Pymysql
    driver = "mysql+pymysql"


class MysqlclientUsersEngine(UsersEngine, HistoryContract, ForkContract):
    driver = "mysql+mysqldb"


class AiomysqlUsersEngine(UsersEngine, AsyncLockProviderContract, HistoryContract):
    programs_in = Pymysql
    driver = "mysql+aiomysql"


class WithoutExtraColumns(MySqlOrMariaDb, ExclusionContract, HoldTimesContract):
    driver = "mysql+pymysql"
    extra_columns = False


class Pause(MySqlOrMariaDb, PauseContract):
    driver = "mysql+pymysql"


class AsyncPause(MySqlOrMariaDb, AsyncPauseContract):
    driver = "mysql+asyncmy"


class PauseWithoutExtraColumns(MySqlOrMariaDb, PauseContract):
    driver = "mysql+pymysql"
    extra_columns = False
    test_i11_a_pause_uses_up_no_fire_time = None  # type: ignore[assignment]  # the table has none
