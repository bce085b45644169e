"""The contract on SQLite: a file."""

from __future__ import annotations

from pathlib import Path

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
from tests.contract.sql import SqlContract


class SqliteContract(SqlContract):
    @classmethod
    def urls(cls, request: pytest.FixtureRequest) -> tuple[str, str]:
        directories: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        path = directories.mktemp("sqlite") / "locks.db"
        return f"{cls.driver}:///{path}", f"sqlite:///{path}"

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> str:
        return f"{self.driver}:///{tmp_path}/no/such/directory/locks.db"


class TestSqlite3(SqliteContract, LockProviderContract, ProcessContract, ForkContract):
    driver = "sqlite"


class TestSqlite3UsersEngine(SqliteContract, LockProviderContract, ForkContract):
    driver = "sqlite"
    users_client = True


class TestAiosqlite(SqliteContract, AsyncLockProviderContract, ProcessContract):
    driver = "sqlite+aiosqlite"


class TestAiosqliteEventLoops(SqliteContract, EventLoopContract):
    driver = "sqlite+aiosqlite"  # alone: no process may fork while a connection to SQLite is open


class TestAiosqliteUsersEngine(SqliteContract, AsyncLockProviderContract):
    driver = "sqlite+aiosqlite"
    users_client = True


class TestWithoutExtraColumns(SqliteContract, ExclusionContract, HoldTimesContract):
    driver = "sqlite"
    extra_columns = False
