"""Stores for the short form of the scenarios, on the servers that all tests share."""

from collections.abc import Callable
from functools import cache

import pytest

from tests.support.stores import Store


@pytest.fixture(scope="session")
def shared_store(make_store: Callable[..., Store]) -> Callable[[str], Store]:
    """One of each name. Other tests restart the servers of a quorum, which keep nothing: each test has a new one."""
    shared = cache(make_store)
    return lambda name: make_store(name) if name == "quorum" else shared(name)


@pytest.fixture
def store(request: pytest.FixtureRequest, shared_store: Callable[[str], Store]) -> Store:
    """``@pytest.mark.parametrize("store", ["redis sync", "redis async"], indirect=True)``."""
    name, kind = request.param.split()
    store = shared_store(name)
    return store.asynchronous() if kind == "async" else store.sync()
