"""A store for each test of this directory, and a name of its own for each lock."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from shedlock_py.testing.proxy import TcpProxy
from tests.contract.mongo import forget_sockets
from tests.stores.mongodb.stores import Store
from tests.support.mongodb import MongoServer


@pytest.fixture
def kind() -> str:
    """Sync: both clients carry out the same programs. Tests of the clients themselves use ``both_clients``."""
    return "sync"


@pytest.fixture
def store(kind: str, mongodb_server: MongoServer) -> Iterator[Store]:
    store = Store(mongodb_server, is_async=kind == "async")
    with store.stack:
        yield store
    if store.is_async:
        forget_sockets()


# The store owns the proxies: PyMongo says goodbye when it is closed, and would look for the server for a long time.


@pytest.fixture
def proxy(store: Store) -> TcpProxy:
    return store.stack.enter_context(TcpProxy(store.server.address))


@pytest.fixture
def name() -> str:
    return f"job-{uuid4().hex[:12]}"
