"""One database on one server through one driver. Each test closes its providers at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import AsyncLockProvider, Lease, LockProvider
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.support.database import Address

Product = Literal["postgres", "mariadb", "mysql"]

T = TypeVar("T")

DATABASE = "tests_sql"

# The scheme selects the server. The contract also uses mysql:// for MariaDB, as most people do.
SYNC_DRIVERS = {
    "postgresql+psycopg": "postgres",
    "postgresql+psycopg2": "postgres",
    "mariadb+pymysql": "mariadb",
    "mariadb+mysqldb": "mariadb",
    "mysql+pymysql": "mysql",
    "mysql+mysqldb": "mysql",
}
ASYNC_DRIVERS = {
    "postgresql+psycopg_async": "postgres",
    "postgresql+asyncpg": "postgres",
    "mariadb+aiomysql": "mariadb",
    "mariadb+asyncmy": "mariadb",
    "mysql+aiomysql": "mysql",
    "mysql+asyncmy": "mysql",
}
DRIVERS = {**SYNC_DRIVERS, **ASYNC_DRIVERS}
SQLITE_DRIVERS = ("sqlite", "sqlite+aiosqlite")
# For tests where the driver makes no difference.
ONE_EACH = ("postgresql+psycopg", "mariadb+pymysql", "mysql+pymysql")
ONE_ASYNC_EACH = ("postgresql+asyncpg", "mariadb+asyncmy", "mysql+asyncmy")
USUAL_DRIVERS = (*ONE_EACH, *ONE_ASYNC_EACH, *SQLITE_DRIVERS)
KINDS = ("url", "engine")
"""A provider from a URL, or on a user's engine."""


def drivers_of(*products: Product) -> list[str]:
    """Return all drivers for these servers."""
    return [driver for driver, product in DRIVERS.items() if product in products]


def on_mysql_and_mariadb(*drivers: str) -> list[str]:
    """Return the schemes for tests that both servers share, for example ``on_mysql_and_mariadb("pymysql")``."""
    return [f"{scheme}+{driver}" for driver in drivers for scheme in ("mariadb", "mysql")]


def is_async(driver: str) -> bool:
    return driver in (*ASYNC_DRIVERS, "sqlite+aiosqlite")


def marks_of(
    driver: str, drivers: Iterable[str], *, programs: bool = False, mariadb: bool = False
) -> list[pytest.MarkDecorator]:
    """Marks that keep a test with this driver out of ``make test``, if the test runs with all these drivers.

    :param programs: the test covers only programs, which sync and async providers share.
    :param mariadb: MariaDB differs from MySQL here.
    """
    scheme = driver.partition("+")[0]
    usual = [other for other in drivers if other in USUAL_DRIVERS and other.partition("+")[0] == scheme]
    if driver not in USUAL_DRIVERS and any(programs or is_async(other) is is_async(driver) for other in usual):
        return [pytest.mark.matrix("the usual driver shows it")]
    if programs and is_async(driver) and not all(map(is_async, usual)):
        return [pytest.mark.matrix("the sync provider runs the same program")]
    if not mariadb and scheme == "mariadb" and driver.replace("mariadb", "mysql", 1) in drivers:
        return [pytest.mark.slow("MariaDB has the dialect of MySQL")]
    return []


def on(
    drivers: Iterable[str], *, kinds: Sequence[str] = (), programs: bool = False, mariadb: bool = False
) -> pytest.MarkDecorator:
    """Parametrize a test with drivers, each with its tier's mark: see :func:`marks_of`.

    :param kinds: repeat with these :data:`KINDS`. An engine makes the same difference on all databases.
    """
    drivers = list(drivers)
    marks = {driver: marks_of(driver, drivers, programs=programs, mariadb=mariadb) for driver in drivers}
    if not kinds:
        return pytest.mark.parametrize("driver", [pytest.param(driver, marks=marks[driver]) for driver in drivers])
    first = next(driver for driver in drivers if not marks[driver])
    params = []
    for driver in drivers:
        for kind in kinds:
            is_repeated = kind != kinds[0] and driver != first
            more = [pytest.mark.slow("a user's engine on another database")] if is_repeated else []
            params.append(pytest.param(driver, kind, marks=marks[driver] + more))
    return pytest.mark.parametrize(("driver", "kind"), params)


programs_on = partial(on, programs=True)


