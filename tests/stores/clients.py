"""Choose a store's clients for a test: sync, async or both."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest

from shedlock_py import LockProvider
from shedlock_py.testing.blocking import BlockingLockProvider


def open_one(
    stack: ExitStack, kind: str, sync: Callable[..., Any], asynchronous: Callable[..., Any], url: str, **options: str
) -> LockProvider:
    """Open a provider that ``stack`` closes. Wrap an async provider in a sync facade."""
    if kind == "async":
        return stack.enter_context(BlockingLockProvider(lambda: asynchronous(url, **options)))
    provider: LockProvider = stack.enter_context(closing(sync(url, **options)))
    return provider


both_clients = pytest.mark.parametrize("kind", ["sync", "async"])
"""For tests of the client itself: the programs do not depend on it. The fixture ``kind`` is "sync" or "async"."""

only_async = pytest.mark.parametrize("kind", ["async"])

both_clients_in_full = pytest.mark.parametrize(
    "kind",
    ["sync", pytest.param("async", marks=pytest.mark.slow("the contract and other tests here run the async client"))],
)
