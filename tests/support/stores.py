"""One class for each store, and an entry in :data:`STORES` that parametrises suites which run on every store.

A :class:`Store` has its own lock records (a table, a collection, a key prefix) on a server that tests share, or on a
private server. The package's own list, ``shedlock_py/model/stores.py``, has the other facts.
"""

from __future__ import annotations

import sqlite3
import tempfile
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from kazoo.exceptions import NoNodeError, NotEmptyError
from sqlalchemy import Connection, NullPool, create_engine

from shedlock_py import LockProvider
from shedlock_py.model import stores as package
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.support.availability import database_server, private_server, redis_endpoint
from tests.support.aws import parse_models_once
from tests.support.azblob import AzuriteServer
from tests.support.database import Address, DatabaseServer, ExternalLife
from tests.support.dynamodb import DynamoDBServer
from tests.support.etcd import EtcdServer
from tests.support.kubernetes import KubernetesServer, in_write, kubernetes_server
from tests.support.mongodb import MongoServer, PrivateMongoServer, mongodb_endpoint
from tests.support.nats import NatsServer
from tests.support.redis import RedisEndpoint, RedisServer
from tests.support.s3 import S3Server
from tests.support.servers import MariaDbServer, MySqlServer, PostgresServer
from tests.support.versions import record
from tests.support.zookeeper import ZooKeeperServer


def open_provider(provider_class: str, is_async: bool, where: Any, options: dict[str, Any]) -> Any:
    """Open a provider from :meth:`Store.arguments`, in any process. Import the client of one store, not all clients."""
    module, _, name = provider_class.partition(":")
    found = getattr(import_module(f"shedlock_py.providers.{module}"), f"{'Async' if is_async else ''}{name}")
    return found(where, **options)


class Store(ABC):
    """A store, used through sync or async providers, as :attr:`is_async` says."""

    name: str
    """The key in :data:`STORES`."""
    most_connections = 0
    """The limit per process that docs/providers promise for a provider from a URL. 0 without a network."""
    provider_reference = "tests.support.stores:open_provider"
    """The function that other processes call with :meth:`arguments`."""
    kept_longer = 0.0
    """Seconds that it may keep a lease longer than requested, besides a round trip: it has to guess its own time."""

    def __init__(self, servers: Sequence[Any], options: dict[str, Any]) -> None:
        self.servers = list(servers)
        """Servers that tests start, stop, pause and kill; empty for a file."""
        self.options = options
        self.is_async = False
        self.prepare()

    def __str__(self) -> str:
        return self.name

    @property
    def kind(self) -> str:
        return "async" if self.is_async else "sync"

    def sync(self) -> Store:
        self.is_async = False
        return self

    def asynchronous(self) -> Store:
        self.is_async = True
        return self

    def like(self, other: Store) -> Self:
        """Return the same store with the provider kind, sync or async, of another store."""
        self.is_async = other.is_async
        return self

    @property
    def provider_class(self) -> str:
        """The module in ``shedlock_py.providers`` and the sync class: ``redis:RedisLockProvider``."""
        facts = STORES[self.name].facts
        return f"{facts.module}:{facts.class_name}"

    @property
    def addresses(self) -> list[Address]:
        """The addresses that a proxy can stand in front of. Empty without a network."""
        return [server.address for server in self.servers]

    @property
    def direct_addresses(self) -> list[Address]:
        """The addresses that a provider without a proxy connects to."""
        return self.addresses

    reads_to_acquire = 0
    """How many requests that :meth:`in_write` matches come before the request that grants the lock."""
    reads_to_take_over = 1
    """The same for a take-over."""

    def in_write(self, name: str) -> str:
        """Return a text in each request that writes the record of ``name``. Other requests may have it too."""
        return name

    @abstractmethod
    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> Any:
        """Return the first argument of the provider; ``via`` proxies, if given."""

    def arguments(self, via: Sequence[Address] = ()) -> dict[str, Any]:
        return {
            "provider_class": self.provider_class,
            "is_async": self.is_async,
            "where": self.where(via),
            "options": self.options,
        }

    def open(self) -> Any:
        return open_provider(self.provider_class, False, self.where(is_async=False), self.options)

    def open_async(self) -> Any:
        return open_provider(self.provider_class, True, self.where(is_async=True), self.options)

    @contextmanager
    def provider(self, via: Sequence[Address] = (), **options: Any) -> Iterator[LockProvider]:
        """Open a provider of the kind that :attr:`is_async` says. A sync facade covers an async provider."""
        arguments = self.arguments(via) | {"options": {**self.options, **options}}
        if self.is_async:
            make: Any = partial(open_provider, **arguments)
            with BlockingLockProvider(make) as facade:
                yield facade
            return
        provider: Any = open_provider(**arguments)
        try:
            yield provider
        finally:
            provider.close()

    def prepare(self) -> None:
        """Create the lock table, or whatever else the store needs."""
        options = {**self.options, "timeout": "60s"}  # the disk may be busy
        provider = open_provider(self.provider_class, False, self.where(is_async=False), options)
        provider.create_schema()
        provider.close()

    def delete_all(self) -> None:
        raise NotImplementedError

    def drop(self) -> None:
        """Delete the store too, where it is more than its records: a table or collection, or all of a Redis."""
        self.delete_all()


