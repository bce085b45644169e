"""The server a test asks for: the one that an environment variable names, or a private one.

A missing server skips the test with the command that would bring it, and fails it where `CI` is set.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NoReturn, TypeVar

import pytest
from redis import RedisError
from sqlalchemy.exc import DBAPIError

from tests.support.database import DatabaseServer, ExternalServer
from tests.support.redis import ExternalRedis, RedisEndpoint, RedisServer
from tests.support.servers import MariaDbServer, PostgresServer, PrivateServer, ServerError

Private = TypeVar("Private", bound=AbstractContextManager[Any])
Product = Literal["postgres", "mariadb", "mysql"]

_PRIVATE: dict[Product, type[PrivateServer]] = {"postgres": PostgresServer, "mariadb": MariaDbServer}


@contextmanager
def database_server(product: Product) -> Iterator[DatabaseServer]:
    variable = f"SHEDLOCK_TEST_{product.upper()}_URL"
    if url := os.environ.get(variable):
        yield _external(url, variable, product)
    elif private := _PRIVATE.get(product):
        with private_server(product, private) as server:
            yield server
    else:
        # Debian has no such package, so this is not something that CI forgot.
        pytest.skip(f"no {product}; run: docker compose up -d --wait {product}, and set {variable} as its file says")


@contextmanager
def redis_endpoint() -> Iterator[RedisEndpoint]:
    variable = "SHEDLOCK_TEST_REDIS_URL"
    if url := os.environ.get(variable):
        yield _external_redis(url, variable)
    else:
        with private_server("redis", RedisServer) as server:
            yield server


@contextmanager
def private_server(product: str, make: Callable[[], Private]) -> Iterator[Private]:
    """What `make` makes, running for as long as the block lasts; missing if its programs are not installed."""
    try:
        server = make()
    except ServerError as error:
        missing(f"{product}: {error}", "make servers")
    with server:
        yield server


def missing(what: str, command: str) -> NoReturn:
    """Skip the test, or fail it in CI: `what` is not there and `command` would bring it."""
    message = f"{what}; run: {command}"
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(message)
    pytest.fail(message, pytrace=False)


def _external(url: str, variable: str, product: Product) -> ExternalServer:
    server = ExternalServer(url, variable=variable)
    try:
        with server.connect():
            return server
    except DBAPIError as error:
        _silent(variable, product, str(error.orig))


def _external_redis(url: str, variable: str) -> ExternalRedis:
    server = ExternalRedis(url, variable=variable)
    try:
        with server.client() as client:
            client.ping()
            return server
    except RedisError as error:
        _silent(variable, "redis", str(error))


def _silent(variable: str, product: str, reason: str) -> NoReturn:
    what = f"the server that {variable} names does not answer ({reason.partition(chr(10))[0]})"
    missing(what, f"docker compose up -d --wait {product}")
