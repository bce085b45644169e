"""Holders die in the middle of a run. The replicas that were skipped watch the run and recover it.

A run that was ended is never recovered. Two replicas never trust a lease at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.faults.checker import Finding, Report, Rules, check
from tests.faults.fleet import TIMEOUT, Fleet
from tests.faults.history import History, Operation
from tests.faults.registry import by_trial, scenario
from tests.faults.rules import rules_of
from tests.faults.scenarios import fire_times
from tests.faults.worker import Behaviour
from tests.support.stores import Store

AT_MOST = 0.6
KILLS_PER_TRIAL = 2
RECOVERIES_PER_TRIAL = 3
BEHAVIOUR = Behaviour(at_most=AT_MOST, at_least=0.1, work=(0.0, 0.3), extends=0.2, forgets=0.6, watches=True)


@scenario(18, "holders killed, and N replicas that recover", least=3)
@by_trial
def recoveries(store: Store, seed: int, number: int) -> Report:
    return one_trial(store, seed)


def one_trial(store: Store, seed: int, *, provider: str | None = None, kills: int = KILLS_PER_TRIAL) -> Report:
    """Holders die, or forget to release, and others take their place."""
    rules = rules_of(store)
    # A dead holder's lease must end before the next fire time: otherwise the next fire time is granted in its place.
    every = 2 * (AT_MOST + rules.kept)
    behaviour = replace(BEHAVIOUR, fires_every=every)
    with Fleet(store, size=4, behaviour=behaviour, seed=seed, provider=provider) as fleet:
        for _ in range(kills):
            fleet.kill(fleet.wait_for_holder())
            fleet.add()
        fleet.wait(
            lambda: fleet.count("recover", "granted") >= RECOVERIES_PER_TRIAL,
            f"{RECOVERIES_PER_TRIAL} recoveries",
            timeout=TIMEOUT + 20 * every,
        )
        return judge(fleet.end(), rules)


def judge(history: History, rules: Rules) -> Report:
    """Check the fire times, and that only runs without an end were recovered."""
    report = check(fire_times.without_refusals(as_acquires(history)), rules)
    report.findings += [*fire_times.repeated(history), *_ended_before(history), *_granted_after(history)]
    report.counts = check(history).counts
    return report


def as_acquires(history: History) -> History:
    """Replace each recovery by an acquire. Leave out refused recoveries: the record was a different record."""
    operations = []
    for operation in history.operations:
        if operation.kind != "recover":
            operations.append(operation)
        elif operation.outcome != "skipped":
            operations.append(replace(operation, kind="acquire"))
        elif late := operation.late_copies:
            operations.append(replace(operation, kind="acquire", outcome="error", at_store=late))
    return replace(history, operations=tuple(operations))


def _ended_before(history: History) -> Iterator[Finding]:
    """Yield recoveries of a run that its holder had released, or after a grant of a later fire time."""
    runs = history.of("acquire", "recover", outcome="granted")
    released = {release.claim: release for release in history.of("release", outcome="done")}
    for recovery in history.of("recover", outcome="granted"):
        earlier = [run for run in runs if run.name == recovery.name and _token(run) < _token(recovery)]
        former = max(earlier, key=_token, default=None)
        if former is None or former.fire_time is None or recovery.fire_time is None:
            continue
        release = released.get(former.claim)
        if former.fire_time > recovery.fire_time and former.granted_by < recovery.granted_from:
            text = f"{recovery.worker} recovered {recovery.fire_time}, and {former.worker} had {former.fire_time}"
            yield Finding("recovery", recovery.name, text, recovery.started)
        elif former.fire_time == recovery.fire_time and release is not None and release.decided < recovery.granted_from:
            text = f"{recovery.worker} recovered the run that {former.worker} had released"
            yield Finding("recovery", recovery.name, text, recovery.started)


def _granted_after(history: History) -> Iterator[Finding]:
    """Yield acquires of a fire time that was recovered before."""
    for recovery in history.of("recover", outcome="granted"):
        for run in history.of("acquire", outcome="granted"):
            same = (run.name, run.fire_time) == (recovery.name, recovery.fire_time)
            if same and run.started > recovery.end:
                text = f"{run.worker} ran at {run.fire_time}, which {recovery.worker} had recovered"
                yield Finding("fire time", run.name, text, run.started)


def _token(run: Operation) -> int:
    return run.token or 0
