"""A replica whose clock is a day ahead runs beside others: its fire times are errors, and the others' jobs go on."""

from __future__ import annotations

from dataclasses import replace

from tests.faults.checker import Report
from tests.faults.fleet import TIMEOUT, Fleet
from tests.faults.registry import by_trial, scenario
from tests.faults.rules import rules_of
from tests.faults.scenarios import fire_times
from tests.support.stores import Store

AHEAD = 86_400.0
"""Seconds."""
REFUSALS = 3
"""Of the wrong clock's fire times, in each trial."""
GRANTS = 4
"""To the replicas whose clocks are right, after that."""


@scenario(16, "a clock a day ahead", least=3)
@by_trial
def wrong_clock(store: Store, seed: int, number: int) -> Report:
    return one_trial(store, seed)


def one_trial(store: Store, seed: int, *, provider: str | None = None, timeout: float = TIMEOUT) -> Report:
    """The wrong clock comes and goes; the right ones are granted fire times before, during and after."""
    behaviour = fire_times.BEHAVIOUR
    with Fleet(store, size=0, behaviour=behaviour, seed=seed, provider=provider) as fleet:
        for skew in fire_times.SKEWS[:2]:
            fleet.add(behaviour=replace(behaviour, skew=skew))
        fleet.wait_for_grants(1)
        wrong = fleet.add(behaviour=replace(behaviour, skew=AHEAD))
        fleet.wait(
            lambda: sum(fleet.count("acquire", outcome, worker=wrong) for outcome in ("error", "granted")) >= REFUSALS,
            f"{REFUSALS} attempts of the wrong clock that were not skipped",
        )
        fleet.kill(wrong)
        before = fleet.count("acquire", "granted", but=wrong.name)
        fleet.wait(
            lambda: fleet.count("acquire", "granted", but=wrong.name) >= before + GRANTS,
            f"{GRANTS} grants to the right clocks",
            timeout=timeout,
        )
        return fire_times.judge(fleet.end(), rules_of(store))
