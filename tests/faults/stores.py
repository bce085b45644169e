"""The stores that scenarios run on, each a server of its own with a lock table (collection, key prefix) of its own."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from shedlock_py import AsyncLockProvider, LockProvider
from shedlock_py.providers.mongodb import AsyncMongoLockProvider, MongoLockProvider
from shedlock_py.providers.redis import (
    AsyncRedisLockProvider,
    AsyncRedisQuorumLockProvider,
    RedisLockProvider,
    RedisQuorumLockProvider,
)
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.support.availability import database_server, private_server, redis_endpoint
from tests.support.database import Address, DatabaseServer
from tests.support.mongodb import MongoServer, mongodb_endpoint
from tests.support.redis import RedisEndpoint, RedisServer

# What workers open, in their own processes

_PROVIDERS: dict[tuple[str, bool], Callable[..., Any]] = {
    ("sql", False): SqlAlchemyLockProvider,
    ("sql", True): AsyncSqlAlchemyLockProvider,
    ("redis", False): RedisLockProvider,
    ("redis", True): AsyncRedisLockProvider,
    ("quorum", False): RedisQuorumLockProvider,
    ("quorum", True): AsyncRedisQuorumLockProvider,
    ("mongodb", False): MongoLockProvider,
    ("mongodb", True): AsyncMongoLockProvider,
}


def open_provider(family: str, is_async: bool, where: Any, options: dict[str, Any]) -> LockProvider | AsyncLockProvider:
    """What ``Store.arguments`` describes."""
    provider: LockProvider | AsyncLockProvider = _PROVIDERS[family, is_async](where, **options)
    return provider


class Store(ABC):
    """One store, asked sync or async."""

    name: str
    family: str
    provider = "tests.faults.stores:open_provider"
    """What workers call with :meth:`arguments`; scenarios may put a variant of their own in its place."""

    def __init__(self, servers: Sequence[Any], options: dict[str, Any]) -> None:
        self.servers = list(servers)
        """What can be started, stopped, paused and killed; empty for SQLite."""
        self.options = options
        self.is_async = False
        self.prepare()

    def __str__(self) -> str:
        return self.name

    def sync(self) -> Store:
        self.is_async = False
        return self

    def asynchronous(self) -> Store:
        self.is_async = True
        return self

    @property
    def addresses(self) -> list[Address]:
        """Where a proxy can be put before: each of these, for one worker. Empty where there is no network."""
        return [server.address for server in self.servers]

    @abstractmethod
    def where(self, via: Sequence[Address]) -> Any:
        """The first argument of the provider; ``via`` proxies, if there are any."""

    def arguments(self, via: Sequence[Address] = ()) -> dict[str, Any]:
        """What ``self.provider`` is called with, in a worker."""
        return {"family": self.family, "is_async": self.is_async, "where": self.where(via), "options": self.options}

    def open(self) -> Any:
        """A sync provider in this process, without proxies; close it."""
        return open_provider(self.family, False, self._sync_where(), self.options)

    def _sync_where(self) -> Any:
        was, self.is_async = self.is_async, False
        try:
            return self.where(())
        finally:
            self.is_async = was

    def prepare(self) -> None:
        """Make the lock table, or whatever else must be there."""
        provider = self.open()
        provider.create_schema()
        provider.close()


class SqliteStore(Store):
    name = "sqlite"
    family = "sql"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "locks.db"
        super().__init__([], {})

    def where(self, via: Sequence[Address]) -> str:
        return f"sqlite:///{self._path}"


class SqlServerStore(Store):
    family = "sql"

    def __init__(self, server: DatabaseServer, name: str, drivers: tuple[str, str]) -> None:
        self.name = name
        self.server = server
        self._drivers = drivers
        super().__init__([server], {"table_name": f"faults_{uuid4().hex[:8]}"})

    def where(self, via: Sequence[Address]) -> str:
        return self.server.url(self._drivers[self.is_async], via=via[0] if via else None)


class RedisStore(Store):
    name = "redis"
    family = "redis"

    def __init__(self, server: RedisEndpoint) -> None:
        self.server = server
        super().__init__([server], {"key_prefix": f"faults-{uuid4().hex[:8]}"})

    def where(self, via: Sequence[Address]) -> str:
        return self.server.url(via=via[0] if via else None)


class QuorumStore(Store):
    name = "quorum"
    family = "quorum"

    def __init__(self, servers: Sequence[RedisServer]) -> None:
        super().__init__(servers, {"key_prefix": f"faults-{uuid4().hex[:8]}"})

    def where(self, via: Sequence[Address]) -> list[str]:
        through: list[Address | None] = [*via] or [None] * len(self.servers)
        return [server.url(via=address) for server, address in zip(self.servers, through, strict=True)]

    def prepare(self) -> None:
        provider = self.open()
        provider.start_new_quorum()
        provider.close()


class MongoStore(Store):
    name = "mongodb"
    family = "mongodb"

    def __init__(self, server: MongoServer) -> None:
        self.server = server
        super().__init__([server], {"collection": f"faults_{uuid4().hex[:8]}"})

    def where(self, via: Sequence[Address]) -> str:
        return self.server.url("faults", via=via[0] if via else None)


# From running servers, as the fixtures of tests/conftest.py start them


def postgres_store(server: DatabaseServer) -> Store:
    return SqlServerStore(server, "postgres", ("postgresql+psycopg", "postgresql+asyncpg"))


def mariadb_store(server: DatabaseServer) -> Store:
    return SqlServerStore(server, "mariadb", ("mysql+pymysql", "mysql+asyncmy"))


# With servers of their own, for `make faults`


@contextmanager
def _sqlite() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="shedlock-faults-") as directory:
        yield SqliteStore(Path(directory))


@contextmanager
def _postgres() -> Iterator[Store]:
    with database_server("postgres") as server:
        yield postgres_store(server)


@contextmanager
def _mariadb() -> Iterator[Store]:
    with database_server("mariadb") as server:
        yield mariadb_store(server)


@contextmanager
def _redis() -> Iterator[Store]:
    with redis_endpoint() as server:
        yield RedisStore(server)


@contextmanager
def _quorum() -> Iterator[Store]:
    with ExitStack() as stack:
        yield QuorumStore([stack.enter_context(private_server("redis", RedisServer)) for _ in range(3)])


@contextmanager
def _mongodb() -> Iterator[Store]:
    with mongodb_endpoint() as server:
        yield MongoStore(server)


OPEN: dict[str, Callable[[], AbstractContextManager[Store]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "redis": _redis,
    "quorum": _quorum,
    "mongodb": _mongodb,
}
"""By name: a store with a private server, for as long as the block lasts."""

ALL = tuple(OPEN)
WITH_NETWORK = tuple(name for name in ALL if name != "sqlite")
