"""The contract on SQLite: a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from shedlock_py.testing.contract.threads import ThreadsContract
from tests.contract.parts import MANY_PROCESSES, SAME_PROGRAMS, SAME_STATEMENTS, AsyncClient, without
from tests.contract.sql import SqlContract
from tests.contract.stores import ContractStore


class SqliteContract(SqlContract):
    @classmethod
    def urls(cls, request: pytest.FixtureRequest) -> tuple[str, str]:
        directories: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        path = directories.mktemp("sqlite") / "locks.db"
        return f"{cls.driver}:///{path}", f"sqlite:///{path}"

    @pytest.fixture
    def unreachable(self, tmp_path: Path) -> str:
        return f"{self.driver}:///{tmp_path}/no/such/directory/locks.db"


class TestSqlite3(SqliteContract, LockProviderContract, HistoryContract, PauseContract):
    driver = "sqlite"


class TestAiosqlite(SqliteContract, AsyncClient):
    driver = "sqlite+aiosqlite"


@pytest.mark.matrix(SAME_PROGRAMS)
@without(TestAiosqlite)
class TestAiosqlitePrograms(
    SqliteContract, AsyncLockProviderContract, HistoryContract, AsyncPauseContract, ProcessContract
):
    driver = "sqlite+aiosqlite"


@pytest.mark.not_quick("starts processes")
class TestForks(SqliteContract, ForkContract):
    driver = "sqlite"


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(SqliteContract, ProcessContract):
    driver = "sqlite"


@pytest.mark.not_quick("starts processes")
class TestAiosqliteEventLoops(SqliteContract, EventLoopContract):
    driver = "sqlite+aiosqlite"

    @pytest.fixture
    def make_loop_provider(self, store: ContractStore) -> Any:
        facade: Any = store.provider(0)
        facade.run(facade.async_provider.close())  # a child is rejected if its parent has the file open
        return store.factory


@pytest.mark.slow("PostgreSQL and Redis try users' clients")
class TestUsersEngine(SqliteContract, ThreadsContract, ForkContract):
    driver = "sqlite"
    users_client = True


@pytest.mark.matrix(SAME_STATEMENTS)
@without(TestUsersEngine)
class TestAllWithUsersEngine(SqliteContract, LockProviderContract, HistoryContract):
    driver = "sqlite"
    users_client = True


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAiosqliteUsersEngine(SqliteContract, AsyncLockProviderContract, HistoryContract):
    driver = "sqlite+aiosqlite"
    users_client = True


class TestWithoutExtraColumns(SqliteContract, ExclusionContract, HoldTimesContract):
    driver = "sqlite"
    extra_columns = False
