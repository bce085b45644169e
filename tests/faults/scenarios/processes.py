"""Holders that die silently, or are stopped past their lease, as in a garbage collection or under a laptop's lid."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.checker import Finding, Report, check
from tests.faults.fleet import Fleet
from tests.faults.history import History
from tests.faults.registry import by_trial, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import Store

MORTAL = Behaviour(at_most=0.7, at_least=0.1, work=(0.0, 0.2), pause=(0.0, 0.04), extends=0.5, keeps_alive=0.3)
# Careless workers go on writing without a trusted lease. The fencing token must catch them.
CARELESS = Behaviour(at_most=0.6, work=(0.05, 0.3), pause=(0.0, 0.04), extends=0.3, keeps_alive=0.3, is_careless=True)
KILLS_PER_TRIAL = 4
STOPS_PER_TRIAL = 3


@scenario(1, "kill -9 of holders", weight=1.5, least=5)
@by_trial
def kills(store: Store, seed: int, number: int) -> Report:
    """Workers on two names. A worker, most often a holder, dies at a random moment, and a new worker replaces it."""
    with Fleet(store, size=3, names=2, behaviour=MORTAL, seed=seed) as fleet:
        for _ in range(KILLS_PER_TRIAL):
            fleet.run_for(fleet.random.uniform(0.0, 0.2))
            victim = fleet.wait_for_holder() if fleet.random.random() < 0.8 else fleet.random.choice(fleet.workers)
            fleet.kill(victim)
            fleet.add()
        fleet.wait_for_each_name()
        return check(fleet.end(), rules_of(store))


@scenario(2, "SIGSTOP past the lease", least=3)
@by_trial
def stops(store: Store, seed: int, number: int) -> Report:
    """A holder is stopped at work until another worker has written. It goes on, and knows at once."""
    with Fleet(store, size=3, behaviour=CARELESS, seed=seed) as fleet:
        for _ in range(STOPS_PER_TRIAL):
            victim = fleet.stop_at_work()
            fleet.wait_for_later_write(victim)
            fleet.resume(victim)
            fleet.wait_for_grants(1)
        history = fleet.end()
    report = check(history, rules_of(store))
    report.findings += knows_too_late(history)
    return report


def knows_too_late(history: History) -> Iterator[Finding]:
    """Yield operations of a holder, stopped past its lease, that were not refused, and checks that say trusted."""
    for stopped in (mark for mark in history.marks if mark.kind == "stopped"):
        own = [mark for mark in history.marks if mark.worker == stopped.worker]
        resumed = next(mark for mark in own if mark.kind == "resumed" and mark.before > stopped.after)
        held = [o for o in history.of("acquire", outcome="granted", worker=stopped.worker) if o.end < stopped.after][-1]
        for later in history.operations:
            is_after = later.claim == held.claim and later.started > resumed.before
            if is_after and later.outcome in ("trusted", "done"):
                text = f"{held.worker} was stopped past its lease, and its {later.kind} says {later.outcome}"
                yield Finding("trust", held.name, text, later.started)
