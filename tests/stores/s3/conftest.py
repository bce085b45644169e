"""A prefix for each test of this directory, and providers on it, sync or async."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from uuid import uuid4

import pytest

from shedlock_py import LockProvider
from shedlock_py.providers.s3 import AsyncS3LockProvider, S3LockProvider
from shedlock_py.testing.proxy import Address
from tests.stores.clients import open_one
from tests.support.front_end import FrontEnd
from tests.support.s3 import S3Server

Open = Callable[..., LockProvider]
OPTIONS = {"clock_error": "0s", "timeout": "20s"}
"""The server has one clock. A long time limit suits a busy machine: these tests are not about time limits."""


@pytest.fixture
def kind() -> str:
    """Sync: both clients carry out the same programs. Tests of the clients themselves use ``both_clients``."""
    return "sync"


# One front end, one prefix and one provider for each client: a new boto3 client takes a tenth of a second.


@pytest.fixture(scope="session")
def shared_prefix() -> str:
    return f"tests-{uuid4().hex[:8]}"


@pytest.fixture
def prefix(shared_prefix: str, s3_server: S3Server) -> str:
    """A prefix without objects."""
    s3_server.delete_all(shared_prefix)
    return shared_prefix


@pytest.fixture(scope="session")
def shared_front_end(s3_server: S3Server) -> Iterator[FrontEnd]:
    with FrontEnd(s3_server.address) as front_end:
        yield front_end


@pytest.fixture
def front_end(shared_front_end: FrontEnd) -> Iterator[FrontEnd]:
    yield shared_front_end
    shared_front_end.reset()


@pytest.fixture
def open_url(kind: str) -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda url, **options: open_one(stack, kind, S3LockProvider, AsyncS3LockProvider, url, **options)


@pytest.fixture
def open_provider(open_url: Open, s3_server: S3Server, prefix: str) -> Open:
    """Open a provider, through a proxy or a front end if an address is given."""

    def open_provider(via: Address | None = None, **options: str) -> LockProvider:
        return open_url(s3_server.url(via=via, prefix=prefix), **(OPTIONS | options))

    return open_provider


@pytest.fixture(scope="session")
def shared_provider(s3_server: S3Server, shared_prefix: str) -> Iterator[Open]:
    with ExitStack() as stack:

        @cache
        def open_once(kind: str, via: Address | None = None) -> LockProvider:
            return open_one(
                stack,
                kind,
                S3LockProvider,
                AsyncS3LockProvider,
                s3_server.url(via=via, prefix=shared_prefix),
                **OPTIONS,
            )

        yield open_once


@pytest.fixture
def provider(kind: str, prefix: str, shared_provider: Open) -> LockProvider:
    return shared_provider(kind)
