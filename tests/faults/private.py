"""For scenarios that change what belongs to a whole server, or stop it: never a server that somebody else runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tests.support.availability import private_server
from tests.support.database import ExternalLife
from tests.support.mongodb import ExternalMongoServer, PrivateMongoServer
from tests.support.redis import RedisServer
from tests.support.servers import MariaDbServer, PostgresServer
from tests.support.stores import STORES, Store

_PRIVATE: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "postgres": PostgresServer,
    "mariadb": MariaDbServer,
    "redis": RedisServer,
    "mongodb": PrivateMongoServer,
}


@contextmanager
def on_private_server(store: Store) -> Iterator[Store]:
    """The store itself, if the tests run its servers; if ``SHEDLOCK_TEST_*_URL`` names them, a new private one."""
    if not any(isinstance(server, ExternalLife | ExternalMongoServer) for server in store.servers):
        yield store
        return
    with private_server(store.name, _PRIVATE[store.name]) as server:
        private = STORES[store.name].store(server)
        private.is_async = store.is_async
        yield private
