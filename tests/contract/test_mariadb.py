"""The contract on MariaDB."""

from __future__ import annotations

import pytest

from tests.contract import mysql_drivers as on
from tests.contract.sql import SqlServerContract


class MariaDb(SqlServerContract):
    server = "mariadb_server"


class TestPymysql(MariaDb, on.Pymysql): ...


class TestMysqlclient(MariaDb, on.Mysqlclient): ...


class TestAsyncmy(MariaDb, on.Asyncmy): ...


class TestAiomysql(MariaDb, on.Aiomysql): ...


class TestPymysqlUsersEngine(MariaDb, on.PymysqlUsersEngine): ...


@pytest.mark.matrix  # another driver for TestPymysqlUsersEngine
class TestMysqlclientUsersEngine(MariaDb, on.MysqlclientUsersEngine): ...


class TestAiomysqlUsersEngine(MariaDb, on.AiomysqlUsersEngine): ...


class TestWithoutExtraColumns(MariaDb, on.WithoutExtraColumns): ...


@pytest.mark.matrix  # MySQL has the same code
class TestPause(MariaDb, on.Pause): ...


@pytest.mark.matrix  # MySQL has the same code
class TestAsyncPause(MariaDb, on.AsyncPause): ...


class TestPauseWithoutExtraColumns(MariaDb, on.PauseWithoutExtraColumns): ...
