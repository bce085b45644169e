"""Round trips to each server, and the number of threads for many callers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest

from shedlock_py import Lease, LockProvider
from shedlock_py.providers.redis.quorum.broadcast import THREADS_PER_SERVER
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired, outcome
from tests.support.polling import wait_until

pytestmark = pytest.mark.usefixtures("long_grace")

HERD = 50


@pytest.mark.parametrize("history", [0, 50])
def test_an_acquire_costs_each_server_two_round_trips(quorum: Quorum, kind: str, history: int) -> None:
    """The cheapest of a few attempts shows the steady state: other attempts connect, or load the scripts."""
    provider = quorum.provider(kind=kind, via_proxies=True, history=history)
    costs: dict[str, list[int]] = {}

    def measure(operation: str, work: Callable[[], object]) -> None:
        provider.record(NAME)  # waits for all servers, including slower ones
        for proxy in quorum.proxies:
            proxy.reset()
        work()
        provider.record(NAME)
        costs.setdefault(operation, []).append(max(proxy.round_trips for proxy in quorum.proxies) - 1)

    for _ in range(5):
        leases: list[Lease] = []
        measure("acquire", partial(acquire_into, leases, provider))
        measure("skip", lambda: outcome(provider))
        measure("extend", partial(provider.extend, leases[0], timedelta(minutes=1)))
        measure("release", partial(provider.release, leases[0]))
        measure("release again", partial(provider.release, leases[0]))
    cheapest = {operation: min(found) for operation, found in costs.items()}
    assert cheapest == {"acquire": 2, "skip": 1, "extend": 1, "release": 1, "release again": 0}


def acquire_into(leases: list[Lease], provider: LockProvider) -> None:
    leases.append(acquired(provider))


@pytest.mark.slow("a herd of skips")
@pytest.mark.parametrize("hangs", [False, pytest.param(True, marks=pytest.mark.slow("a herd before a hanging server"))])
def test_a_herd_of_skips_needs_no_more_threads(quorum: Quorum, hangs: bool) -> None:
    """Each server has a limited number of threads, and the threads end. A hanging server needs no more."""
    before = set(threading.enumerate())
    provider = quorum.provider()
    acquired(provider)
    if hangs:
        quorum.servers[0].pause()
    with ThreadPoolExecutor(HERD) as pool:
        outcomes = list(pool.map(lambda _: outcome(provider), range(HERD)))
    assert outcomes == ["skip"] * HERD

    def threads() -> list[threading.Thread]:
        return [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("shedlock-quorum")]

    assert len(threads()) <= quorum.size * 2 * THREADS_PER_SERVER
    quorum.servers[0].resume()
    wait_until(lambda: not threads(), what="the threads gone")
