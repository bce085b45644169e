"""SQL stores for the contract: a table for each class of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from sqlalchemy import AsyncAdaptedQueuePool, NullPool, create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from shedlock_py.testing.contract import StallingStoreContract
from shedlock_py.testing.proxy import Address
from tests.contract.stores import ContractStore, StoreContract
from tests.support.database import DatabaseServer
from tests.support.ports import free_port

ASYNC_DRIVERS = ("aiosqlite", "asyncpg", "psycopg_async", "asyncmy", "aiomysql")


class SqlStore(ContractStore):
    """A lock table for one class of tests."""

    def __init__(self, url: str, admin_url: str, *, users_engine: bool, extra_columns: bool) -> None:
        is_async = make_url(url).get_driver_name() in ASYNC_DRIVERS
        self.table = f"shedlock_{uuid4().hex[:8]}"
        self._users_engine = users_engine
        self._admin = create_engine(admin_url, poolclass=NullPool)
        kind = AsyncSqlAlchemyLockProvider if is_async else SqlAlchemyLockProvider
        super().__init__(kind, url, {"table_name": self.table, "extra_columns": extra_columns})
        self.provider(0).create_schema()

    @property
    def address(self) -> Address:
        url = make_url(self.place)
        return str(url.host), int(url.port or 0)

    def maker(self, via: Address | None) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
        url, options = self.place, self.options
        if via is not None:
            url = make_url(url).set(host=via[0], port=via[1]).render_as_string(hide_password=False)
        if not self._users_engine:
            # A long limit for a herd on a machine that runs other tests.
            return partial(self.kind, url, **options if via is None else {**options, "timeout": "20s"}), None
        # With one pooled connection, a provider that keeps a connection while it takes another hangs.
        engine: Any = (
            create_async_engine(url, poolclass=AsyncAdaptedQueuePool, pool_size=1, max_overflow=0)
            if self.is_async
            else create_engine(url, pool_size=1, max_overflow=0)
        )
        return partial(self.kind, engine, **options), engine.dispose

    def open_with_history(self, resources: ExitStack, history: Any, via: Address | None = None) -> Any:
        twin = copy(self)
        twin.options = {**self.options, "history": history}
        return twin.open(resources, via)

    def delete(self, name: str) -> None:
        with self._admin.begin() as connection:
            connection.execute(text(f"DELETE FROM {self.table} WHERE name = :name"), {"name": name})

    @contextmanager
    def stalled(self, name: str) -> Iterator[None]:
        with self._admin.connect() as connection:
            connection.execute(
                text(f"UPDATE {self.table} SET locked_by = locked_by WHERE name = :name"), {"name": name}
            )
            yield
            connection.rollback()

    def close(self) -> None:
        super().close()
        with self._admin.begin() as connection:
            connection.execute(text(f"DROP TABLE {self.table}"))
            connection.execute(text(f"DROP TABLE IF EXISTS {self.table}_runs"))


class SqlContract(StoreContract, StallingStoreContract):
    """Subclasses name the database and the driver."""

    driver: ClassVar[str]
    extra_columns: ClassVar[bool] = True

    @classmethod
    def urls(cls, request: pytest.FixtureRequest) -> tuple[str, str]:
        """Return two URLs of the database: for the driver under test, and for the tests' own connections."""
        raise NotImplementedError

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> SqlStore:
        return SqlStore(*cls.urls(request), users_engine=cls.users_client, extra_columns=cls.extra_columns)

    @pytest.fixture
    def make_history_provider(self, store: SqlStore) -> Iterator[Callable[[Any], Any]]:
        with ExitStack() as resources:
            yield lambda history: store.open_with_history(resources, history)


class SqlServerContract(SqlContract):
    """Subclasses name the server."""

    server: ClassVar[str]
    """Name of the server's fixture."""
    admin_driver: ClassVar[str]
    most_connections: ClassVar[int] = 5

    @classmethod
    def urls(cls, request: pytest.FixtureRequest) -> tuple[str, str]:
        server: DatabaseServer = request.getfixturevalue(cls.server)
        return server.url(cls.driver), server.url(cls.admin_driver)

    @pytest.fixture
    def unreachable(self, request: pytest.FixtureRequest) -> str:
        server: DatabaseServer = request.getfixturevalue(self.server)
        return server.url(self.driver, via=("127.0.0.1", free_port()))
