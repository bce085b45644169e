"""The contract on MySQL."""

from __future__ import annotations

import pytest

from tests.contract import mysql_drivers as on
from tests.contract.sql import SqlServerContract


class MySql(SqlServerContract):
    server = "mysql_server"


class TestPymysql(MySql, on.Pymysql): ...


class TestMysqlclient(MySql, on.Mysqlclient): ...


class TestAsyncmy(MySql, on.Asyncmy): ...


class TestAiomysql(MySql, on.Aiomysql): ...


@pytest.mark.matrix  # MariaDB has the same code
class TestPymysqlUsersEngine(MySql, on.PymysqlUsersEngine): ...


@pytest.mark.matrix  # MariaDB has the same code
class TestMysqlclientUsersEngine(MySql, on.MysqlclientUsersEngine): ...


@pytest.mark.matrix  # MariaDB has the same code
class TestAiomysqlUsersEngine(MySql, on.AiomysqlUsersEngine): ...


@pytest.mark.matrix  # MariaDB has the same code
class TestWithoutExtraColumns(MySql, on.WithoutExtraColumns): ...


class TestPause(MySql, on.Pause): ...


class TestAsyncPause(MySql, on.AsyncPause):
    programs_in = TestPause


@pytest.mark.matrix  # MariaDB has the same code
class TestPauseWithoutExtraColumns(MySql, on.PauseWithoutExtraColumns): ...
