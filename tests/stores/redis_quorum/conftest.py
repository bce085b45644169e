"""Quorums for the tests of this directory."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from shedlock_py.providers.redis.quorum import broadcast as quorum_clients
from tests.stores.redis_quorum.quorums import Quorum
from tests.support.redis import RedisServer

MakeQuorum = Callable[..., Quorum]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test each ``size`` of a quorum and each ``kind`` of client, unless the test or its module chooses.

    ``make test`` combines three servers with a sync client, and uses every other size and kind once.
    """
    chosen = {
        name
        for mark in metafunc.definition.iter_markers("parametrize")
        for name in (re.findall(r"\w+", mark.args[0]) if isinstance(mark.args[0], str) else mark.args[0])
    }
    names = [
        name
        for name in ("size", "kind")
        if name in metafunc.fixturenames and name not in chosen and not hasattr(metafunc.module, name)
    ]
    if names:
        starts_servers = "redis_nodes" in metafunc.fixturenames
        metafunc.parametrize(",".join(names), _variants(names, starts_servers=starts_servers))


def _variants(names: Sequence[str], *, starts_servers: bool) -> list[object]:
    five = [pytest.mark.slow("five servers run the same program")] if starts_servers else []
    asynchronous = [pytest.mark.slow("an async client runs the same program")] if starts_servers else []
    repeated = pytest.mark.matrix("each size, and each kind of client, runs already")
    if list(names) == ["size"]:
        return [3, pytest.param(5, marks=five)]
    if list(names) == ["kind"]:
        return ["sync", pytest.param("async", marks=asynchronous)]
    return [
        (3, "sync"),
        pytest.param(5, "async", marks=[*five, *asynchronous]),
        pytest.param(3, "async", marks=repeated),
        pytest.param(5, "sync", marks=repeated),
    ]


@pytest.fixture
def long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make operations wait for all running servers, however busy this machine is, so that a test reads finished work.

    A server that stands still for longer than ``BROADCAST_SECONDS`` counts as silent.
    """
    monkeypatch.setattr(quorum_clients, "BROADCAST_SECONDS", 4.0)
    monkeypatch.setattr(quorum_clients, "GRACE_SECONDS", 1.0)


@pytest.fixture
def make_quorum(redis_nodes: list[RedisServer], size: int) -> Iterator[MakeQuorum]:
    """Make quorums in sequence, on the same servers."""
    with ExitStack() as stack:

        def make(*, create: bool = True) -> Quorum:
            quorum = Quorum(redis_nodes[:size], create=create)
            stack.callback(quorum.close)
            return quorum

        yield make


@pytest.fixture
def quorum(make_quorum: MakeQuorum) -> Quorum:
    return make_quorum()
