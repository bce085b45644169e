"""The contract through each driver for MySQL and MariaDB; a class of tests adds the server."""

from __future__ import annotations

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
from tests.contract.parts import AsyncClient, BeforeStore, OnStore, without
from tests.contract.sql import SqlServerContract


class MySqlOrMariaDb(SqlServerContract):
    admin_driver = "mysql+pymysql"
    driver = "mysql+pymysql"


class Pymysql(MySqlOrMariaDb, OnStore, NetworkContract, ForkContract): ...


@without(BeforeStore)
class AllWithPymysql(
    MySqlOrMariaDb, NetworkContract, LockProviderContract, HistoryContract, PauseContract, ForkContract
): ...


class Processes(MySqlOrMariaDb, ProcessContract): ...


class Asyncmy(MySqlOrMariaDb, AsyncClient, EventLoopContract):
    driver = "mysql+asyncmy"


class AsyncmyLostReplies(MySqlOrMariaDb, LostRepliesContract):
    driver = "mysql+asyncmy"


@without(Asyncmy, AsyncmyLostReplies)
class AsyncmyPrograms(
    MySqlOrMariaDb, NetworkContract, AsyncLockProviderContract, HistoryContract, AsyncPauseContract, ProcessContract
):
    driver = "mysql+asyncmy"


class Mysqlclient(MySqlOrMariaDb, NetworkContract, LockProviderContract, HistoryContract, ForkContract):
    driver = "mysql+mysqldb"


class Aiomysql(MySqlOrMariaDb, NetworkContract, AsyncLockProviderContract, HistoryContract, EventLoopContract):
    driver = "mysql+aiomysql"


class UsersEngine(MySqlOrMariaDb, LostRepliesContract, ThreadsContract, ForkContract):
    users_client = True
    most_connections = 1


class AllWithUsersEngine(MySqlOrMariaDb, NetworkContract, HistoryContract):
    users_client = True
    most_connections = 1
    test_i2_a_claim_that_is_granted_again_is_not_its_lease = None  # type: ignore[assignment]  # nothing commits it


@without(UsersEngine)
class PymysqlUsersEngine(AllWithUsersEngine, LockProviderContract): ...


class MysqlclientUsersEngine(AllWithUsersEngine, ForkContract):
    driver = "mysql+mysqldb"


class AiomysqlUsersEngine(AllWithUsersEngine, AsyncLockProviderContract):
    driver = "mysql+aiomysql"


class WithoutExtraColumns(MySqlOrMariaDb, ExclusionContract, HoldTimesContract):
    extra_columns = False


class PauseWithoutExtraColumns(MySqlOrMariaDb, PauseContract):
    extra_columns = False
    test_i11_a_pause_uses_up_no_fire_time = None  # type: ignore[assignment]  # the table has none
