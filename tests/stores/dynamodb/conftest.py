"""A table for each test of this directory, and providers on it, sync or async."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from shedlock_py import LockProvider
from shedlock_py.providers.dynamodb import AsyncDynamoDBLockProvider, DynamoDBLockProvider
from shedlock_py.testing.blocking import BlockingLockProvider
from shedlock_py.testing.proxy import Address
from tests.support.dynamodb import DynamoDBServer
from tests.support.front_end import FrontEnd

Open = Callable[..., LockProvider]


@pytest.fixture
def kind() -> str:
    """Both clients carry out the same programs. Tests of what a client does run with ``both_clients``."""
    return "sync"


@pytest.fixture
def table(dynamodb_server: DynamoDBServer) -> str:
    return dynamodb_server.create_table()


@pytest.fixture
def open_provider(kind: str, dynamodb_server: DynamoDBServer, table: str) -> Iterator[Open]:
    """Opens a provider, through a proxy or a front end if an address is given; the error of the clocks is 0."""
    with ExitStack() as stack:

        def open_provider(via: Address | None = None, **options: str) -> LockProvider:
            url = dynamodb_server.url(table, via=via)
            options = {"clock_error": "0s"} | options
            if kind == "async":
                return stack.enter_context(BlockingLockProvider(lambda: AsyncDynamoDBLockProvider(url, **options)))
            provider = DynamoDBLockProvider(url, **options)
            stack.callback(provider.close)
            return provider

        yield open_provider


@pytest.fixture
def provider(open_provider: Open) -> LockProvider:
    return open_provider()


@pytest.fixture
def front_end(dynamodb_server: DynamoDBServer) -> Iterator[FrontEnd]:
    with FrontEnd(dynamodb_server.address) as front_end:
        yield front_end


@pytest.fixture
def name() -> str:
    return f"job-{uuid4().hex[:12]}"
