"""Operators among the workers: a process force-releases names, takes them over and prunes, in mid-hold.

After a force release the name is free at once. The former holder cannot know this yet, and learns it with its next
request. A take-over is a force release and an acquire in one. So the judge counts a lease as trusted only until an
operator's action on it began. The report notes how long two leases were really trusted. All other rules hold: tokens
increase, no stale write is accepted, and an attempt on a free name is granted. A prune excuses nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast
from uuid import uuid4

from tests.faults.checker import Finding, Report, Rules, check
from tests.faults.fleet import Fleet
from tests.faults.history import NEVER, History, Operation
from tests.faults.registry import Budget, scenario
from tests.faults.report import milliseconds
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import SqlStore, Store

# Careless workers go on writing without a trusted lease. The fencing token must catch them.
CAREFUL = Behaviour(at_most=0.8, at_least=0.05, work=(0.05, 0.3), pause=(0.0, 0.03), extends=0.7, keeps_alive=0.3)
CARELESS = replace(CAREFUL, keeps_alive=0.0, is_careless=True)
OPERATOR = Behaviour(
    at_most=0.8, work=(0.0, 0.1), pause=(0.02, 0.12), extends=0.3, force_releases=0.4, prunes=0.6, takes_over=1.0
)
RELEASED = frozenset({"overlap", "refused write", "minimum hold", "crash bound", "grant lost"})
"""Rules that treat a freed or taken-over lease as released; they treat all other leases as before."""
SKIPPED = frozenset({"crash bound", "grant lost"})
"""The rules among them that find wrong skips."""
INFINITY = float("inf")
ACTIONS = (("force_release", "done", 2), ("take_over", "granted", 1), ("prune", "done", 1))
"""The least number of each action in a trial."""


@scenario(10, "freed, taken over, pruned in mid-hold", weight=1.5, least=2)
def operators(store: Store, budget: Budget, seed: int) -> Report:
    return _operators(store, budget, seed, has_tokens=True)


@scenario(10, "operator, Java's table", stores=("sqlite", "postgres", "mariadb", "mysql"), least=2)
def without_extra_columns(store: Store, budget: Budget, seed: int) -> Report:
    """The same on a table that keeps no tokens: no write is fenced, all other rules hold."""
    with javas_table(store) as plain:
        return _operators(plain, budget, seed, has_tokens=False)


def _operators(store: Store, budget: Budget, seed: int, *, has_tokens: bool) -> Report:

    def trial(number: int) -> Report:
        with Fleet(store, size=0, names=2, seed=seed + number) as fleet:
            for behaviour in (CAREFUL, CARELESS, CARELESS, OPERATOR):
                fleet.add(behaviour=behaviour)
            fleet.wait(partial(_is_enough, store, fleet, has_tokens), "force releases, and what follows from them")
            fleet.wait_for_each_name()
            return judge(fleet.end(), rules_of(store))

    report = budget.total(trial)
    shared = milliseconds(report.excused_overlap)
    report.notes.append(f"a holder whose lock was freed or taken over shared it for up to {shared} ms")
    return report


def _is_enough(store: Store, fleet: Fleet, has_tokens: bool) -> bool:
    due = [action for action in ACTIONS if action[0] != "prune" or not store.kept_longer]  # they prune no young record
    is_done = all(fleet.count(kind, outcome) >= number for kind, outcome, number in due)
    return is_done and fleet.losses() > 0 and (not has_tokens or fleet.count("write", "refused") > 0)


@contextmanager
def javas_table(store: Store) -> Iterator[Store]:
    """Yield the same store with a lock table like the table of ShedLock for Java."""
    table = f"java_{uuid4().hex[:8]}"
    plain = copy.copy(store)
    plain.options = {"table_name": table, "extra_columns": False}
    plain.prepare()
    yield plain
    with cast(SqlStore, store).connect() as connection:
        connection.exec_driver_sql(f"DROP TABLE {table}")


# The judge


@dataclass
class Met:
    """The effect of a force release or a take-over on a lease."""

    action: Operation
    at: float
    """The earliest moment of the action."""
    is_certain: bool
    """The holder certainly had its lease before, and has lost it after. Otherwise the lease may have come later."""


def judge(history: History, rules: Rules) -> Report:
    met = met_leases(history, rules.late)
    plain = as_acquires(history)
    report = check(plain, replace(rules, off=rules.off | RELEASED))
    report.excused_overlap = report.worst_overlap
    strict = check(as_released(plain, met), rules)
    found = [finding for finding in strict.findings if finding.rule in RELEASED]
    if any(finding.rule in SKIPPED for finding in found):
        # An action that may have ended a minimum hold may also have kept it.
        held = check(as_released(plain, met, ends_minimum_holds=False), rules)
        found = [finding for finding in found if finding.rule not in SKIPPED]
        found += [finding for finding in held.findings if finding.rule in SKIPPED]
    report.findings += found
    report.worst_overlap = strict.worst_overlap
    report.findings += [*_own_writes(plain, met), *_lost_by_nobody(plain, met), *_not_held(plain, met)]
    report.counts = check(history).counts  # where a take-over counts as a take-over
    return report


def as_acquires(history: History) -> History:
    """Replace each take-over by an acquire."""
    operations = (replace(o, kind="acquire") if o.kind == "take_over" else o for o in history.operations)
    return replace(history, operations=tuple(operations))


def met_leases(history: History, late: float) -> dict[str, list[Met]]:
    """Return, by claim, the actions on the lock while the lease may have been there, in the order of their begin."""
    met: dict[str, list[Met]] = {}
    actions = history.of("force_release", "take_over")
    released = {release.claim: release.end for release in reversed(history.of("release"))}
    for lease in history.of("acquire", "take_over", outcome="granted"):
        for action in actions:
            if action.name != lease.name or action.claim == lease.claim:
                continue
            has_answer = action.outcome in ("done", "free", "granted")
            # After a release, an action may end the minimum hold.
            latest = max(released.get(lease.claim, INFINITY), lease.end + lease.at_least)
            moment = _meets(action, lease.granted_from, latest, action.end if has_answer else action.end + late)
            if moment is not None:
                is_certain = has_answer and lease.end < action.started
                met.setdefault(lease.claim, []).append(Met(action, moment, is_certain))
    return {claim: sorted(actions, key=lambda each: each.at) for claim, actions in met.items()}


def _meets(action: Operation, begin: float, end: float, latest: float) -> float | None:
    """Return the earliest moment of ``action`` on a lease that was there between ``begin`` and ``end``. None if never.

    Each copy acts on the lease that the action has read before. If its moment is unknown, it lies before ``latest``.
    """
    if begin > action.end:
        return None
    if action.at_store is not None:
        return next((moment for moment in action.at_store if begin <= moment <= end), None)
    return action.started if begin <= latest and action.started <= end else None


def as_released(history: History, met: dict[str, list[Met]], *, ends_minimum_holds: bool = True) -> History:
    """End the leases of certain actions as a release does. After uncertain actions, only end the trust in the lease.

    :param ends_minimum_holds: whether uncertain actions end minimum holds, too.
    """
    operations = []
    for operation in history.operations:
        actions = met.get(operation.claim, ())
        certain = [each for each in actions if each.is_certain]
        if actions:
            until = actions[0].at
            operation = replace(
                operation,
                trusted_until=min(operation.trusted_until, until),
                trusted_before=min(operation.trusted_before, until),
            )
            if ends := actions if ends_minimum_holds else certain:
                at_least = max(0.0, min(operation.at_least, ends[0].at - operation.granted_from))
                operation = replace(operation, at_least=at_least)
        is_in_vain = operation.kind in ("extend", "release") and any(o.action.end < operation.started for o in certain)
        if not is_in_vain:  # see _own_writes
            operations.append(operation)
        if operation.kind == "acquire" and certain:
            action = certain[0].action
            # Its first request reads the record. The last copy that it waited for may have freed the lock.
            at_store = action.at_store and (max(moment for moment in action.at_store if moment <= action.end),)
            operations.append(
                replace(action, kind="release", outcome="done", claim=operation.claim, at_least=0.0, at_store=at_store)
            )
    return replace(history, operations=tuple(sorted(operations, key=lambda operation: operation.started)))


def _own_writes(history: History, met: dict[str, list[Met]]) -> Iterator[Finding]:
    """I2: a holder whose lease was freed or taken over cannot extend or release it any more."""
    for operation in history.of("extend", "release", outcome="done"):
        was_sent_twice = operation.requests > 1 or (operation.at_store is not None and len(operation.at_store) != 1)
        if operation.kind == "release" and was_sent_twice:
            continue  # the provider reports success, because the first copy may have done it
        before = [each for each in met.get(operation.claim, ()) if each.is_certain]
        if any(each.action.end < operation.started for each in before):
            text = f"{operation.worker}'s {operation.kind} was done after a {before[0].action.kind} of its lock"
            yield Finding("own writes", operation.name, text, operation.started)


def _lost_by_nobody(history: History, met: dict[str, list[Met]]) -> Iterator[Finding]:
    """Find trusted leases that are reported lost although no operator ended them. A prune ends no lease."""
    for operation in history.of("extend", "release", outcome="lost"):
        was_met = any(each.action.started < operation.end for each in met.get(operation.claim, ()))
        is_second = operation.kind == "release" and (operation.replied_at or NEVER) > operation.granted_from
        if operation.end < operation.trusted_before and not was_met and not is_second:  # the first copy released it
            text = f"{operation.worker}'s {operation.kind} says lost, but its lease was trusted and nobody ended it"
            yield Finding("lost", operation.name, text, operation.started)


def _not_held(history: History, met: dict[str, list[Met]]) -> Iterator[Finding]:
    """Find force releases that report a free lock while its holder trusted the lease."""
    asked = {o.claim: o.started for o in reversed(history.of("extend", "release"))}
    for lease in history.of("acquire", outcome="granted"):
        for each in met.get(lease.claim, ())[:1]:
            action = each.action
            is_alone = all(other.action.started > action.end for other in met[lease.claim][1:])
            is_trusted = action.end < min(lease.trusted_until, asked.get(lease.claim, INFINITY))
            is_repeated = len(action.at_store or ()) > 1  # the first copy freed it, and the second found it free
            if each.is_certain and action.outcome == "free" and is_alone and is_trusted and not is_repeated:
                text = f"a force release found {lease.name} free, and {lease.worker} trusted its lease"
                yield Finding("force release", lease.name, text, action.started)
