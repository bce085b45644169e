"""Private servers to show the demo on: those of the tests, in a temporary directory and on a free port."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple


class NoServer(Exception):
    """The private server cannot be started; says what to do."""


@contextmanager
def private_store(kind: str) -> Iterator[str]:
    """The URL of a new, empty store. Its server lives as long as the block.

    :raises NoServer: something is not installed, or the server does not start.
    """
    with ExitStack() as running:
        try:
            url = _start(kind, running)
        except ModuleNotFoundError as error:
            raise NoServer(f"{kind}: no module named {error.name!r}; run: make demo STORE={kind}") from error
        yield url


def _start(kind: str, running: ExitStack) -> str:
    from tests.support.server_process import ServerError

    try:
        private = PRIVATE[kind]()
    except ServerError as error:  # it looks for its programs first
        raise NoServer(f"{kind}: {error}; run: make demo STORE={kind}") from error
    print(f"starting a private {kind}", flush=True)
    try:
        for server in private.servers:
            # Where Ctrl-C interrupts this, the server ends when this process does.
            running.enter_context(server)
    except (ServerError, OSError) as error:
        raise NoServer(str(error)) from error
    return private.url()


class _Private(NamedTuple):
    servers: Sequence[AbstractContextManager[Any]]
    """To be started."""
    url: Callable[[], str]
    """Once they are."""


# Each imports its server by itself: what the others need may not be installed.


def _postgres() -> _Private:
    from tests.support.servers import PostgresServer

    server = PostgresServer()
    return _Private([server], lambda: server.url("postgresql"))


def _mariadb() -> _Private:
    from tests.support.servers import MariaDbServer

    server = MariaDbServer()
    return _Private([server], lambda: server.url("mariadb"))


def _mysql() -> _Private:
    from tests.support.servers import MySqlServer

    server = MySqlServer()
    return _Private([server], lambda: server.url("mysql"))


def _redis() -> _Private:
    from tests.support.redis import RedisServer

    server = RedisServer()
    return _Private([server], server.url)


def _redis_quorum() -> _Private:
    from tests.support.redis import RedisServer

    servers = [RedisServer() for _ in range(3)]
    return _Private(
        servers, lambda: "redis+quorum://" + ",".join("{}:{}".format(*server.address) for server in servers)
    )


def _mongodb() -> _Private:
    from tests.support.mongodb import PrivateMongoServer

    server = PrivateMongoServer()
    return _Private([server], server.url)


def _etcd() -> _Private:
    from tests.support.etcd import EtcdServer

    server = EtcdServer()
    return _Private([server], server.url)


PRIVATE: dict[str, Callable[[], _Private]] = {
    "postgres": _postgres,
    "mariadb": _mariadb,
    "mysql": _mysql,
    "redis": _redis,
    "redis-quorum": _redis_quorum,
    "mongodb": _mongodb,
    "etcd": _etcd,
}
