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

from shedlock_py import AsyncLockProvider, LockProvider
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from shedlock_py.testing.contract import (
    BlockingLockProvider,
    LockProviderFactory,
    NetworkContract,
    StallingStoreContract,
)
from shedlock_py.testing.proxy import Address, TcpProxy
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
            self._providers.append(self.open(self._resources))
        return self._providers[number]

    def open(self, resources: ExitStack, via: Address | None = None) -> LockProvider:
        """Another provider, which is closed with ``resources``."""
        url = self.url
        if via is not None:
            url = make_url(url).set(host=via[0], port=via[1]).render_as_string(hide_password=False)
        # A long limit for a herd on a machine that runs other tests.
        options = self._options if via is None else {**self._options, "timeout": "20s"}
        if not self._users_engine:
            if self.is_async:
                return resources.enter_context(
                    BlockingLockProvider(lambda: AsyncSqlAlchemyLockProvider(url, **options))
                )
            provider = SqlAlchemyLockProvider(url, **options)
            resources.callback(provider.close)
            return provider
        # With one connection in the pool, a provider that keeps one while it takes another hangs.
        if not self.is_async:
            engine = create_engine(url, pool_size=1, max_overflow=0)
            resources.callback(engine.dispose)
            return SqlAlchemyLockProvider(engine, **self._options)
        async_engine = create_async_engine(url, poolclass=AsyncAdaptedQueuePool, pool_size=1, max_overflow=0)
        facade = resources.enter_context(
            BlockingLockProvider(lambda: AsyncSqlAlchemyLockProvider(async_engine, **self._options))
        )
        resources.callback(lambda: facade.run(async_engine.dispose()))
        return facade

    def async_provider(self) -> AsyncSqlAlchemyLockProvider:
        return AsyncSqlAlchemyLockProvider(self.url, **self._options)

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
        """The URL for the driver under test, and one for the tests' own connections to the database."""
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
    def proxy(self, store: SqlStore) -> Iterator[TcpProxy]:
        url = make_url(store.url)
        with TcpProxy((str(url.host), int(url.port or 0))) as proxy:
            yield proxy

    @pytest.fixture
    def make_proxied_provider(self, store: SqlStore, proxy: TcpProxy) -> Iterator[LockProviderFactory]:
        with ExitStack() as resources:
            yield lambda: store.open(resources, via=proxy.address)

    @pytest.fixture
    def make_loop_provider(self, store: SqlStore) -> Callable[[], AsyncLockProvider]:
        return store.async_provider

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


class SqlNetworkContract(SqlContract, NetworkContract):
    """SQL stores behind a network."""

    @pytest.mark.parametrize("at_least", ["0s"])
    def test_i4_an_extension_that_arrives_after_the_release_changes_nothing(
        self, proxied_provider: LockProvider, provider: LockProvider, proxy: TcpProxy, name: str, at_least: str
    ) -> None:
        """Not during a minimum hold: the record does not show that the lease was released."""
        super().test_i4_an_extension_that_arrives_after_the_release_changes_nothing(
            proxied_provider, provider, proxy, name, at_least
        )
