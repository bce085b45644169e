"""The server a test asks for: the one that an environment variable names, or a private one.

A missing server skips the test with the command that would bring it, and fails it where `CI` is set.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

import pytest
from sqlalchemy.exc import DBAPIError

from tests.services.database import DatabaseServer, ExternalServer
from tests.services.servers import MariaDbServer, PostgresServer, PrivateServer, ServerError

Product = Literal["postgres", "mariadb", "mysql"]

_PRIVATE: dict[Product, type[PrivateServer]] = {"postgres": PostgresServer, "mariadb": MariaDbServer}


@contextmanager
def database_server(product: Product) -> Iterator[DatabaseServer]:
    """A running server, for as long as the block lasts."""
    variable = f"SHEDLOCK_TEST_{product.upper()}_URL"
    if url := os.environ.get(variable):
        yield _external(url, variable, product)
    elif private := _PRIVATE.get(product):
        try:
            server = private()
        except ServerError as error:
            missing(f"{product}: {error}", "make servers")
        with server:
            yield server
    else:
        # Debian has no such package, so this is not something that CI forgot.
        pytest.skip(f"no {product}; run: docker compose up -d --wait {product}, and set {variable} as its file says")


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
        reason = str(error.orig).partition("\n")[0]
        what = f"the server that {variable} names does not answer ({reason})"
        missing(what, f"docker compose up -d --wait {product}")
