"""Sync and async providers on etcd, and a different name for each lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import LockProvider
from shedlock_py.providers.etcd import AsyncEtcdLockProvider, EtcdLockProvider
from shedlock_py.testing.blocking import BlockingLockProvider

Open = Callable[..., LockProvider]


@pytest.fixture
def kind() -> str:
    """Sync: both clients carry out the same programs. Tests of the clients themselves use ``both_clients``."""
    return "sync"


@pytest.fixture
def open_url(kind: str) -> Iterator[Open]:
    """``open_url(url, timeout="1s")`` opens a provider, and the fixture closes it. An async provider is behind a sync
    facade."""
    with ExitStack() as stack:

        def open_one(url: str, **options: Any) -> LockProvider:
            if kind == "sync":
                return stack.enter_context(closing(EtcdLockProvider(url, **options)))
            return stack.enter_context(BlockingLockProvider(partial(AsyncEtcdLockProvider, url, **options)))

        yield open_one


@pytest.fixture
def name() -> str:
    return f"job-{uuid4().hex[:12]}"
