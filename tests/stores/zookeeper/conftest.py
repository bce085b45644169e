"""Providers on ZooKeeper, and a different name for each lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py.providers.zookeeper import ZooKeeperLockProvider

Open = Callable[..., ZooKeeperLockProvider]


@pytest.fixture
def open_url() -> Iterator[Open]:
    """``open_url(url, timeout="1s")`` opens a provider, and the fixture closes it."""
    with ExitStack() as stack:

        def open_one(url: str, **options: Any) -> ZooKeeperLockProvider:
            return stack.enter_context(closing(ZooKeeperLockProvider(url, **options)))

        yield open_one


@pytest.fixture
def name() -> str:
    return f"job-{uuid4().hex[:12]}"
