"""Stores for the short form of the scenarios, on the servers that all tests share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.faults.fleet import shared_fork_server
from tests.support.stores import STORES, Store, on_private_server


@pytest.fixture(scope="session")
def shared_store(make_store: Callable[..., Store]) -> Callable[[str], Store]:
    """Make each store once. But each test has a new quorum: tests restart its servers, which keep nothing."""
    shared = cache(make_store)
    return lambda name: make_store(name) if name == "quorum" else shared(name)


@pytest.fixture(scope="session")
def workers() -> None:
    """Start the process that forks the workers."""
    shared_fork_server()


@pytest.fixture
def store(request: pytest.FixtureRequest, workers: None, shared_store: Callable[[str], Store]) -> Iterator[Store]:
    """``@pytest.mark.parametrize("store", ["redis sync", "redis async private"], indirect=True)``.

    "private": on a server that the test may stop and empty.
    """
    name, kind, *private = request.param.split()
    with ExitStack() as stack:
        store = shared_store(name)
        if private:
            store = stack.enter_context(on_private_server(stack.enter_context(STORES[name].open())))
        yield store.asynchronous() if kind == "async" else store.sync()
