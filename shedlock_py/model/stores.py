"""The list of built-in stores.

URLs, provider classes, tests, and the tables of the docs read it. It imports no driver, and ``import shedlock_py`` does
not load it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, kw_only=True)
class Store:
    """Facts about a store."""

    title: str
    schemes: tuple[str, ...]
    """The schemes of its URLs. The first scheme is its key in :data:`STORES`."""
    module: str
    """Its module in ``shedlock_py.providers``; also the extra that this module needs."""
    class_name: str
    """The sync provider class. The async class has the prefix ``Async``."""
    extra: str
    """The extra that a URL without a driver needs; empty if it needs no package."""
    async_extra: str = ""
    """The extra for asyncio, if it is another extra."""
    oldest: tuple[str, str] | None = None
    """The package that is checked at its import, and its oldest supported release."""
    drivers: tuple[str, ...] = ()
    """The packages of sync clients, the usual one first."""
    async_drivers: tuple[str, ...] = ()
    """The packages of async clients, the usual one first."""
    clock: str
    """Whose clock decides when a lease ends."""
    round_trips: str = "1"
    """The round trips of an acquire, a skip, an extension and a release."""
    has_history: bool = True
    """Whether it can keep the last runs of a name."""
    page: str
    """Its page in ``docs/providers``."""

    @property
    def is_sql(self) -> bool:
        """Whether the scheme of a URL may name a driver as SQLAlchemy does: ``postgresql+psycopg``."""
        return self.module == "sqlalchemy"


_sql = partial(
    Store,
    module="sqlalchemy",
    class_name="SqlAlchemyLockProvider",
    oldest=("sqlalchemy", "2.0.24"),
    clock="the server's",
)
_mysql = partial(
    _sql, extra="mysql", async_extra="asyncmy", drivers=("pymysql", "mysqlclient"),
    async_drivers=("asyncmy", "aiomysql"), page="mysql",
)  # fmt: skip
_redis = partial(
    Store, module="redis", extra="redis", oldest=("redis", "5.0.1"), drivers=("redis",), async_drivers=("redis",)
)
_in_seconds = partial(Store, round_trips="2 to acquire, else 1", has_history=False)
"""A store on the compare-and-swap kit, which knows the time to a second or two."""

STORES = {
    store.schemes[0]: store
    for store in (
        Store(
            title="Memory", schemes=("memory",), module="memory", class_name="InMemoryLockProvider", extra="",
            clock="the process's", round_trips="none", page="memory",
        ),
        _sql(
            title="SQLite", schemes=("sqlite",), extra="sqlite", async_extra="aiosqlite", drivers=("sqlite3",),
            async_drivers=("aiosqlite",), clock="the machine's", round_trips="none: local", page="sqlite",
        ),
        _sql(
            title="PostgreSQL", schemes=("postgresql", "postgres"), extra="postgresql", async_extra="asyncpg",
            drivers=("psycopg", "psycopg2"), async_drivers=("asyncpg", "psycopg"), page="postgresql",
        ),
        _mysql(title="MySQL", schemes=("mysql",)),
        _mysql(title="MariaDB", schemes=("mariadb",)),
        _redis(
            title="Redis", schemes=("redis", "rediss", "valkey", "valkeys", "unix"), class_name="RedisLockProvider",
            clock="the server's", page="redis",
        ),
        _redis(
            title="Redis quorum", schemes=("redis+quorum", "rediss+quorum"), class_name="RedisQuorumLockProvider",
            clock="each server's, the majority counts", round_trips="2 to acquire, else 1, to all at once",
            page="redis-quorum",
        ),
        Store(
            title="MongoDB", schemes=("mongodb", "mongodb+srv"), module="mongodb", class_name="MongoLockProvider",
            extra="mongodb", oldest=("pymongo", "4.13.2"), drivers=("pymongo",), async_drivers=("pymongo",),
            clock="the primary's", page="mongodb",
        ),
        _in_seconds(
            title="etcd", schemes=("etcd",), module="etcd", class_name="EtcdLockProvider", extra="etcd",
            drivers=("httpx",), async_drivers=("httpx",), clock="the members', to a second or two", page="etcd",
        ),
        Store(
            title="ZooKeeper", schemes=("zookeeper",), module="zookeeper", class_name="ZooKeeperLockProvider",
            extra="zookeeper", drivers=("kazoo",), async_drivers=("kazoo",), clock="the leader's",
            round_trips="2 to acquire, else 1", has_history=False, page="zookeeper",
        ),
        _in_seconds(
            title="DynamoDB", schemes=("dynamodb",), module="dynamodb", class_name="DynamoDBLockProvider",
            extra="dynamodb", drivers=("boto3",), async_drivers=("aiobotocore",),
            clock="the service's, to a second or two", round_trips="1; 2 to acquire after a pause", page="dynamodb",
        ),
        _in_seconds(
            title="S3", schemes=("s3",), module="s3", class_name="S3LockProvider", extra="s3", drivers=("boto3",),
            async_drivers=("aiobotocore",), clock="the service's, to a second or two", page="s3",
        ),
        _in_seconds(
            title="Azure Blob", schemes=("azblob",), module="azblob", class_name="AzureBlobLockProvider",
            extra="azblob", drivers=("azure-storage-blob",), async_drivers=("azure-storage-blob",),
            clock="the service's, to a second or two", page="azblob",
        ),
        _in_seconds(
            title="Kubernetes", schemes=("kubernetes",), module="kubernetes", class_name="KubernetesLockProvider",
            extra="kubernetes", drivers=("httpx", "kubernetes"), async_drivers=("httpx", "kubernetes"),
            clock="the API server's, to a second or two", page="kubernetes",
        ),
        _in_seconds(
            title="NATS", schemes=("nats",), module="nats", class_name="NatsLockProvider", extra="nats",
            drivers=("nats-py",), async_drivers=("nats-py",), clock="the servers', to a second", page="nats",
        ),
    )
}  # fmt: skip

BY_SCHEME = {scheme: store for store in STORES.values() for scheme in store.schemes}
"""The store of each scheme, in the order of error messages."""
