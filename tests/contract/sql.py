"""What the contract needs to know about SQL stores: one table for a class of tests, two providers on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from sqlalchemy import AsyncAdaptedQueuePool, NullPool, create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import LockProvider
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from shedlock_py.testing.contract import BlockingLockProvider, LockProviderFactory, StallingStoreContract
from tests.support.polling import wait_until

ASYNC_DRIVERS = ("aiosqlite", "asyncpg", "psycopg_async", "asyncmy", "aiomysql")


class SqlStore:
    """A lock table of its own, and the providers of one class of tests."""

    def __init__(self, *, url: str, admin_url: str, is_async: bool, users_engine: bool, extra_columns: bool) -> None:
        self.url = url
        self.is_async = is_async
        self.table = f"shedlock_{uuid4().hex[:8]}"
        self._users_engine = users_engine
        self._options: dict[str, Any] = {"table_name": self.table, "extra_columns": extra_columns}
        self._admin = create_engine(admin_url, poolclass=NullPool)
        self._resources = ExitStack()
        self._providers: list[LockProvider] = []
        self.provider(0).create_schema()

    def provider(self, number: int) -> LockProvider:
        """The first provider, the second one, …; the same for all tests of the class, as in an application."""
        while len(self._providers) <= number:
            self._providers.append(self._open_async() if self.is_async else self._open())
        return self._providers[number]

    def _open(self) -> LockProvider:
        if not self._users_engine:
            provider = SqlAlchemyLockProvider(self.url, **self._options)
            self._resources.callback(provider.close)
            return provider
        # With one connection in the pool, whatever keeps one while it asks for another stands still.
        engine = create_engine(self.url, pool_size=1, max_overflow=0)
        self._resources.callback(engine.dispose)
        return SqlAlchemyLockProvider(engine, **self._options)

    def _open_async(self) -> LockProvider:
        if not self._users_engine:
            return self._resources.enter_context(
                BlockingLockProvider(lambda: AsyncSqlAlchemyLockProvider(self.url, **self._options))
            )
        engine = create_async_engine(self.url, poolclass=AsyncAdaptedQueuePool, pool_size=1, max_overflow=0)
        facade = self._resources.enter_context(
            BlockingLockProvider(lambda: AsyncSqlAlchemyLockProvider(engine, **self._options))
        )
        self._resources.callback(lambda: facade.run(engine.dispose()))
        return facade

    @property
    def factory(self) -> Callable[[], Any]:
        """The same store in another process."""
        return partial(
            AsyncSqlAlchemyLockProvider if self.is_async else SqlAlchemyLockProvider, self.url, **self._options
        )

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
        self._resources.close()
        with self._admin.begin() as connection:
            connection.execute(text(f"DROP TABLE {self.table}"))


class SqlContract(StallingStoreContract):
    """The hooks of the contract for a SQL store; subclasses say where it is."""

    driver: ClassVar[str]
    users_engine: ClassVar[bool] = False
    extra_columns: ClassVar[bool] = True

    @pytest.fixture(autouse=True)
    def _remember(self, store: SqlStore) -> None:
        self.store = store

    @classmethod
    def urls(cls, request: pytest.FixtureRequest) -> tuple[str, str]:
        """The URL for the driver under test, and one for the tests' own look at the database."""
        raise NotImplementedError

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> SqlStore:
        url, admin_url = cls.urls(request)
        return SqlStore(
            url=url,
            admin_url=admin_url,
            is_async=cls.is_async(),
            users_engine=cls.users_engine,
            extra_columns=cls.extra_columns,
        )

    @classmethod
    def is_async(cls) -> bool:
        return make_url(f"{cls.driver}://").get_driver_name() in ASYNC_DRIVERS

    @pytest.fixture
    def make_provider(self, store: SqlStore) -> LockProviderFactory:
        numbers = iter(range(10))
        return lambda: store.provider(next(numbers))

    @pytest.fixture
    def process_factory(self, store: SqlStore) -> Any:
        return store.factory

    @pytest.fixture
    def unreachable_url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def failing_provider(self, unreachable_url: str) -> Iterator[LockProvider]:
        if self.is_async():
            before = set(threading.enumerate())
            with BlockingLockProvider(lambda: AsyncSqlAlchemyLockProvider(unreachable_url)) as facade:
                yield facade
                # aiosqlite ends the thread of a failed connect without waiting; it must find the event loop open.
                wait_until(lambda: not any("_connection_worker" in t.name for t in {*threading.enumerate()} - before))
        else:
            provider = SqlAlchemyLockProvider(unreachable_url)
            yield provider
            provider.close()

    def delete_record(self, provider: LockProvider, name: str) -> None:
        self.store.delete(name)

    def stalled(self, name: str) -> Any:
        return self.store.stalled(name)