class SqlStore(Store):
    @property
    def table(self) -> str:
        return str(self.options.get("table_name", "shedlock"))

    def delete_all(self) -> None:
        with self.connect() as connection:
            connection.exec_driver_sql(f"DELETE FROM {self.table}")

    def drop(self) -> None:
        with self.connect() as connection:
            connection.exec_driver_sql(f"DROP TABLE {self.table}")

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        engine = create_engine(self.where(is_async=False), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            yield connection


class SqliteStore(SqlStore):
    name = "sqlite"

    def __init__(self, directory: Path, drivers: tuple[str, str] = ("sqlite", "sqlite")) -> None:
        self.path = directory / "locks.db"
        self._drivers = drivers
        super().__init__([], {})

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> str:
        return f"{self._drivers[self.is_async if is_async is None else is_async]}:///{self.path}"


class SqlServerStore(SqlStore):
    """``drivers``: a sync driver and an async driver."""

    most_connections = 5

    def __init__(self, server: DatabaseServer, name: str, drivers: tuple[str, str]) -> None:
        self.name = name
        self.server = server
        self._drivers = drivers
        super().__init__([server], {"table_name": f"locks_{uuid4().hex[:8]}"})

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> str:
        driver = self._drivers[self.is_async if is_async is None else is_async]
        return self.server.url(driver, via=via[0] if via else None)


class RedisStore(Store):
    name = "redis"
    most_connections = 20

    def __init__(self, server: RedisEndpoint) -> None:
        self.server = server
        super().__init__([server], {"key_prefix": f"locks-{uuid4().hex[:8]}"})

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> str:
        return self.server.url(via=via[0] if via else None)

    def delete_all(self) -> None:
        with self.server.client() as client:
            keys = list(client.scan_iter(f"{self.options['key_prefix']}*"))
            if keys:
                client.delete(*keys)

    def drop(self) -> None:
        with self.server.client() as client:
            client.flushall()
            client.script_flush()


class QuorumStore(Store):
    name = "quorum"
    most_connections = 60
    reads_to_acquire = 1

    def __init__(self, servers: Sequence[RedisServer], **options: Any) -> None:
        super().__init__(servers, {"key_prefix": f"locks-{uuid4().hex[:8]}", **options})

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> list[str]:
        through: list[Address | None] = [*via] or [None] * len(self.servers)
        return [server.url(via=address) for server, address in zip(self.servers, through, strict=True)]

    def prepare(self) -> None:
        provider = self.open()
        provider.start_new_quorum()
        provider.close()


class MongoStore(Store):
    name = "mongodb"
    most_connections = 22  # two of them watch the server
    database = "locks"

    def __init__(self, server: MongoServer) -> None:
        self.server = server
        super().__init__([server], {"collection": f"locks_{uuid4().hex[:8]}"})

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> str:
        return self.server.url(self.database, via=via[0] if via else None)

    def delete_all(self) -> None:
        with self.server.connect() as client:
            client[self.database][self.options["collection"]].delete_many({})

    def drop(self) -> None:
        # During upserts, SecantusDB 0.7.0b3 may end with two documents of one _id, even without this library (3 of 129
        # tries). We think that one trial therefore ended with a lock that nobody got.
        with self.server.connect() as client:
            client[self.database][self.options["collection"]].drop()


class EtcdStore(Store):
    name = "etcd"
    most_connections = 16
    kept_longer = 2.0
    reads_to_acquire = 2  # for a new name: read the record, then make it
    reads_to_take_over = 2

    def __init__(self, *servers: EtcdServer, **options: Any) -> None:
        # the name's base64 is part of the key's only if the prefix is a multiple of three long
        self.prefix = f"/locks_{uuid4().hex[:7]}/"
        super().__init__(servers, {"clock_error": 0, **options})  # the members run on one machine

    def in_write(self, name: str) -> str:
        return b64encode(name.encode()).decode()

    def delete_all(self) -> None:
        first = self.prefix.encode()
        last = first[:-1] + bytes([first[-1] + 1])
        self.servers[0].ask("/v3/kv/deleterange", key=b64encode(first).decode(), range_end=b64encode(last).decode())

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> str:
        places = ",".join(f"{host}:{port}" for host, port in via or self.addresses)
        return f"etcd://{places}{self.prefix}"


class ZooKeeperStore(Store):
    name = "zookeeper"
    most_connections = 2  # kazoo's, and one to find out why it is not connected
    kept_longer = 0.1
    reads_to_acquire = 1  # for a new name: make the record
    reads_to_take_over = 0  # `in_write` matches only writes

    def __init__(self, *servers: ZooKeeperServer, **options: Any) -> None:
        self.path = f"/locks-{uuid4().hex[:8]}"
        super().__init__(servers, {"clock_error": 0, **options})  # the servers run on one machine

    def in_write(self, name: str) -> str:
        return f"/{name}/"  # the child that a transaction creates or checks

    def delete_all(self) -> None:
        with self.servers[0].client() as client:
            for child in client.get_children(self.path) if client.exists(self.path) else ():
                with suppress(NoNodeError, NotEmptyError):  # another client deletes it, or makes it again
                    client.delete(f"{self.path}/{child}", recursive=True)

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> str:
        places = ",".join(f"{host}:{port}" for host, port in via or self.addresses)
        return f"zookeeper://{places}{self.path}"


class DynamoDBStore(Store):
    name = "dynamodb"
    most_connections = 16
    kept_longer = 2.1

    def __init__(self, server: DynamoDBServer) -> None:
        self.server = server
        self.table = server.create_table()
        super().__init__([server], {"clock_error": 0})  # one server has one clock

    def delete_all(self) -> None:
        for item in self.server.items(self.table):
            self.server.delete(self.table, item["_id"]["S"])

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> str:
        return self.server.url(self.table, via=via[0] if via else None)


class S3Store(Store):
    name = "s3"
    most_connections = 16
    kept_longer = 2.0
    reads_to_acquire = 1  # for a new name: make the record
    reads_to_take_over = 0  # `in_write` matches only writes

    def __init__(self, server: S3Server | AzuriteServer) -> None:
        self.server = server
        self.prefix = f"locks-{uuid4().hex[:8]}"
        super().__init__([server], {"clock_error": 0})  # the test has one front end

    def in_write(self, name: str) -> str:
        return f'"name": "{name}"'  # match the content: a path is in the headers, which botocore may send separately

    def delete_all(self) -> None:
        self.server.delete_all(f"{self.prefix}/")

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> str:
        return self.server.url(via=via[0] if via else None, prefix=self.prefix)


class AzureBlobStore(S3Store):
    """Blobs under a prefix. It writes the same objects as S3."""

    name = "azblob"
    most_connections = 10


class KubernetesStore(Store):
    """A namespace. Without a proxy, providers use TLS."""

    name = "kubernetes"
    most_connections = 20  # 16, but with TLS a connection that was given up takes a moment to close
    kept_longer = 2.0
    reads_to_acquire = 1  # for a new name: make the record
    reads_to_take_over = 0  # `in_write` matches only writes

    def __init__(self, server: KubernetesServer) -> None:
        self.server = server
        self.namespace = f"locks-{uuid4().hex[:8]}"
        super().__init__([server], {"clock_error": 0})  # the test has one server

    @property
    def addresses(self) -> list[Address]:
        return [self.server.plain]

    @property
    def direct_addresses(self) -> list[Address]:
        return [self.server.address]

    def in_write(self, name: str) -> str:
        return in_write(name)

    def delete_all(self) -> None:
        self.server.delete(self.namespace)

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> str:
        return self.server.url(self.namespace, via=via[0] if via else None)


class NatsStore(Store):
    name = "nats"
    most_connections = 1
    kept_longer = 0.1
    reads_to_acquire = 2  # for a new name: read the record, then make it
    reads_to_take_over = 2

    def __init__(self, *servers: NatsServer, **options: Any) -> None:
        self.bucket = f"locks_{uuid4().hex[:8]}"
        super().__init__(servers, {"clock_error": 0, **options})  # the servers run on one machine

    def delete_all(self) -> None:
        self.servers[0].delete(self.bucket, *self.servers[0].keys(self.bucket))

    def where(self, via: Sequence[Address] = (), *, is_async: bool | None = None) -> str:
        places = ",".join(f"{host}:{port}" for host, port in via or self.addresses)
        return f"nats://{places}/{self.bucket}"


def sqlite_store(directory: Path, drivers: tuple[str, str] = ("sqlite", "sqlite")) -> SqliteStore:
    record("SQLite", sqlite3.sqlite_version)
    return SqliteStore(Path(tempfile.mkdtemp(dir=directory)), drivers)


def postgres_store(
    server: DatabaseServer, drivers: tuple[str, str] = ("postgresql+psycopg", "postgresql+asyncpg")
) -> SqlServerStore:
    return SqlServerStore(server, "postgres", drivers)


def mariadb_store(
    server: DatabaseServer, drivers: tuple[str, str] = ("mysql+pymysql", "mysql+asyncmy")
) -> SqlServerStore:
    return SqlServerStore(server, "mariadb", drivers)


def mysql_store(
    server: DatabaseServer, drivers: tuple[str, str] = ("mysql+pymysql", "mysql+asyncmy")
) -> SqlServerStore:
    return SqlServerStore(server, "mysql", drivers)


# The registry


@dataclass(frozen=True)
class Registration:
    scheme: str
    """The key in the package's list."""
    fixture: str
    """The fixture of ``tests/conftest.py`` for the server, or servers, that all tests share."""
    server: Callable[[], AbstractContextManager[Any]]
    """Run a server during a block: a private server, or the server that ``SHEDLOCK_TEST_*_URL`` names."""
    store: Callable[..., Store]
    """Makes a store on that server; for SQL, also with other drivers."""
    process: Callable[[], Any] | None = None
    """Makes another server that the tests run themselves; None for a store without a network, such as a file."""
    products: tuple[str, ...] = ()
    """The names of the servers that its tests may meet."""
    checks: tuple[str, ...] = ()
    """Checks of doctor that only this store has."""
    is_durable: bool = True
    """Whether the test server has every confirmed write on disk, so that a kill loses nothing."""
    has_late_copies: bool = True
    """Whether a request that a client has sent again may arrive after later requests of that client."""

    @property
    def facts(self) -> package.Store:
        return package.STORES[self.scheme]

    @contextmanager
    def open(self) -> Iterator[Store]:
        with self.server() as server:
            yield self.store(server)


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shedlock-store-") as directory:
        yield Path(directory)


@contextmanager
def _three_servers() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(private_server("redis", RedisServer)) for _ in range(3)]


