from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from shedlock_py import LeaderElector, configure
from shedlock_py.testing import RecordingListener
from tests.support.doubles import FaultyProvider

DURATIONS = {"lease_duration": "600ms", "renew_deadline": "400ms", "retry_period": "100ms"}
"""Short, because tests wait for them."""

MakeElector = Callable[..., LeaderElector]


@pytest.fixture
def heard() -> Iterator[RecordingListener]:
    heard = RecordingListener()
    with configure(listeners=[heard]):
        yield heard


@pytest.fixture
def store() -> Iterator[FaultyProvider]:
    store = FaultyProvider()
    yield store
    store.recover()


@pytest.fixture
def make_elector(store: FaultyProvider) -> Iterator[MakeElector]:
    """Electors that are stopped at the end."""
    with ExitStack() as stack:

        def make(holder: str = "me", **options: Any) -> LeaderElector:
            elector = LeaderElector(store, "election", holder=holder, **{**DURATIONS, **options})
            stack.callback(elector.stop, "20s")
            return elector

        yield make
        store.recover()
