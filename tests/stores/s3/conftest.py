"""A prefix for each test of this directory, and providers on it, sync or async."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from shedlock_py import LockProvider
from shedlock_py.providers.s3 import AsyncS3LockProvider, S3LockProvider
from shedlock_py.testing.blocking import BlockingLockProvider
from shedlock_py.testing.proxy import Address
from tests.support.front_end import FrontEnd
from tests.support.s3 import S3Server

Open = Callable[..., LockProvider]


@pytest.fixture
def kind() -> str:
    """Both clients carry out the same programs. Tests of what a client does run with ``both_clients``."""
    return "sync"


@pytest.fixture
def prefix() -> str:
    return f"tests-{uuid4().hex[:8]}"


@pytest.fixture
def open_url(kind: str) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_url(url: str, **options: str) -> LockProvider:
            if kind == "async":
                return stack.enter_context(BlockingLockProvider(lambda: AsyncS3LockProvider(url, **options)))
            provider = S3LockProvider(url, **options)
            stack.callback(provider.close)
            return provider

        yield open_url


@pytest.fixture
def open_provider(open_url: Open, s3_server: S3Server, prefix: str) -> Open:
    """Opens a provider, through a proxy or a front end if an address is given; the error of the clocks is 0."""

    def open_provider(via: Address | None = None, **options: str) -> LockProvider:
        return open_url(s3_server.url(via=via, prefix=prefix), **({"clock_error": "0s"} | options))

    return open_provider


@pytest.fixture
def provider(open_provider: Open) -> LockProvider:
    return open_provider()


@pytest.fixture
def front_end(s3_server: S3Server) -> Iterator[FrontEnd]:
    with FrontEnd(s3_server.address) as front_end:
        yield front_end
