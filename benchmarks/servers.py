"""The measured private servers: the tests' servers, but with each store's default durability."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from shedlock_py.model.stores import STORES as LISTED
from tests.support.database import Address
from tests.support.dynamodb import DynamoDBServer, table_url
from tests.support.etcd import EtcdServer
from tests.support.kubernetes import ApiServer, administrator
from tests.support.mongodb import PrivateMongoServer
from tests.support.processes import descendants
from tests.support.redis import RedisServer
from tests.support.s3 import S3Server, object_url
from tests.support.server_process import ServerError
from tests.support.servers import DATABASE, PASSWORD, USER, MariaDbServer, MySqlServer, PostgresServer

STORES = ("redis", "postgres", "mariadb", "mysql", "sqlite", "mongodb", "etcd", "dynamodb", "s3", "kubernetes")
WITHOUT_HISTORY = tuple(name for name, store in LISTED.items() if not store.has_history)


class DurablePostgres(PostgresServer):
    def command(self, port: int) -> list[str]:
        return [*super().command(port), "-c", "fsync=on", "-c", "max_connections=500"]  # the last option wins


class DurableMariaDb(MariaDbServer):
    def command(self, port: int) -> list[str]:
        durable = ["--innodb-flush-log-at-trx-commit=1", "--max-connections=500"]
        return [*super().command(port), *durable, "--innodb-buffer-pool-size=256M", "--innodb-log-file-size=96M"]


class DurableMySql(MySqlServer):
    """A server with a binary log, which MySQL writes and syncs by default."""

    def command(self, port: int) -> list[str]:
        durable = ["--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1", "--max-connections=500"]
        return [*super().command(port), *durable, "--innodb-buffer-pool-size=256M", "--innodb-redo-log-capacity=96M"]


class BenchedDynamoDB(DynamoDBServer):
    """A server with the table of the floor and the providers."""

    def start(self) -> None:
        super().start()
        self.create_table(DATABASE)


class DefaultRedis(RedisServer):
    """A server with Redis's own defaults: occasional snapshots, no append-only file."""

    def __init__(self) -> None:
        super().__init__(config={"save": "3600 1 300 100 60 10000", "hz": "10", "appendfsync": "everysec"})


@dataclass(frozen=True)
class Site:
    """The place of a store. It can be sent to other processes."""

    store: str
    address: Address = ("", 0)
    directory: str = ""
    """Directory for stores with files."""
    database: str = DATABASE
    """Redis numbers its databases."""

    def via(self, address: Address) -> Site:
        return replace(self, address=address)

    def within(self, database: str) -> Site:
        """Return a separate store on the same server."""
        return replace(self, database=database)

    def url(self, driver: str = "") -> str:
        host, port = self.address
        match self.store:
            case "redis":
                return f"redis://{host}:{port}/{0 if self.database == DATABASE else self.database}"
            case "mongodb":
                return f"mongodb://{host}:{port}/{self.database}?directConnection=true"
            case "dynamodb":
                return table_url(self.address, self.database)
            case "s3":
                return object_url(self.address, self.database)
            case "etcd":
                return f"etcd://{host}:{port}/{self.database}"
            case "kubernetes":
                path = administrator(Path(self.directory), self.address)
                return f"kubernetes://{self.database.replace('_', '-')}?kubeconfig={path}"
            case "sqlite":
                return f"{driver or 'sqlite'}:///{self.path}"
        scheme = driver or {"postgres": "postgresql", "mariadb": "mysql", "mysql": "mysql"}[self.store]
        return URL.create(scheme, USER, PASSWORD, host, port, self.database).render_as_string(hide_password=False)

    @property
    def path(self) -> str:
        """The SQLite file."""
        return f"{self.directory}/{self.database}.db"

    @property
    def arguments(self) -> dict[str, Any]:
        """Connect arguments by the names that most PostgreSQL and MySQL drivers use."""
        host, port = self.address
        return {"host": host, "port": port, "user": USER, "password": PASSWORD, "database": self.database}


@dataclass(frozen=True)
class RunningStore:
    site: Site
    pid: int | None
    """None without a server process."""
    version: str


_SERVERS: dict[str, Callable[[], Any]] = {
    "redis": DefaultRedis,
    "postgres": DurablePostgres,
    "mariadb": DurableMariaDb,
    "mysql": DurableMySql,
    "mongodb": PrivateMongoServer,
    "etcd": EtcdServer,
    "dynamodb": BenchedDynamoDB,
    "s3": S3Server,
    "kubernetes": ApiServer,
}


@contextmanager
def running(store: str) -> Iterator[RunningStore]:
    """Run a private store inside the block. :raises ServerError: it is not installed."""
    with ExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="shedlock-bench-", dir="/tmp")
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        if store == "sqlite":
            import sqlite3

            yield RunningStore(Site(store, directory=directory), None, f"SQLite {sqlite3.sqlite_version}")
            return
        server = stack.enter_context(_SERVERS[store]())
        site = Site(store, server.address, str(server.data) if store == "kubernetes" else directory)
        process = server._process if store == "mongodb" else server
        yield RunningStore(site, process.pid, _version(site))


def _version(site: Site) -> str:
    if site.store == "redis":
        import redis

        with redis.Redis.from_url(site.url()) as client:
            return f"Redis {client.info('server')['redis_version']}"
    if site.store == "mongodb":
        from importlib.metadata import version

        return f"SecantusDB {version('SecantusDB')}, which speaks MongoDB's protocol"
    if site.store == "dynamodb":
        return "DynamoDB Local 1.25"
    if site.store == "s3":
        return "SeaweedFS 4.45, which has S3's interface"
    if site.store == "etcd":
        import httpx

        host, port = site.address
        return (
            f"etcd {httpx.post(f'http://{host}:{port}/v3/maintenance/status', json={}).json()['version']}, one member"
        )
    if site.store == "kubernetes":
        return "the API server of Kubernetes 1 from Debian sid, with etcd 3.5"
    from sqlalchemy import create_engine, text

    engine = create_engine(site.url("postgresql+psycopg" if site.store == "postgres" else "mysql+pymysql"))
    try:
        with engine.connect() as connection:
            found = connection.execute(text("SELECT version()")).scalar_one()
    finally:
        engine.dispose()
    titles = {"mariadb": "MariaDB ", "mysql": "MySQL "}
    return titles.get(site.store, "") + str(found).partition(" (")[0]


class ProcessorTime:
    """Processor time of a process and its children, including ended children."""

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self._family: list[int] = []

    def read(self) -> int:
        """Return the nanoseconds, after a search for new children."""
        if self.pid is None:
            return 0
        self._family = [self.pid, *_children(self.pid)]
        return self.read_again()

    def read_again(self) -> int:
        """Return the nanoseconds, without the costly search for new children."""
        if self.pid is None:
            return 0
        ended = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        ticks = sum(map(int, ended)) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
        return ticks + sum(map(_of_threads, self._family))


def _children(pid: int) -> list[int]:
    """PostgreSQL's sessions are children of its first process."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else descendants(pid)


def _of_threads(pid: int) -> int:
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        pass  # it has ended, or the kernel counts nothing
    return total


__all__ = ["STORES", "WITHOUT_HISTORY", "ProcessorTime", "RunningStore", "ServerError", "Site", "running"]
