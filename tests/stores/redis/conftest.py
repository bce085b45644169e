"""Redis through each kind of client, and a lock name for each test."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
import redis

from shedlock_py import LockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis.stores import KINDS, Store, marks_of
from tests.support.availability import private_server
from tests.support.redis import RedisEndpoint, RedisServer


@pytest.fixture(params=[pytest.param(kind, marks=marks_of(kind, KINDS)) for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    """Tests that need fewer kinds override this with `@through(kinds)`."""
    return str(request.param)


@pytest.fixture
def store(kind: str, redis_server: RedisEndpoint) -> Iterator[Store]:
    store = Store(redis_server, kind)
    with store.stack:
        yield store


@pytest.fixture
def private(kind: str) -> Iterator[Store]:
    """A store on its own server, for tests that harm the server."""
    with private_server("redis", RedisServer) as server:
        store = Store(server, kind)
        with store.stack:
            yield store


@pytest.fixture
def client(store: Store) -> Iterator[redis.Redis]:
    """An administrator's connection."""
    with store.server.client() as client:
        yield client


@pytest.fixture
def other(store: Store) -> LockProvider:
    """Another replica, without a proxy."""
    other = Store(store.server)
    store.stack.enter_context(other.stack)
    return other.provider()


@pytest.fixture
def proxy(store: Store) -> Iterator[TcpProxy]:
    with TcpProxy(store.server.address) as proxy:
        yield proxy


@pytest.fixture
def name() -> str:
    return f"job-{uuid4().hex[:12]}"