class SqliteFile:
    """Takes the place of a server."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def url(self, driver: str, _database: str | None = None, *, via: Address | None = None) -> str:
        return f"{driver}:///{self.path}"

    @contextmanager
    def connect(self, _database: str | None = None) -> Iterator[Connection]:
        engine = create_engine(f"sqlite:///{self.path}", poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            yield connection


@dataclass
class Store:
    server: Any
    """A :class:`DatabaseServer`, or a :class:`SqliteFile`."""
    driver: str
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def is_async(self) -> bool:
        return is_async(self.driver)

    @property
    def is_postgres(self) -> bool:
        return self.driver.startswith("postgresql")

    @property
    def is_mariadb(self) -> bool:
        return self.driver.startswith("mariadb")

    @property
    def is_sqlite(self) -> bool:
        return self.driver in SQLITE_DRIVERS

    def url(self, via: Address | None = None) -> str:
        url: str = self.server.url(self.driver, DATABASE, via=via)
        return url

    def provider(self, via: Address | None = None, *, url: str | None = None, **options: Any) -> LockProvider:
        """Open a provider from a URL. Wrap an async provider in a sync facade."""
        address = url or self.url(via)
        if self.is_async:
            return self.blocking(lambda: AsyncSqlAlchemyLockProvider(address, **options))
        provider = SqlAlchemyLockProvider(address, **options)
        self.stack.callback(provider.close)
        return provider

    def provider_of(self, kind: str, via: Address | None = None, *, url: str | None = None) -> LockProvider:
        """Open a provider from a URL or on an engine: ``kind`` is one of the :data:`KINDS`."""
        return self.provider(via, url=url) if kind == "url" else self.provider_of_engine(via, url=url)

    def provider_of_engine(self, via: Address | None = None, **options: Any) -> LockProvider:
        """Open a provider on an engine as a user makes it; see :class:`Application`."""
        return Application(self, via, **options).provider

    def blocking(self, make: Callable[[], AsyncLockProvider]) -> BlockingLockProvider:
        return self.stack.enter_context(BlockingLockProvider(make))

    def connect(self) -> AbstractContextManager[Connection]:
        """Connect past the provider, in autocommit."""
        connection: AbstractContextManager[Connection] = self.server.connect(DATABASE)
        return connection

    def query(self, sql: str, **values: Any) -> Any:
        """Return the first value of the first row."""
        with self.connect() as connection:
            return connection.execute(text(sql), values).scalar()

    def execute(self, *statements: str, **values: Any) -> int:
        """Return the number of rows that the last statement changed."""
        with self.connect() as connection:
            return [connection.execute(text(sql), values) for sql in statements][-1].rowcount

    @contextmanager
    def table(self) -> Iterator[str]:
        """Yield a table name, and drop the table afterwards."""
        name = f"t_{uuid4().hex[:12]}"
        try:
            yield name
        finally:
            self.execute(f"DROP TABLE IF EXISTS {name}")


class Application:
    """An application with an engine, and a provider on it. A sync facade wraps async providers."""

    engine: Any

    def __init__(
        self,
        store: Store,
        via: Address | None = None,
        *,
        url: str | None = None,
        options: dict[str, Any] | None = None,
        **engine_options: Any,
    ) -> None:
        address, provider_options = url or store.url(via), options or {}
        self._blocking: BlockingLockProvider | None = None
        self.provider: LockProvider
        if store.is_async:
            self.engine = create_async_engine(address, **engine_options)
            self.sync_engine: Engine = self.engine.sync_engine
            self.provider = self._blocking = store.blocking(
                lambda: AsyncSqlAlchemyLockProvider(self.engine, **provider_options)
            )
        else:
            self.engine = self.sync_engine = create_engine(address, **engine_options)
            self.provider = SqlAlchemyLockProvider(self.engine, **provider_options)
        store.stack.callback(self.dispose)

    def dispose(self) -> None:
        if self._blocking is None:
            self.engine.dispose()
        else:
            self._blocking.run(self.engine.dispose())

    def run(self, work: Callable[[Connection], T], *, commit: bool = True) -> T:
        """Return the result of ``work`` in a transaction of the application."""
        if self._blocking is not None:
            return self._blocking.run(self._run_async(work, commit))
        with self.engine.connect() as connection:
            result = work(connection)
            if commit:
                connection.commit()
        return result

    def run_verified(
        self,
        lease: Lease,
        work: Callable[[Connection], object],
        *,
        before_commit: Callable[[Connection], object] = lambda _: None,
        isolation_level: str | None = None,
    ) -> None:
        """Run ``work`` in a transaction that ends with ``verify(lease)``."""
        engine: Any = self.engine
        if isolation_level is not None:
            engine = engine.execution_options(isolation_level=isolation_level)
        if self._blocking is not None:
            self._blocking.run(self._run_verified_async(engine, lease, work, before_commit))
            return
        with engine.begin() as connection:
            work(connection)
            self.provider.verify(lease, connection)  # type: ignore[attr-defined]  # not in the protocol
            before_commit(connection)

    async def _run_verified_async(self, engine: Any, lease: Lease, work: Any, before_commit: Any) -> None:
        assert self._blocking is not None
        async with engine.begin() as connection:
            await connection.run_sync(work)
            await self._blocking.async_provider.verify(lease, connection)  # type: ignore[attr-defined]  # as above
            await connection.run_sync(before_commit)

    @contextmanager
    def connection_taken(self) -> Iterator[None]:
        """Take a connection of the application's pool."""
        if self._blocking is None:
            with self.engine.connect():
                yield
            return
        connection = self._blocking.run(self._connect())
        try:
            yield
        finally:
            self._blocking.run(connection.close())

    async def _connect(self) -> Any:
        return await self.engine.connect()

    async def _run_async(self, work: Callable[[Connection], T], commit: bool) -> T:
        async with self.engine.connect() as connection:
            result: T = await connection.run_sync(work)
            if commit:
                await connection.commit()
        return result


def is_waiting(store: Store) -> bool:
    """Whether a session waits for a row, of whichever table."""
    if store.is_postgres:
        return bool(store.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
    schema = "information_schema" if store.is_mariadb else "performance_schema"
    waits = f"{schema}.global_status WHERE variable_name = 'Innodb_row_lock_current_waits'"
    return int(store.query(f"SELECT variable_value FROM {waits}")) > 0


def run_program(provider: Any, program: Any) -> Any:
    """Run ``program`` with the provider's client, and return its result."""
    facade = getattr(provider, "async_provider", None)
    return provider._drive(program) if facade is None else provider.run(facade._drive(program))


def carry_out(provider: Any, command: Any) -> Any:
    """Return the reply to one command."""

    def program() -> Any:
        return (yield command)

    return run_program(provider, program())
