"""Holders that die without a word."""

from __future__ import annotations

from tests.faults.checker import Report, check
from tests.faults.fleet import Fleet
from tests.faults.registry import by_trial, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import Store

BEHAVIOUR = Behaviour(at_most=0.7, at_least=0.1, work=(0.0, 0.2), pause=(0.0, 0.04), extends=0.5, keeps_alive=0.3)
KILLS_PER_TRIAL = 4


@scenario(1, "kill -9 of holders", weight=1.5, least=5)
@by_trial
def kills(store: Store, seed: int, number: int) -> Report:
    """Workers on two names; one of them dies at a random moment, most often a holder, and a new one takes its place."""
    with Fleet(store, size=3, names=2, behaviour=BEHAVIOUR, seed=seed) as fleet:
        for _ in range(KILLS_PER_TRIAL):
            fleet.run_for(fleet.random.uniform(0.0, 0.2))
            victim = fleet.wait_for_holder() if fleet.random.random() < 0.8 else fleet.random.choice(fleet.workers)
            fleet.kill(victim)
            fleet.add()
        fleet.wait_for_each_name()
        return check(fleet.end(), rules_of(store))
