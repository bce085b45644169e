"""The contract on MariaDB, which speaks MySQL's dialect."""

from __future__ import annotations

import pytest

from shedlock_py.testing.contract import HistoryContract
from tests.contract import mysql_drivers as on
from tests.contract.parts import SAME_PROGRAMS, SAME_STATEMENTS, OnStore, without
from tests.contract.sql import SqlServerContract

AS_MYSQL = "MySQL shows it with the same statements"


class MariaDb(SqlServerContract):
    server = "mariadb_server"


class TestPymysql(MariaDb, on.MySqlOrMariaDb, OnStore, HistoryContract): ...


@pytest.mark.matrix(AS_MYSQL)
@without(TestPymysql)
class TestAllWithPymysql(MariaDb, on.AllWithPymysql): ...


@pytest.mark.matrix(AS_MYSQL)
class TestProcesses(MariaDb, on.Processes): ...


@pytest.mark.matrix(AS_MYSQL)
class TestAsyncmy(MariaDb, on.Asyncmy): ...


@pytest.mark.matrix(AS_MYSQL)
class TestAsyncmyLostReplies(MariaDb, on.AsyncmyLostReplies): ...


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncmyPrograms(MariaDb, on.AsyncmyPrograms): ...


@pytest.mark.matrix(SAME_STATEMENTS)
class TestMysqlclient(MariaDb, on.Mysqlclient): ...


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAiomysql(MariaDb, on.Aiomysql): ...


@pytest.mark.matrix(AS_MYSQL)
class TestUsersEngine(MariaDb, on.UsersEngine): ...


@pytest.mark.matrix(SAME_STATEMENTS)
class TestPymysqlUsersEngine(MariaDb, on.PymysqlUsersEngine): ...


@pytest.mark.matrix(SAME_STATEMENTS)
class TestMysqlclientUsersEngine(MariaDb, on.MysqlclientUsersEngine): ...


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAiomysqlUsersEngine(MariaDb, on.AiomysqlUsersEngine): ...


@pytest.mark.matrix(AS_MYSQL)
class TestWithoutExtraColumns(MariaDb, on.WithoutExtraColumns): ...


@pytest.mark.matrix(AS_MYSQL)
class TestPauseWithoutExtraColumns(MariaDb, on.PauseWithoutExtraColumns): ...
