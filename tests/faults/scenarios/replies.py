"""The store did what it was asked, and its reply is lost."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Report, check
from tests.faults.fleet import Fleet
from tests.faults.registry import Run, by_trial, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import WITH_NETWORK, Store

OTHERS = Behaviour(at_most=0.6, work=(0.0, 0.05), pause=(0.02, 0.08))
VICTIM = Behaviour(at_most=0.6, at_least=0.05, work=(0.02, 0.15), pause=(0.0, 0.02), extends=0.5)
LOSSES_PER_TRIAL = 4


def _trial(store: Store, seed: int, number: int, *, operation: str) -> Report:
    """Replies to one worker's ``operation`` are lost: once, so that a retry helps, or as often as it retries."""
    behaviour = replace(VICTIM, extends={"extend": 1.0, "release": 0.0}.get(operation, VICTIM.extends))
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
        fleet = stack.enter_context(Fleet(store, size=2, behaviour=OTHERS, seed=seed))
        victim = fleet.add(via=[proxy.address for proxy in proxies], behaviour=behaviour)
        fleet.wait_for_grants(1, worker=victim)
        for _ in range(LOSSES_PER_TRIAL):
            fleet.wait_until_working(victim, is_working=operation != "acquire")
            times = fleet.random.choice((1, 1, 2, 3))
            hit = proxies if fleet.random.random() < 0.5 else [fleet.random.choice(proxies)]
            for proxy in hit:
                proxy.drop_replies_to(fleet.names[0], times)
            fleet.wait(partial(_are_lost, hit), "the replies lost")
        fleet.wait_for_grants(2, worker=victim)
        report = check(fleet.end(), rules_of(store))
        report.counts["reply lost"] = sum(proxy.replies_dropped for proxy in proxies)
        return report


def _are_lost(proxies: list[TcpProxy]) -> bool:
    return not any(proxy.drops_left for proxy in proxies)


def _lost(operation: str) -> Run:
    name = f"reply to {operation} lost"
    return scenario(5, name, stores=WITH_NETWORK, least=3)(by_trial(partial(_trial, operation=operation)))


acquire, extend, release = _lost("acquire"), _lost("extend"), _lost("release")
