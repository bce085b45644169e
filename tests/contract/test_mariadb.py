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
from tests.contract.sql import SqlContract, SqlNetworkContract
from tests.support.database import DatabaseServer
from tests.support.ports import free_port


class MariaDbContract(SqlContract):
    @classmethod
    def urls(cls, request: pytest.FixtureRequest) -> tuple[str, str]:
        server: DatabaseServer = request.getfixturevalue("mariadb_server")
        return server.url(cls.driver), server.url("mysql+pymysql")

    @pytest.fixture
    def unreachable_url(self, mariadb_server: DatabaseServer) -> str:
        return mariadb_server.url(self.driver, via=("127.0.0.1", free_port()))


class TestPymysql(MariaDbContract, LockProviderContract, ProcessContract):
    driver = "mysql+pymysql"


class TestPymysqlUsersEngine(MariaDbContract, LockProviderContract):
    driver = "mysql+pymysql"
    users_engine = True


class TestMysqlclient(MariaDbContract, LockProviderContract):
    driver = "mysql+mysqldb"


class TestAsyncmy(MariaDbContract, AsyncLockProviderContract, ProcessContract):
    driver = "mysql+asyncmy"


class TestAiomysql(MariaDbContract, AsyncLockProviderContract):
    driver = "mysql+aiomysql"


class TestAiomysqlUsersEngine(MariaDbContract, AsyncLockProviderContract):
    driver = "mysql+aiomysql"
    users_engine = True


class TestWithoutExtraColumns(MariaDbContract, ExclusionContract, HoldTimesContract):
    driver = "mysql+pymysql"
    extra_columns = False


class TestPymysqlNetwork(MariaDbContract, SqlNetworkContract, ForkContract):
    driver = "mysql+pymysql"
    most_connections = 5


class TestMysqlclientNetwork(MariaDbContract, SqlNetworkContract, ForkContract):
    driver = "mysql+mysqldb"
    most_connections = 5


class TestAsyncmyNetwork(MariaDbContract, SqlNetworkContract, EventLoopContract):
    driver = "mysql+asyncmy"
    most_connections = 5


class TestAiomysqlNetwork(MariaDbContract, SqlNetworkContract, EventLoopContract):
    driver = "mysql+aiomysql"
    most_connections = 5


class UsersEngineNetwork(MariaDbContract, SqlNetworkContract):
    users_engine = True
    most_connections = 1
    test_i2_a_claim_that_is_granted_again_is_not_its_lease = None  # type: ignore[assignment]  # nothing commits it


class TestPymysqlUsersEngineNetwork(UsersEngineNetwork, ForkContract):
    driver = "mysql+pymysql"


class TestMysqlclientUsersEngineNetwork(UsersEngineNetwork, ForkContract):
    driver = "mysql+mysqldb"


class TestAiomysqlUsersEngineNetwork(UsersEngineNetwork):
    driver = "mysql+aiomysql"
