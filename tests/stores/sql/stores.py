"""One database on one server, as seen through one driver; what is opened here is closed at the end of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import AsyncLockProvider, Lease, LockProvider, LockRecord, LockRequest
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.support.database import Address, DatabaseServer

Product = Literal["postgres", "mariadb"]

DATABASE = "tests_sql"

SYNC_DRIVERS = {
    "postgresql+psycopg": "postgres",
    "postgresql+psycopg2": "postgres",
    "mysql+pymysql": "mariadb",
    "mysql+mysqldb": "mariadb",
}
ASYNC_DRIVERS = {
    "postgresql+psycopg_async": "postgres",
    "postgresql+asyncpg": "postgres",
    "mysql+aiomysql": "mariadb",
    "mysql+asyncmy": "mariadb",
}
DRIVERS = {**SYNC_DRIVERS, **ASYNC_DRIVERS}
# Where the driver makes no difference.
ONE_EACH = ("postgresql+psycopg", "mysql+pymysql")
ONE_ASYNC_EACH = ("postgresql+asyncpg", "mysql+asyncmy")


@dataclass
class Store:
    server: DatabaseServer
    driver: str
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def is_async(self) -> bool:
        return self.driver in ASYNC_DRIVERS

    @property
    def is_postgres(self) -> bool:
        return self.driver.startswith("postgresql")

    def url(self, via: Address | None = None) -> str:
        return self.server.url(self.driver, DATABASE, via=via)

    def provider(self, via: Address | None = None, *, url: str | None = None, **options: Any) -> LockProvider:
        """From a URL; an async one is presented as a sync one."""
        address = url or self.url(via)
        if self.is_async:
            return self.blocking(lambda: AsyncSqlAlchemyLockProvider(address, **options))
        provider = SqlAlchemyLockProvider(address, **options)
        self.stack.callback(provider.close)
        return provider

    def provider_of_engine(
        self,
        via: Address | None = None,
        *,
        url: str | None = None,
        options: dict[str, Any] | None = None,
        **engine_options: Any,
    ) -> LockProvider:
        """From an engine as a user makes it."""
        address = url or self.url(via)
        if not self.is_async:
            engine = create_engine(address, **engine_options)
            self.stack.callback(engine.dispose)
            return SqlAlchemyLockProvider(engine, **(options or {}))
        async_engine = create_async_engine(address, **engine_options)
        provider = self.blocking(lambda: AsyncSqlAlchemyLockProvider(async_engine, **(options or {})))
        self.stack.callback(lambda: provider.run(async_engine.dispose()))
        return provider

    def blocking(self, make: Callable[[], AsyncLockProvider]) -> BlockingLockProvider:
        return self.stack.enter_context(BlockingLockProvider(make))

    def connect(self) -> AbstractContextManager[Connection]:
        """From the side, in autocommit."""
        return self.server.connect(DATABASE)

    def ask(self, sql: str, **values: Any) -> Any:
        """The first value of the first row."""
        with self.connect() as connection:
            return connection.execute(text(sql), values).scalar()

    def execute(self, *statements: str, **values: Any) -> int:
        """How many rows the last one changed."""
        with self.connect() as connection:
            return [connection.execute(text(sql), values) for sql in statements][-1].rowcount

    @contextmanager
    def table(self) -> Iterator[str]:
        """A name for a table, which is dropped afterwards."""
        name = f"t_{uuid4().hex[:12]}"
        try:
            yield name
        finally:
            self.execute(f"DROP TABLE IF EXISTS {name}")


def acquired(provider: LockProvider, name: str, at_most: str = "1m", **options: Any) -> Lease:
    """A lease on a lock that must be free."""
    lease = provider.acquire(LockRequest(name, at_most, **options))
    assert lease is not None, f"{name!r} should be free, but {provider.record(name)} has it"
    return lease


def record_of(provider: LockProvider, name: str) -> LockRecord:
    record = provider.record(name)
    assert record is not None
    return record
