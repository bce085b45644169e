"""A table for each test of this directory, and providers on it, sync or async."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from uuid import uuid4

import pytest

from shedlock_py import LockProvider
from shedlock_py.providers.dynamodb import AsyncDynamoDBLockProvider, DynamoDBLockProvider
from shedlock_py.testing.proxy import Address
from tests.stores.clients import open_one
from tests.support.dynamodb import DynamoDBServer
from tests.support.front_end import FrontEnd

Open = Callable[..., LockProvider]
OPTIONS = {"clock_error": "0s", "timeout": "20s"}
"""The server has one clock. A long time limit suits a busy machine: these tests are not about time limits."""


@pytest.fixture
def kind() -> str:
    """Sync: both clients carry out the same programs. Tests of the clients themselves use ``both_clients``."""
    return "sync"


# The tests share a table, a front end and a provider for each client, and use different lock names: a boto3 client and
# a table take a tenth of a second each.


@pytest.fixture(scope="session")
def table(dynamodb_server: DynamoDBServer) -> str:
    return dynamodb_server.create_table()


@pytest.fixture(scope="session")
def shared_front_end(dynamodb_server: DynamoDBServer) -> Iterator[FrontEnd]:
    with FrontEnd(dynamodb_server.address) as front_end:
        yield front_end


@pytest.fixture
def front_end(shared_front_end: FrontEnd) -> Iterator[FrontEnd]:
    yield shared_front_end
    shared_front_end.reset()


def opened(stack: ExitStack, kind: str, url: str, **options: str) -> LockProvider:
    return open_one(stack, kind, DynamoDBLockProvider, AsyncDynamoDBLockProvider, url, **(OPTIONS | options))


@pytest.fixture
def open_provider(kind: str, dynamodb_server: DynamoDBServer, table: str) -> Iterator[Open]:
    """Open a provider, through a proxy or a front end if an address is given."""
    with ExitStack() as stack:

        def open_provider(via: Address | None = None, **options: str) -> LockProvider:
            return opened(stack, kind, dynamodb_server.url(table, via=via), **options)

        yield open_provider


@pytest.fixture(scope="session")
def shared_provider(dynamodb_server: DynamoDBServer, table: str) -> Iterator[Open]:
    with ExitStack() as stack:

        @cache
        def open_once(kind: str, via: Address | None = None) -> LockProvider:
            return opened(stack, kind, dynamodb_server.url(table, via=via))

        yield open_once


@pytest.fixture
def provider(kind: str, shared_provider: Open) -> LockProvider:
    return shared_provider(kind)


@pytest.fixture
def name() -> str:
    return f"job-{uuid4().hex[:12]}"
