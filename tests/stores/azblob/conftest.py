"""A prefix for each test of this directory, and providers on it, sync or async."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from shedlock_py import LockProvider
from shedlock_py.providers.azblob import AsyncAzureBlobLockProvider, AzureBlobLockProvider
from shedlock_py.testing.proxy import Address
from tests.stores.clients import open_one
from tests.support.azblob import AzuriteServer, blob_url
from tests.support.front_end import FrontEnd

Open = Callable[..., LockProvider]
OPTIONS = {"clock_error": "0s", "timeout": "20s"}
"""The server has one clock. A long time limit suits a busy machine: these tests are not about time limits."""


@pytest.fixture
def kind() -> str:
    """Sync: both clients carry out the same programs. Tests of the clients themselves use ``both_clients``."""
    return "sync"


@pytest.fixture
def prefix() -> str:
    return f"tests-{uuid4().hex[:8]}"


@pytest.fixture
def front_end(azblob_server: AzuriteServer) -> Iterator[FrontEnd]:
    with FrontEnd(azblob_server.address) as front_end:
        yield front_end


@pytest.fixture
def open_url(kind: str) -> Iterator[Open]:
    """Open a provider with a URL."""
    with ExitStack() as stack:
        yield lambda url, **options: open_one(
            stack, kind, AzureBlobLockProvider, AsyncAzureBlobLockProvider, url, **(OPTIONS | options)
        )


@pytest.fixture
def open_provider(open_url: Open, azblob_server: AzuriteServer, prefix: str) -> Open:
    """Open a provider, through a proxy or a front end if an address is given, with the key or other credentials."""

    def open_provider(via: Address | None = None, credentials: str | None = None, **options: str) -> LockProvider:
        given = () if credentials is None else (credentials,)
        return open_url(blob_url(via or azblob_server.address, prefix, *given), **options)

    return open_provider
