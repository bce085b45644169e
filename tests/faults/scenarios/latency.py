"""A slow network: an answer takes up to twice the lease, and never the same time."""

from __future__ import annotations

from contextlib import ExitStack

from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Report, check
from tests.faults.fleet import Fleet
from tests.faults.registry import by_trial, scenario
from tests.faults.rules import LATE, rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import WITH_NETWORK, Store

LEASE = 0.6
BEHAVIOUR = Behaviour(at_most=LEASE, work=(0.0, 0.4), pause=(0.0, 0.05), extends=0.5, keeps_alive=0.3, forgets=0.1)
SHARES = (2.0, 1.0, 0.25)
"""The longest round trip, in leases; the trials take turns."""
SECONDS = 3.0


@scenario(6, "latency up to twice the lease", stores=WITH_NETWORK, least=3)
@by_trial
def slow(store: Store, seed: int, number: int) -> Report:
    """Every worker is behind a slow proxy of its own; in the end the network is quick again."""
    longest = SHARES[number % len(SHARES)] * LEASE / 2  # of each direction
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(store, size=0, behaviour=BEHAVIOUR, seed=seed))
        proxies = []
        for _ in range(3):
            mine = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
            worker = fleet.add(via=[proxy.address for proxy in mine])
            fleet.wait_for_grants(1, worker=worker)  # connected
            proxies += mine
        for proxy in proxies:
            proxy.delay(to_server=(0.0, longest), to_client=(0.0, longest))
        fleet.run_for(SECONDS)
        for proxy in proxies:
            proxy.delay()
        fleet.wait_for_grants(3)
        return check(fleet.end(), rules_of(store, late=2 * longest + LATE))
