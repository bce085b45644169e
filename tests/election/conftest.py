from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from shedlock_py import LeaderElector, configure
from shedlock_py.testing import RecordingListener
from tests.election.electors import DURATIONS, Elector, LoopElector
from tests.support.doubles import FaultyProvider
from tests.support.loop_threads import EventLoopThread

MakeElector = Callable[..., Any]
"""Make an elector for ``holder``, with options, on the test's store or on ``provider``."""


@pytest.fixture
def listener() -> Iterator[RecordingListener]:
    listener = RecordingListener()
    with configure(listeners=[listener]):
        yield listener


@pytest.fixture
def store() -> Iterator[FaultyProvider]:
    store = FaultyProvider()
    yield store
    store.recover()


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of elector. A test for one kind parametrizes it again."""
    return str(request.param)


@pytest.fixture
def make_elector(store: FaultyProvider, kind: str) -> Iterator[MakeElector]:
    """Make electors, and stop them at the end."""
    with ExitStack() as stack:
        loop = stack.enter_context(closing(EventLoopThread())) if kind == "asyncio" else None

        def make(holder: str = "me", provider: Any = None, **options: Any) -> Elector:
            options = {**DURATIONS, **options}
            elector: Elector
            if loop is None:
                elector = LeaderElector(provider or store, "election", holder=holder, **options)
            else:
                elector = LoopElector(loop, provider or store, "election", holder=holder, **options)
            stack.callback(elector.stop, "20s")
            return elector

        yield make
        store.recover()