@contextmanager
def _aws_server(product: str, make: Callable[[], Any]) -> Iterator[Any]:
    parse_models_once()
    with private_server(product, make) as server:
        yield server


_OF_SQL = ("replication", "durability", "permissions")

STORES = {
    "sqlite": Registration("sqlite", "store_directory", _directory, sqlite_store),
    "postgres": Registration(
        "postgresql", "postgres_server", partial(database_server, "postgres"), postgres_store, PostgresServer,
        products=("PostgreSQL",), checks=_OF_SQL,
    ),
    "mariadb": Registration(
        "mariadb", "mariadb_server", partial(database_server, "mariadb"), mariadb_store, MariaDbServer,
        products=("MariaDB",), checks=(*_OF_SQL, "lock names"),
    ),
    "mysql": Registration(
        "mysql", "mysql_server", partial(database_server, "mysql"), mysql_store, MySqlServer,
        products=("MySQL",), checks=(*_OF_SQL, "lock names"),
    ),
    "redis": Registration(
        "redis", "redis_server", redis_endpoint, RedisStore, RedisServer,
        products=("Redis", "Valkey"), checks=("eviction", "persistence", "replication"), is_durable=False,
    ),
    "quorum": Registration(
        "redis+quorum", "three_redis_servers", _three_servers, QuorumStore, RedisServer,
        products=("Redis", "Valkey"), checks=("servers", "eviction", "replication"),
    ),
    "mongodb": Registration(
        "mongodb", "mongodb_server", mongodb_endpoint, MongoStore, PrivateMongoServer,
        products=("SecantusDB", "MongoDB"), checks=("replication",),
    ),
    "dynamodb": Registration(
        "dynamodb", "dynamodb_server", partial(_aws_server, "dynamodb", DynamoDBServer), DynamoDBStore, DynamoDBServer,
        products=("DynamoDB Local",), checks=("replication",),
    ),
    "etcd": Registration(
        "etcd", "etcd_server", partial(private_server, "etcd", EtcdServer), EtcdStore, EtcdServer,
        products=("etcd",), checks=("version", "members"),
    ),
    "zookeeper": Registration(
        "zookeeper", "zookeeper_server", partial(private_server, "zookeeper", ZooKeeperServer), ZooKeeperStore,
        ZooKeeperServer, products=("ZooKeeper",), has_late_copies=False,  # a new connection ends the former one
    ),
    "s3": Registration(
        "s3", "s3_server", partial(_aws_server, "s3", S3Server), S3Store, S3Server,
        products=("SeaweedFS",), checks=("conditions",),
    ),
    "azblob": Registration(
        "azblob", "azblob_server", partial(private_server, "azblob", AzuriteServer), AzureBlobStore, AzuriteServer,
        products=("Azurite",), checks=("conditions",), is_durable=False,
    ),
    "kubernetes": Registration(
        "kubernetes", "kubernetes_server", partial(private_server, "kubernetes", kubernetes_server), KubernetesStore,
        kubernetes_server, products=("Kubernetes API server",), checks=("permissions",),
    ),
    "nats": Registration(
        "nats", "nats_server", partial(private_server, "nats", NatsServer), NatsStore, NatsServer,
        products=("NATS",), checks=("bucket",),
    ),
}  # fmt: skip
ALL = tuple(STORES)
WITH_NETWORK = tuple(name for name, registration in STORES.items() if registration.process)
SINGLE = tuple(name for name in ALL if name != "quorum")
"""Stores with at most one server."""
ONE_SERVER = tuple(name for name in WITH_NETWORK if name in SINGLE)


@contextmanager
def on_private_server(store: Store) -> Iterator[Store]:
    """For tests that change or stop a whole server: start a private server if the environment names this server."""
    if not any(isinstance(server, ExternalLife) for server in store.servers):
        yield store
        return
    process = STORES[store.name].process
    assert process is not None  # only stores without servers have no process
    with private_server(store.name, process) as server:
        yield STORES[store.name].store(server).like(store)
