"""N processes call ``run_once`` for the same keys. Runners are killed, tasks raise, and the store is cut for a moment.

Each key is done, every process learns it, and a task that was known to be done does not run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace

from tests.faults.checker import Finding, Report, Rules, check, counts_of
from tests.faults.fleet import EVERYBODY, TIMEOUT, Fleet
from tests.faults.history import History, Operation
from tests.faults.registry import by_trial, scenario
from tests.faults.rules import rules_of
from tests.faults.scenarios.late_runs import outage_of
from tests.faults.scenarios.recoveries import as_acquires
from tests.faults.worker import Behaviour
from tests.support.stores import Store

BEHAVIOUR = Behaviour(at_most=1.0, work=(0.2, 0.6), runs_once=True, fails=0.3)
SIZE = 4
KEYS = 5
KILLS_PER_TRIAL = 2
LONGEST_CUT = 1.0
LONGEST_RUN = 3 * TIMEOUT
"""Seconds, for all keys."""


@scenario(20, "run_once, runners killed, store cut", least=2)
@by_trial
def once(store: Store, seed: int, number: int) -> Report:
    return one_trial(store, seed)


def one_trial(store: Store, seed: int, *, provider: str | None = None) -> Report:
    with ExitStack() as stack:
        proxies, outage = outage_of(store, stack)
        via = [proxy.address for proxy in proxies]
        fleet = stack.enter_context(Fleet(store, size=0, names=KEYS, behaviour=BEHAVIOUR, seed=seed, provider=provider))
        for _ in range(SIZE):
            fleet.add(via=via)

        def is_done() -> bool:
            known = [fleet.count("once", "ran", worker=w) + fleet.count("once", "learned", worker=w) for w in workers]
            return min(known) == KEYS

        workers = fleet.workers
        for number in range(KILLS_PER_TRIAL):
            fleet.wait(lambda: fleet.holders() or is_done(), "a task that runs")
            if holders := fleet.holders():
                fleet.kill(fleet.random.choice(holders))
                fleet.add(via=via)
            if number == 0:
                with fleet.disturbed(EVERYBODY, [*via, *store.addresses]), outage():
                    fleet.run_for(fleet.random.uniform(0.2, LONGEST_CUT))
        fleet.wait(is_done, f"{KEYS} keys done, and known to all", timeout=LONGEST_RUN)
        return judge(fleet.end(), rules_of(store))


def judge(history: History, rules: Rules) -> Report:
    """Run :func:`check` on the leases; and check that each key is done once."""
    report = check(without_skips(as_acquires(history)), rules)
    report.findings += [*_run_again(history), *_learned_early(history), *_not_told(history), *_stuck(history)]
    report.counts = counts_of(history)
    return report


def without_skips(history: History) -> History:
    """Leave out skips: the key was done, or another process ran it. Keep late copies: they may have been granted."""
    operations = []
    for operation in history.operations:
        if operation.outcome != "skipped":
            operations.append(operation)
        elif late := operation.late_copies:
            operations.append(replace(operation, outcome="error", at_store=late))
    return replace(history, operations=tuple(operations))


def _run_again(history: History) -> Iterator[Finding]:
    """Yield grants of a key after its task was done and released."""
    ends = {end.name: end for end in reversed([*_ends_of_done(history)]) if end.outcome == "done"}
    for run in history.of("acquire", "recover", outcome="granted"):
        end = ends.get(run.name)
        if end is not None and (run.token or 0) > (end.token or 0):
            yield Finding("once", run.name, f"{run.worker} ran what {end.worker} had done", run.started)


def _learned_early(history: History) -> Iterator[Finding]:
    """Yield calls that learned that the key is done before a runner began to release the lease of a done task."""
    ends = _by_name(_ends_of_done(history))
    for call in history.of("once", outcome="learned"):
        if not any(end.started < call.end for end in ends[call.name]):
            yield Finding("once", call.name, f"{call.worker} learned that it is done, and it was not", call.end)


def _not_told(history: History) -> Iterator[Finding]:
    """Yield calls that ended with TaskNotDone, although their last read began after the end of a done task."""
    ends = _by_name(end for end in _ends_of_done(history) if end.outcome == "done")
    reads = _by_name(history.of("record", outcome="done"))
    for call in history.of("once"):
        if call.outcome != "stuck" and not call.error.startswith("TaskNotDone"):
            continue
        own = [r.started for r in reads[call.name] if r.worker == call.worker and call.started <= r.started < call.end]
        if any(end.end < max(own, default=call.started) for end in ends[call.name]):
            yield Finding("once", call.name, f"{call.worker} was not told that it is done", call.end)


def _stuck(history: History) -> Iterator[Finding]:
    """Yield calls that waited while nobody ran the task, although nothing was wrong."""
    for call in history.of("once", outcome="stuck"):
        yield Finding("once", call.name, f"{call.worker} waited in vain, although nothing was wrong", call.end)


def _ends_of_done(history: History) -> Iterator[Operation]:
    """Yield the releases of leases under which a task was done."""
    done = {task.claim for task in history.of("task", outcome="done")}
    return (end for end in history.of("release") if end.claim in done)


def _by_name(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    found: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        found[operation.name].append(operation)
    return found
