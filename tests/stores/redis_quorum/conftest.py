"""Quorums for the tests of this directory."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from shedlock_py.providers.redis.quorum import broadcast as quorum_clients
from tests.stores.redis_quorum.quorums import Quorum
from tests.support.redis import RedisServer

MakeQuorum = Callable[..., Quorum]


@pytest.fixture(params=[3, 5])
def size(request: pytest.FixtureRequest) -> int:
    """Override with `@pytest.mark.parametrize("size", …)` where one will do."""
    return int(request.param)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations wait for all servers that are up, however busy this machine is: what a test reads next is done.

    A server that stands still for longer than ``BROADCAST_SECONDS`` counts as silent.
    """
    monkeypatch.setattr(quorum_clients, "BROADCAST_SECONDS", 4.0)
    monkeypatch.setattr(quorum_clients, "GRACE_SECONDS", 1.0)


@pytest.fixture
def make_quorum(redis_nodes: list[RedisServer], size: int) -> Iterator[MakeQuorum]:
    """Quorums, one after another, on the same servers."""
    with ExitStack() as stack:

        def make(*, create: bool = True) -> Quorum:
            quorum = Quorum(redis_nodes[:size], create=create)
            stack.callback(quorum.close)
            return quorum

        yield make


@pytest.fixture
def quorum(make_quorum: MakeQuorum) -> Quorum:
    return make_quorum()
