"""The contract on MySQL."""

from __future__ import annotations

import pytest

from tests.contract import mysql_drivers as on
from tests.contract.parts import AS_POSTGRESQL, MANY_PROCESSES, SAME_PROGRAMS, SAME_STATEMENTS, without
from tests.contract.sql import SqlServerContract


class MySql(SqlServerContract):
    server = "mysql_server"


class TestPymysql(MySql, on.Pymysql): ...


@pytest.mark.slow(AS_POSTGRESQL)
@without(TestPymysql)
class TestAllWithPymysql(MySql, on.AllWithPymysql): ...


class TestAsyncmy(MySql, on.Asyncmy): ...


@pytest.mark.slow(AS_POSTGRESQL)
class TestAsyncmyLostReplies(MySql, on.AsyncmyLostReplies): ...


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncmyPrograms(MySql, on.AsyncmyPrograms): ...


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(MySql, on.Processes): ...


@pytest.mark.matrix(SAME_STATEMENTS)
class TestMysqlclient(MySql, on.Mysqlclient): ...


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAiomysql(MySql, on.Aiomysql): ...


@pytest.mark.slow("PostgreSQL and Redis try users' clients")
class TestUsersEngine(MySql, on.UsersEngine): ...


@pytest.mark.matrix(SAME_STATEMENTS)
class TestPymysqlUsersEngine(MySql, on.PymysqlUsersEngine): ...


@pytest.mark.matrix(SAME_STATEMENTS)
class TestMysqlclientUsersEngine(MySql, on.MysqlclientUsersEngine): ...


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAiomysqlUsersEngine(MySql, on.AiomysqlUsersEngine): ...


@pytest.mark.slow("SQLite tries the same statements")
class TestWithoutExtraColumns(MySql, on.WithoutExtraColumns): ...


@pytest.mark.slow("SQLite tries the same statements")
class TestPauseWithoutExtraColumns(MySql, on.PauseWithoutExtraColumns): ...
