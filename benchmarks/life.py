"""A lease's cost without work: heartbeats of keep-alive, renewals of a leader, reads of a follower.

A proxy counts round trips. SQLite has no round trips, so its calls of the provider are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from benchmarks.contenders.ours import from_url
from benchmarks.plan import Plan
from benchmarks.servers import RunningStore, Site, running
from shedlock_py import LeaderElector, LockProvider, LockRequest, hold
from shedlock_py.testing.proxy import TcpProxy
from tests.support.polling import wait_until

KEPT_SECONDS = 3.0
HEARTBEATS = 6

Count = Callable[[], int]
"""Returns the number of requests to the store so far."""


def measure(plan: Plan) -> dict[str, dict[str, float]]:
    """Measure all stores at the same time: most of it is waiting. Return the figures by store."""
    with ExitStack() as stack:
        elections: dict[str, _Election] = {}
        found: dict[str, dict[str, float]] = {}
        for name in plan.stores:
            with plan.reported(name, "leader and follower"):
                store = stack.enter_context(running(name))
                elections[name] = _Election.begin(store, stack)
        began = monotonic()
        before = {name: (one.leader(), one.follower()) for name, one in elections.items()}
        for name, election in elections.items():
            with plan.reported(name, "keep-alive"):
                found[name] = {"keep_alive_per_lease": _kept_alive(election.store)}
        sleep(max(0.0, began + plan.election_seconds - monotonic()))
        minutes = (monotonic() - began) / 60
        for name, election in elections.items():
            leader, follower = before[name]
            found.setdefault(name, {})["leader_per_minute"] = (election.leader() - leader) / minutes
            found[name]["follower_per_minute"] = (election.follower() - follower) / minutes
        return found


def _watched(site: Site, stack: ExitStack) -> tuple[LockProvider, Count]:
    """Return a provider, and a counter of its requests to the store."""
    if site.store == "sqlite":
        counted: Any = _Counted(_used(site, stack))
        return counted, lambda: counted.calls
    proxy = stack.enter_context(TcpProxy(site.address))
    return _used(site.via(proxy.address), stack), lambda: proxy.round_trips


def _used(site: Site, stack: ExitStack) -> LockProvider:
    """Return a provider after its first use: Redis loads each script at its first call."""
    provider: LockProvider
    provider, close = from_url(site)
    stack.callback(close)
    provider.create_schema()
    warm = provider.acquire(LockRequest(f"warm-{id(provider)}", "1m"))
    assert warm is not None
    provider.extend(warm, "1m")
    return provider


class _Counted:
    """A provider that counts its operations."""

    def __init__(self, provider: LockProvider) -> None:
        self._provider = provider
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._provider, name)
        if name not in ("acquire", "extend", "release", "record"):
            return found

        def counted(*arguments: Any) -> Any:
            self.calls += 1
            return found(*arguments)

        return counted


def _kept_alive(store: RunningStore) -> float:
    """Count with a short lease: heartbeats come each third of the lease, whatever its length."""
    with ExitStack() as stack:
        provider, count = _watched(store.site, stack)
        with hold("kept-alive", lock_at_most_for=KEPT_SECONDS, provider=provider, keep_alive=True) as lease:
            assert lease is not None
            began, first = monotonic(), count()
            wait_until(lambda: count() - first >= HEARTBEATS, timeout=30, what="heartbeats")
            return HEARTBEATS / ((monotonic() - began) / KEPT_SECONDS)


@dataclass
class _Election:
    """A settled leader and a follower with the default settings."""

    store: RunningStore
    leader: Count
    follower: Count

    @classmethod
    def begin(cls, store: RunningStore, stack: ExitStack) -> _Election:
        provider, of_leader = _watched(store.site, stack)
        elector = stack.enter_context(LeaderElector(provider, "bench-leader", holder="node-0"))
        wait_until(elector.is_leader, timeout=30, what="a leader")
        provider, of_follower = _watched(store.site, stack)
        before = of_follower()
        stack.enter_context(LeaderElector(provider, "bench-leader", holder="node-1"))
        wait_until(lambda: of_follower() > before, timeout=30, what="the follower's first read")
        return cls(store, of_leader, of_follower)
