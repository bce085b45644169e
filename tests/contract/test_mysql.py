"""The contract on MySQL."""

from __future__ import annotations

from tests.contract import mysql_drivers as on
from tests.contract.sql import SqlServerContract


class MySql(SqlServerContract):
    server = "mysql_server"


class TestPymysql(MySql, on.Pymysql): ...


class TestMysqlclient(MySql, on.Mysqlclient): ...


class TestAsyncmy(MySql, on.Asyncmy): ...


class TestAiomysql(MySql, on.Aiomysql): ...


class TestPymysqlUsersEngine(MySql, on.PymysqlUsersEngine): ...


class TestMysqlclientUsersEngine(MySql, on.MysqlclientUsersEngine): ...


class TestAiomysqlUsersEngine(MySql, on.AiomysqlUsersEngine): ...


class TestWithoutExtraColumns(MySql, on.WithoutExtraColumns): ...
