"""The server for a test: the server that an environment variable names, or a private server.

If a server is missing, the test is skipped with the command that brings it. Where `CI` is set, the test fails instead,
unless the server is optional in CI. `conftest.py` registers this module as a pytest plugin.
"""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NoReturn, TypeVar

import pytest
from redis import RedisError
from sqlalchemy.exc import DBAPIError

from tests.support.database import DatabaseServer, ExternalServer
from tests.support.fetching import is_ci
from tests.support.redis import ExternalRedis, RedisEndpoint, RedisServer
from tests.support.server_process import MissingServerError
from tests.support.servers import MariaDbServer, MySqlServer, PostgresServer, PrivateServer
from tests.support.versions import record

Private = TypeVar("Private", bound=AbstractContextManager[Any])
Product = Literal["postgres", "mariadb", "mysql"]

_PRIVATE: dict[Product, type[PrivateServer]] = {
    "postgres": PostgresServer,
    "mariadb": MariaDbServer,
    "mysql": MySqlServer,
}


@contextmanager
def database_server(product: Product) -> Iterator[DatabaseServer]:
    variable = f"SHEDLOCK_TEST_{product.upper()}_URL"
    if url := os.environ.get(variable):
        yield _external(url, variable, product)
    else:
        with private_server(product, _PRIVATE[product]) as server:
            yield server


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
    """Run the server that `make` returns during the block. Report it missing if its programs are not installed."""
    try:
        server = make()
    except MissingServerError as error:
        missing(f"{product}: {error}", error.cure, is_required=error.is_required)
    with server:
        yield server


class ServerMissing(pytest.skip.Exception):  # type: ignore[misc,name-defined]  # pytest's types hide the class
    """A skip because of a missing server. All tests that need the server share it."""


def missing(what: str, command: str, *, is_required: bool = True) -> NoReturn:
    """Skip the test, or fail it in CI: `what` is missing and `command` brings it."""
    message = f"{what}; run: {command}"
    if is_required and is_ci():
        pytest.fail(message, pytrace=False)
    raise ServerMissing(message)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the summary show one line for each missing server.

    pytest folds skips that have the same place and reason. By default, a skip in a fixture has the place of the test.
    """
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, ServerMissing):
        report.longrepr = (__file__, missing.__code__.co_firstlineno, str(call.excinfo.value))
    return report


def _external(url: str, variable: str, product: Product) -> ExternalServer:
    server = ExternalServer(url, variable=variable)
    try:
        record(*server.version())
        return server
    except DBAPIError as error:
        _silent(variable, product, str(error.orig))


def _external_redis(url: str, variable: str) -> ExternalRedis:
    server = ExternalRedis(url, variable=variable)
    try:
        record(*server.version())
        return server
    except RedisError as error:
        _silent(variable, "redis", str(error))


def _silent(variable: str, product: str, reason: str) -> NoReturn:
    what = f"the server that {variable} names does not answer ({reason.partition(chr(10))[0]})"
    missing(what, f"docker compose up -d --wait {product}")
