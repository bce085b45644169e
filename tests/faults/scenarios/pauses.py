"""Holders that stand still past their lease: a long collection of garbage, a laptop's lid, a migrated machine."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.checker import Finding, Report, check
from tests.faults.fleet import Fleet
from tests.faults.history import History
from tests.faults.registry import by_trial, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import Store

# Careless: they go on and write, whatever their lease says, so that the fencing token must catch it.
BEHAVIOUR = Behaviour(at_most=0.6, work=(0.05, 0.3), pause=(0.0, 0.04), extends=0.3, keeps_alive=0.3, is_careless=True)
STOPS_PER_TRIAL = 3


@scenario(2, "SIGSTOP past the lease", least=3)
@by_trial
def stops(store: Store, seed: int, number: int) -> Report:
    """A holder is stopped at work until another has written, and goes on: it knows at once, its writes are refused."""
    with Fleet(store, size=3, behaviour=BEHAVIOUR, seed=seed) as fleet:
        for _ in range(STOPS_PER_TRIAL):
            victim = fleet.stop_at_work()
            fleet.wait_for_count("write", "done", 1, but=victim.name)
            fleet.resume(victim)
            fleet.wait_for_grants(1)
        history = fleet.end()
    report = check(history, rules_of(store))
    report.findings += knows_too_late(history)
    return report


def knows_too_late(history: History) -> Iterator[Finding]:
    """Whatever a holder does with a lease that it was stopped in is refused, and it knows if it looks."""
    for stopped in (mark for mark in history.marks if mark.kind == "stopped"):
        own = [mark for mark in history.marks if mark.worker == stopped.worker]
        resumed = next(mark for mark in own if mark.kind == "resumed" and mark.before > stopped.after)
        held = [o for o in history.of("acquire", outcome="granted", worker=stopped.worker) if o.end < stopped.after][-1]
        for later in history.operations:
            is_after = later.claim == held.claim and later.started > resumed.before
            if is_after and later.outcome in ("trusted", "done"):
                text = f"{held.worker} was stopped past its lease, and its {later.kind} says {later.outcome}"
                yield Finding("trust", held.name, text, later.started)
