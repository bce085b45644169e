"""Fixtures for all tests. One process runs them all: the servers are its children."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.availability import database_server, private_server, redis_endpoint
from tests.support.database import DatabaseServer
from tests.support.mongodb import MongoServer, mongodb_endpoint
from tests.support.redis import RedisCluster, RedisEndpoint, RedisSentinel, RedisServer


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[DatabaseServer]:
    with database_server("postgres") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[DatabaseServer]:
    with database_server("mariadb") as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[DatabaseServer]:
    with database_server("mysql") as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisEndpoint]:
    with redis_endpoint() as server:
        yield server


@pytest.fixture(scope="session")
def redis_nodes() -> Iterator[list[RedisServer]]:
    """Five servers that know nothing of each other."""
    with ExitStack() as servers:
        yield [servers.enter_context(private_server("redis", RedisServer)) for _ in range(5)]


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    with private_server("redis", RedisCluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_sentinel() -> Iterator[RedisSentinel]:
    """A sentinel and a master of its own, without a replica."""
    with (
        private_server("redis", RedisServer) as master,
        private_server("redis", lambda: RedisSentinel(master)) as sentinel,
    ):
        yield sentinel


@pytest.fixture(scope="session")
def mongodb_server() -> Iterator[MongoServer]:
    with mongodb_endpoint() as server:
        yield server
