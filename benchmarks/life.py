"""What a lease costs while nothing happens: heartbeats of a keep-alive, renewals of a leader, looks of a follower."""

from __future__ import annotations

from contextlib import ExitStack
from time import monotonic, sleep

from benchmarks.contenders.ours import from_url
from benchmarks.plan import Plan
from benchmarks.servers import RunningStore
from shedlock_py import LeaderElector, LockRequest, hold
from tests.services.polling import wait_until
from tests.services.proxy import TcpProxy

KEPT_SECONDS = 1.5
BEATS = 6
ELECTIONS = ("redis", "postgres")
"""Where it is counted; it is the same everywhere."""


def measure(store: RunningStore, plan: Plan) -> dict[str, float]:
    """Round trips per minute, by what is going on."""
    found = _keep_alive(store)
    if store.site.store in ELECTIONS:
        found |= _election(store, plan.election_seconds)
    return found


def _keep_alive(store: RunningStore) -> dict[str, float]:
    """Heartbeats come each third of the lease, however long it is; counted with a short one."""
    with TcpProxy(store.site.address) as proxy, ExitStack() as stack:
        provider, close = from_url(store.site.via(proxy.address))
        stack.callback(close)
        provider.create_schema()
        warm = provider.acquire(LockRequest("warm", "1m"))
        provider.extend(warm, "1m")  # Redis learns the script when it is first asked to run it
        with hold("kept-alive", lock_at_most_for=KEPT_SECONDS, provider=provider, keep_alive=True) as lease:
            assert lease is not None
            proxy.reset()
            began = monotonic()
            wait_until(lambda: proxy.round_trips >= BEATS, timeout=30, what="heartbeats")
            per_lease = BEATS / ((monotonic() - began) / KEPT_SECONDS)
    return {"keep_alive_per_lease": per_lease}


def _election(store: RunningStore, seconds: float) -> dict[str, float]:
    """With the default settings, once the leader is settled."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(store.site.address)) for _ in range(2)]
        electors = []
        for number, proxy in enumerate(proxies):
            provider, close = from_url(store.site.via(proxy.address))
            stack.callback(close)
            provider.create_schema()
            electors.append(stack.enter_context(LeaderElector(provider, "bench-leader", holder=f"node-{number}")))
            if number == 0:
                electors[0].wait_until_leader(30)
        wait_until(lambda: proxies[1].round_trips > 0, timeout=30, what="the follower's first look")
        for proxy in proxies:
            proxy.reset()
        began = monotonic()
        sleep(seconds)
        minutes = (monotonic() - began) / 60
        return {
            "leader_per_minute": proxies[0].round_trips / minutes,
            "follower_per_minute": proxies[1].round_trips / minutes,
        }
