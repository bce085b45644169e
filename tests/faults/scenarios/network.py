"""The network between workers and the store: cut one way or both, losing replies, or slow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Report, check
from tests.faults.fleet import Fleet
from tests.faults.registry import Run, by_trial, scenario
from tests.faults.rules import GRACE, LATE, rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import WITH_NETWORK, Store

LEASE = 0.6
OTHERS = Behaviour(at_most=LEASE, work=(0.0, 0.05), pause=(0.03, 0.1))

# Cut


def _cut_and_healed(store: Store, seed: int, number: int, *, cut_off: Callable[[TcpProxy], None]) -> Report:
    """A holder is cut off until others have had the lock, and then gets it again."""
    victims = Behaviour(at_most=LEASE, work=(0.3, 1.2), pause=(0.0, 0.02), extends=0.5, keeps_alive=0.5)
    arrives = number % 2 == 0 and cut_off is not _close  # what was held back is passed on in the end
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
        fleet = stack.enter_context(Fleet(store, size=2, behaviour=OTHERS, seed=seed))
        victim = fleet.add(via=[proxy.address for proxy in proxies], behaviour=victims)
        fleet.wait_until_working(victim)
        fleet.run_for(fleet.random.uniform(0.0, 0.3))
        fleet.wait_until_working(victim)
        with fleet.disturbed(victim, [*(proxy.address for proxy in proxies), *store.addresses]):
            with fleet.marked("cut", victim):
                for proxy in proxies:
                    cut_off(proxy)
            fleet.wait_for_grants(3, but=victim.name)
            with fleet.marked("healed", victim):
                for proxy in proxies:
                    if not arrives:
                        proxy.cut()
                    proxy.resume()
                    proxy.accept()
        fleet.wait_for_grants(1, worker=victim)
        fleet.run_for(GRACE + LEASE)  # what arrived last is over, and no skip is excused any more
        fleet.wait_for_grants(2)
        return check(fleet.end(), rules_of(store))


def _close(proxy: TcpProxy) -> None:
    proxy.refuse()
    proxy.cut()


def _cut(name: str, cut_off: Callable[[TcpProxy], None]) -> Run:
    return scenario(4, name, stores=WITH_NETWORK, least=2)(by_trial(partial(_cut_and_healed, cut_off=cut_off)))


both_ways = _cut("network cut, both ways", TcpProxy.stall)
to_the_store = _cut("network cut, to the store", lambda proxy: proxy.stall(to_client=False))
to_the_worker = _cut("network cut, to the worker", lambda proxy: proxy.stall(to_server=False))
closed = _cut("connections closed and refused", _close)

# The store did what was requested, and its reply is lost

LOSSES_PER_TRIAL = 4


def _reply_lost(store: Store, seed: int, number: int, *, operation: str) -> Report:
    """Replies to one worker's ``operation`` are lost: once, so that a retry helps, or as often as it retries."""
    extends = {"extend": 1.0, "release": 0.0}.get(operation, 0.5)
    victims = Behaviour(at_most=LEASE, at_least=0.05, work=(0.02, 0.15), pause=(0.0, 0.02), extends=extends)
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
        fleet = stack.enter_context(Fleet(store, size=2, behaviour=replace(OTHERS, pause=(0.02, 0.08)), seed=seed))
        victim = fleet.add(via=[proxy.address for proxy in proxies], behaviour=victims)
        fleet.wait_for_grants(1, worker=victim)
        for _ in range(LOSSES_PER_TRIAL):
            fleet.wait_until_working(victim, is_working=operation != "acquire")
            times = fleet.random.choice((1, 1, 2, 3))
            hit = proxies if fleet.random.random() < 0.5 else [fleet.random.choice(proxies)]
            for proxy in hit:
                proxy.drop_replies_to(fleet.names[0], times)
            fleet.wait(lambda hit=hit: not any(proxy.drops_left for proxy in hit), "the replies lost")  # type: ignore[misc]  # bound
        fleet.wait_for_grants(2, worker=victim)
        report = check(fleet.end(), rules_of(store))
        report.counts["reply lost"] = sum(proxy.replies_dropped for proxy in proxies)
        return report


reply_to_acquire, reply_to_extend, reply_to_release = (
    scenario(5, f"reply to {operation} lost", stores=WITH_NETWORK, least=3)(
        by_trial(partial(_reply_lost, operation=operation))
    )
    for operation in ("acquire", "extend", "release")
)

# Slow

SHARES = (2.0, 1.0, 0.25)
"""The longest round trip, in leases; the trials take turns."""
SECONDS = 3.0


@scenario(6, "latency up to twice the lease", stores=WITH_NETWORK, least=3)
@by_trial
def slow(store: Store, seed: int, number: int) -> Report:
    """Every worker is behind a slow proxy of its own; in the end the network is quick again."""
    behaviour = Behaviour(at_most=LEASE, work=(0.0, 0.4), pause=(0.0, 0.05), extends=0.5, keeps_alive=0.3, forgets=0.1)
    longest = SHARES[number % len(SHARES)] * LEASE / 2  # of each direction
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(store, size=0, behaviour=behaviour, seed=seed))
        proxies = []
        for _ in range(3):
            own = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
            worker = fleet.add(via=[proxy.address for proxy in own])
            fleet.wait_for_grants(1, worker=worker)  # connected
            proxies += own
        for proxy in proxies:
            proxy.delay(to_server=(0.0, longest), to_client=(0.0, longest))
        fleet.run_for(SECONDS)
        for proxy in proxies:
            proxy.delay()
        fleet.wait_for_grants(3)
        return check(fleet.end(), rules_of(store, late=2 * longest + LATE))
