"""The network between one worker and the store is cut, one way or both, and heals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Report, check
from tests.faults.fleet import Fleet
from tests.faults.registry import Run, by_trial, scenario
from tests.faults.rules import GRACE, rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import WITH_NETWORK, Store

OTHERS = Behaviour(at_most=0.6, work=(0.0, 0.05), pause=(0.03, 0.1))
VICTIM = Behaviour(at_most=0.6, work=(0.3, 1.2), pause=(0.0, 0.02), extends=0.5, keeps_alive=0.5)


def _trial(store: Store, seed: int, number: int, *, cut_off: Callable[[TcpProxy], None]) -> Report:
    """A holder is cut off until others have had the lock, and then gets it again."""
    arrives = number % 2 == 0 and cut_off is not _close  # what was held back is passed on in the end
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
        fleet = stack.enter_context(Fleet(store, size=2, behaviour=OTHERS, seed=seed))
        victim = fleet.add(via=[proxy.address for proxy in proxies], behaviour=VICTIM)
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
        fleet.run_for(GRACE + OTHERS.at_most)  # what arrived last is over, and no skip is excused any more
        fleet.wait_for_grants(2)
        return check(fleet.end(), rules_of(store))


def _close(proxy: TcpProxy) -> None:
    proxy.refuse()
    proxy.cut()


def _cut(name: str, cut_off: Callable[[TcpProxy], None]) -> Run:
    return scenario(4, name, stores=WITH_NETWORK, least=2)(by_trial(partial(_trial, cut_off=cut_off)))


both_ways = _cut("network cut, both ways", lambda proxy: proxy.stall())
to_the_store = _cut("network cut, to the store", lambda proxy: proxy.stall(to_client=False))
to_the_worker = _cut("network cut, to the worker", lambda proxy: proxy.stall(to_server=False))
closed = _cut("connections closed and refused", _close)
