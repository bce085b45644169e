"""Providers on Kubernetes, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import LockProvider
from shedlock_py.providers.kubernetes import AsyncKubernetesLockProvider, KubernetesLockProvider
from shedlock_py.testing.blocking import BlockingLockProvider

Open = Callable[..., LockProvider]


@pytest.fixture(params=["sync", "async"])
def open_url(request: pytest.FixtureRequest) -> Iterator[Open]:
    """``open_url(url, timeout="1s")`` opens a provider, and the fixture closes it. An async provider is behind a sync
    facade."""
    with ExitStack() as stack:

        def open_one(url: str, **options: Any) -> LockProvider:
            if request.param == "sync":
                return stack.enter_context(closing(KubernetesLockProvider(url, **options)))
            return stack.enter_context(BlockingLockProvider(partial(AsyncKubernetesLockProvider, url, **options)))

        yield open_one


@pytest.fixture
def namespace() -> str:
    return f"tests-{uuid4().hex[:12]}"
