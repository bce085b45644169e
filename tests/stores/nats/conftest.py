"""Sync and async providers on NATS, and a different name for each lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from uuid import uuid4

import pytest

from shedlock_py import LockProvider
from shedlock_py.providers.nats import AsyncNatsLockProvider, NatsLockProvider
from tests.stores.clients import open_one
from tests.support.nats import NatsServer

Open = Callable[..., LockProvider]


@pytest.fixture
def kind() -> str:
    """Sync: it uses the async client. Tests of the clients themselves use ``both_clients``."""
    return "sync"


@pytest.fixture
def open_url(kind: str) -> Iterator[Open]:
    """``open_url(url, timeout="1s")`` opens a provider, and the fixture closes it."""
    with ExitStack() as stack:
        yield partial(open_one, stack, kind, NatsLockProvider, AsyncNatsLockProvider)


@pytest.fixture(scope="session")
def bucket(nats_server: NatsServer) -> str:
    """A bucket for all tests with locks of different names."""
    name = f"bucket-{uuid4().hex[:8]}"
    with closing(NatsLockProvider(nats_server.url(name))) as provider:
        provider.create_schema()
    return name


@pytest.fixture
def name() -> str:
    return f"job-{uuid4().hex[:12]}"
