"""Transactions of an application, on connections that it opens with a driver. Each test closes them at its end."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from importlib import import_module
from typing import Any

from sqlalchemy import make_url

from shedlock_py import Lease
from tests.stores.sql.stores import Store
from tests.support.drivers import MODULES


class Transaction:
    """A transaction that has begun. An async connection is used on the event loop of the store's provider."""

    def __init__(self, store: Store, provider: Any, *, autocommit: bool = False, **options: Any) -> None:
        self._provider = provider
        self._is_async = store.is_async
        self._is_asyncpg = store.driver.endswith("asyncpg")
        self.connection = self.run(connect(store, autocommit, **options))
        store.stack.callback(lambda: self.run(self.connection.close()))
        self._ends_with: Any = self.connection
        if self._is_asyncpg and not autocommit:
            self._ends_with = self.connection.transaction()
            self.run(self._ends_with.start())

    def run(self, result: Any) -> Any:
        return self._provider.run(_awaited(result)) if inspect.isawaitable(result) else result

    def execute(self, sql: str) -> None:
        if self._is_async:
            self.run(self._execute(sql))
            return
        cursor = self.connection.cursor()
        cursor.execute(sql)
        cursor.close()

    async def _execute(self, sql: str) -> None:
        if self._is_asyncpg:
            await self.connection.execute(sql)
            return
        async with self.connection.cursor() as cursor:
            await cursor.execute(sql)

    def verify(self, lease: Lease) -> None:
        self._provider.verify(lease, self.connection)

    def commit(self) -> None:
        self.run(self._ends_with.commit())

    def rollback(self) -> None:
        self.run(self._ends_with.rollback())


def connect(store: Store, autocommit: bool, **options: Any) -> Any:
    """Return a connection of the store's driver, or an awaitable of it."""
    name = store.driver.partition("+")[2] or "pysqlite"
    module: Any = import_module(MODULES.get(name, name))
    url = make_url(store.url())
    if store.is_sqlite:
        level = None if autocommit else ""
        return module.connect(url.database, isolation_level=level, **options)
    database = "dbname" if "psycopg" in name else "db" if store.is_async and name != "asyncpg" else "database"
    address = {"host": url.host, "port": url.port, "user": url.username, "password": url.password or ""}
    options |= {**address, database: url.database}
    if name == "psycopg2":
        connection = module.connect(**options)
        connection.autocommit = autocommit
        return connection
    if name != "asyncpg":
        options["autocommit"] = autocommit
    return (module.AsyncConnection.connect if name == "psycopg_async" else module.connect)(**options)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
