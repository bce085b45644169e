"""For scenarios that change what belongs to a whole server, or stop it: never a server that somebody else runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tests.faults.stores import MongoStore, RedisStore, Store, mariadb_store, postgres_store
from tests.support.availability import private_server
from tests.support.database import ExternalLife
from tests.support.mongodb import ExternalMongoServer, PrivateMongoServer
from tests.support.redis import RedisServer
from tests.support.servers import MariaDbServer, PostgresServer

_PRIVATE: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[Any], Store]]] = {
    "postgres": (PostgresServer, postgres_store),
    "mariadb": (MariaDbServer, mariadb_store),
    "redis": (RedisServer, RedisStore),
    "mongodb": (PrivateMongoServer, MongoStore),
}


@contextmanager
def on_own_server(store: Store) -> Iterator[Store]:
    """The store itself if its servers are ours, as they are unless ``SHEDLOCK_TEST_*_URL`` names another; else a new
    one of the same kind on a private server.
    """
    if not any(isinstance(server, ExternalLife | ExternalMongoServer) for server in store.servers):
        yield store
        return
    server_class, make = _PRIVATE[store.name]
    with private_server(store.name, server_class) as server:
        own = make(server)
        own.is_async = store.is_async
        yield own
