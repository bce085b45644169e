"""Replicas with different clocks attempt the same fire times, and die at any moment. Jobs are shorter than the skew.

A granted fire time is used up, even by a run that never ends: a fire time has at most one run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from tests.faults.checker import Finding, Report, Rules, check
from tests.faults.fleet import TIMEOUT, Fleet
from tests.faults.history import History, Operation
from tests.faults.registry import by_trial, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import Store

EVERY = 0.2
"""Seconds from one fire time to the next."""
SKEWS = (0.0, 0.08, -0.08)
"""Seconds by which the wall clocks of replicas are wrong: longer than a job."""
BEHAVIOUR = Behaviour(at_most=0.3, work=(0.0, 0.03), extends=0.1, fires_every=EVERY)
KILLS_PER_TRIAL = 3
FIRE_TIMES_PER_TRIAL = 4
"""Fire times that are granted after the kills."""


@scenario(7, "fire times, skewed clocks, kill -9", least=3)
@by_trial
def fire_times(store: Store, seed: int, number: int) -> Report:
    return one_trial(store, seed)


def one_trial(store: Store, seed: int, *, provider: str | None = None, kills: int = KILLS_PER_TRIAL) -> Report:
    """A replica, sometimes a holder, dies at a random moment. A new replica with the same clock takes its place."""
    with Fleet(store, size=0, behaviour=BEHAVIOUR, seed=seed, provider=provider) as fleet:
        skews = {fleet.add(behaviour=replace(BEHAVIOUR, skew=skew)).name: skew for skew in SKEWS}
        fleet.wait_for_grants(1)
        for number in range(kills):
            fleet.run_for(fleet.random.uniform(0.0, EVERY))
            victim = fleet.wait_for_holder() if number % 2 else fleet.random.choice(fleet.workers)
            fleet.kill(victim)
            skew = skews[victim.name]
            skews[fleet.add(behaviour=replace(BEHAVIOUR, skew=skew)).name] = skew
        fleet.wait_for_grants(FIRE_TIMES_PER_TRIAL)
        return judge(fleet.end(), rules_of(store))


# A replica with a clock that is a day ahead: its fire times are errors, and the jobs of the others go on

AHEAD = 86_400.0
"""Seconds."""
REFUSALS = 3
"""Refused fire times of the wrong clock, in each trial."""
GRANTS = 4
"""Grants to the replicas with right clocks, after the refusals."""


@scenario(16, "a clock a day ahead", least=3)
@by_trial
def wrong_clock(store: Store, seed: int, number: int) -> Report:
    return one_trial_with_a_wrong_clock(store, seed)


def one_trial_with_a_wrong_clock(
    store: Store, seed: int, *, provider: str | None = None, timeout: float = TIMEOUT
) -> Report:
    """The wrong clock comes and goes. The right clocks are granted fire times before, during and after."""
    with Fleet(store, size=0, behaviour=BEHAVIOUR, seed=seed, provider=provider) as fleet:
        for skew in SKEWS[:2]:
            fleet.add(behaviour=replace(BEHAVIOUR, skew=skew))
        fleet.wait_for_grants(1)
        wrong = fleet.add(behaviour=replace(BEHAVIOUR, skew=AHEAD))
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
        return judge(fleet.end(), rules_of(store))


# The judge


def judge(history: History, rules: Rules) -> Report:
    """Run :func:`check`, where a fire time that has passed is a good reason for a skip; and check I11."""
    report = check(without_refusals(history), rules)
    report.findings += repeated(history)
    refused = len(history.operations) - len(without_refusals(history).operations)
    report.counts += Counter({"fire time refused": refused, "acquire skipped": refused})
    return report


def repeated(history: History) -> Iterator[Finding]:
    """Yield grants of a fire time that was granted before, or that is older than a granted fire time."""
    runs = [run for run in history.of("acquire", outcome="granted") if run.fire_time is not None]
    for number, run in enumerate(runs):
        for earlier in runs[:number]:
            if earlier.name != run.name:
                continue
            if earlier.fire_time == run.fire_time:
                text = f"{earlier.worker} and {run.worker} both ran at {run.fire_time}"
                yield Finding("fire time", run.name, text, run.started)
            elif earlier.end < run.started and _of(earlier) > _of(run):
                text = f"{run.worker} ran at {run.fire_time}, after {earlier.worker} had at {earlier.fire_time}"
                yield Finding("fire time", run.name, text, run.started)


def without_refusals(history: History) -> History:
    """Leave out skips that came when that fire time, or a later fire time, may have been granted.

    Keep their late copies: these may have been granted.
    """
    used = {name: Used(attempts) for name, attempts in _by_name(history.of("acquire")).items()}
    kept = []
    for operation in history.operations:
        if operation.outcome != "skipped" or not used[operation.name].has_been(operation):
            kept.append(operation)
        elif late := operation.late_copies:
            kept.append(replace(operation, outcome="error", at_store=late))
    return replace(history, operations=tuple(kept))


def _by_name(attempts: list[Operation]) -> dict[str, list[Operation]]:
    by_name: dict[str, list[Operation]] = {}
    for attempt in attempts:
        by_name.setdefault(attempt.name, []).append(attempt)
    return by_name


class Used:
    """The fire times of one lock that the store may have granted."""

    def __init__(self, attempts: list[Operation]) -> None:
        may_be = [attempt for attempt in attempts if attempt.outcome != "skipped"]
        lasting = [(attempt.started, _of(attempt)) for attempt in may_be if not attempt.is_undone]
        skipped = (attempt for attempt in attempts if attempt.outcome == "skipped")
        lasting += [(moment, _of(attempt)) for attempt in skipped for moment in attempt.late_copies]
        lasting.sort()
        self._begins = [begin for begin, _ in lasting]
        self._newest = list(accumulate((fire_time for _, fire_time in lasting), max))
        self._undone = [attempt for attempt in may_be if attempt.is_undone]

    def has_been(self, skipped: Operation) -> bool:
        fire_time = skipped.fire_time
        if fire_time is None:
            return False
        before = bisect_left(self._begins, skipped.decided)
        return (before > 0 and self._newest[before - 1] >= fire_time) or any(
            # An undo gives back its fire time, and no earlier fire time.
            other.started < skipped.end
            and (_of(other) > fire_time or (_of(other) == fire_time and other.undone_by > skipped.started))
            for other in self._undone
        )


def _of(attempt: Operation) -> float:
    return float("-inf") if attempt.fire_time is None else attempt.fire_time
