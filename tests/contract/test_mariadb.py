"""The contract on MariaDB."""

from __future__ import annotations

import pytest

from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    ExclusionContract,
    HoldTimesContract,
    LockProviderContract,
    ProcessContract,
)
from tests.contract.sql import SqlContract
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
