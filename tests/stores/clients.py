"""With which client of a store a test runs."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest

from shedlock_py import LockProvider
from shedlock_py.testing.blocking import BlockingLockProvider


def open_one(
    stack: ExitStack, kind: str, sync: Callable[..., Any], asynchronous: Callable[..., Any], url: str, **options: str
) -> LockProvider:
    """A provider that ``stack`` closes. The async one is behind a sync facade."""
    if kind == "async":
        return stack.enter_context(BlockingLockProvider(lambda: asynchronous(url, **options)))
    provider: LockProvider = stack.enter_context(closing(sync(url, **options)))
    return provider


both_clients = pytest.mark.parametrize("kind", ["sync", "async"])
"""For what the client does. What a program decides is the same with both; the fixture ``kind`` says "sync"."""

only_async = pytest.mark.parametrize("kind", ["async"])

both_clients_in_full = pytest.mark.parametrize(
    "kind",
    ["sync", pytest.param("async", marks=pytest.mark.slow("the contract and other tests here run the async client"))],
)
