"""Private servers for the demo: the tests' servers, in a temporary directory and on a free port."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple


class NoServer(Exception):
    """The private server cannot be started. The message names the fix."""


@contextmanager
def private_store(kind: str) -> Iterator[str]:
    """Yield the URL of a new, empty store. Its server runs inside the block.

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
            # If Ctrl-C interrupts this, the server ends with this process.
            running.enter_context(server)
    except (ServerError, OSError) as error:
        raise NoServer(str(error)) from error
    return private.url()


class _Private(NamedTuple):
    servers: Sequence[AbstractContextManager[Any]]
    """Servers to start."""
    url: Callable[[], str]
    """Returns the URL after the start."""


# Each function imports its own server: other servers' packages may not be installed.


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


def _s3() -> _Private:
    from tests.support.s3 import S3Server

    server = S3Server()
    return _Private([server], server.url)


def _dynamodb() -> _Private:
    from tests.support.dynamodb import DynamoDBServer

    server = DynamoDBServer()
    return _Private([server], lambda: server.url("shedlock"))


PRIVATE: dict[str, Callable[[], _Private]] = {
    "postgres": _postgres,
    "mariadb": _mariadb,
    "mysql": _mysql,
    "redis": _redis,
    "redis-quorum": _redis_quorum,
    "mongodb": _mongodb,
    "etcd": _etcd,
    "dynamodb": _dynamodb,
    "s3": _s3,
}
