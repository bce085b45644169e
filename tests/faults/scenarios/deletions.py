"""While workers run, the lock record is deleted, the table dropped and made again, or the key space flushed.

Nobody can prevent the effect: the name is free, though its holder still trusts its lease. So the judge counts a lease
as trusted only until the deletion. The report notes how long two leases were really trusted. All other rules hold: jobs
go on, tokens increase, no stale write is accepted, and the holder notices with its next request.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any, cast

from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.faults.checker import Finding, Report, Rules, check
from tests.faults.fleet import EVERYBODY, Fleet
from tests.faults.history import History, Mark
from tests.faults.registry import Budget, Run, scenario
from tests.faults.report import milliseconds
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import SINGLE, SqliteStore, SqlStore, Store

BEHAVIOUR = Behaviour(
    at_most=0.8, at_least=0.05, work=(0.1, 0.4), pause=(0.0, 0.04), extends=0.7, keeps_alive=0.3, forgets=0.1
)
DELETIONS_PER_TRIAL = 3
"""The least number. More follow, up to MOST_DELETIONS, until a holder has noticed a deletion."""
MOST_DELETIONS = 20
UNDONE_BY_IT = frozenset({"overlap", "refused write", "minimum hold"})
"""Rules that a deletion breaks for the leases that it meets, and for no other lease."""
TOKENS = frozenset({"token", "refused write"})
"""Rules on fencing tokens. After a record was deleted by hand, tokens are as exact as the store's clock. On stores with
a coarse clock the next holder may get a smaller token, and is refused with it."""
ALL_RULES = UNDONE_BY_IT | {"token", "stale write", "crash bound", "grant lost", "trust", "trust window", "keep-alive"}

Delete = Callable[[Store, Fleet], None]


# How


def delete_records(store: Store, _: Fleet) -> None:
    store.delete_all()


def drop(store: Store, fleet: Fleet) -> None:
    """Drop the table or the collection, or flush Redis. SQL needs the table made again, after a moment without it."""
    store.drop()
    if isinstance(store, SqlStore):
        fleet.wait_for_count("acquire", "error", 1)
        store.prepare()


def empty_all(store: Store, fleet: Fleet) -> None:
    """Empty all servers of a quorum: no lease is granted until an operator declares a new quorum."""
    _flush(store.servers)
    granted = fleet.count("acquire", "granted")
    fleet.wait_for_count("acquire", "error", 3)
    # For each worker, one grant may have been on its way when the last server was emptied.
    if fleet.count("acquire", "granted") > granted + len(fleet.workers):
        raise AssertionError("servers without data granted leases")
    store.prepare()


def replace_file(store: Store, fleet: Fleet) -> None:
    """Replace the file, like a redeploy. A worker that went on in the old file would be a second holder for good."""
    path = cast(SqliteStore, store).path
    fresh = path.with_name("fresh.db")
    with closing(SqlAlchemyLockProvider(f"sqlite:///{fresh}")) as provider:
        provider.create_schema()
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    os.replace(fresh, path)


@scenario(10, "one of a quorum emptied", stores=("quorum",), least=2)
def minority_emptied(store: Store, budget: Budget, seed: int) -> Report:
    """Records are not lost: every rule holds for every lease, also for leases that were held at that moment."""

    def trial(number: int) -> Report:
        with Fleet(store, size=2, behaviour=BEHAVIOUR, seed=seed + number) as fleet:
            holder = fleet.wait_for_holder()
            with fleet.marked("emptied", holder):
                _flush([fleet.random.choice(store.servers)])
            fleet.wait_for_grants(4)
            report = check(fleet.end(), rules_of(store))
        _flush(store.servers)  # otherwise the emptied server would not vote for an hour
        store.prepare()
        return report

    return budget.total(trial)


def with_deletions(store: Store, budget: Budget, seed: int, delete: Delete) -> Report:

    def trial(number: int) -> Report:
        with Fleet(store, size=3, names=2, behaviour=BEHAVIOUR, seed=seed + number) as fleet:
            has_noticed = False
            for deleted in count(1):
                fleet.run_for(fleet.random.uniform(0.0, 0.2))
                holder = fleet.stop_at_work()  # so that a lease is held, however long the deletion takes
                with fleet.marked("deleted", EVERYBODY):
                    delete(store, fleet)
                before = fleet.losses()
                fleet.resume(holder)
                fleet.wait_for_each_name()
                # A holder may forget to release, or send its request while the table is missing again.
                has_noticed = has_noticed or fleet.losses() > before
                if deleted >= (DELETIONS_PER_TRIAL if has_noticed else MOST_DELETIONS):
                    break
            history = fleet.end()
        report = judge(history, rules_of(store, off=TOKENS if store.kept_longer else frozenset()))
        report.takeovers.clear()  # they would be counted from the stop, not from the deletion
        return report

    report = budget.total(trial)
    shared = milliseconds(report.excused_overlap)
    report.notes.append(f"a holder whose record was deleted shared the lock for up to {shared} ms")
    return report


def _deletions(name: str, stores: tuple[str, ...], delete: Delete) -> Run:
    return scenario(10, name, stores=stores, least=2)(partial(with_deletions, delete=delete))


record_deleted = _deletions("record deleted in mid-hold", SINGLE, delete_records)
dropped = _deletions("table dropped, keys flushed", SINGLE, drop)
replaced = _deletions("SQLite file replaced in mid-hold", ("sqlite",), replace_file)
quorum_emptied = _deletions("all of a quorum emptied", ("quorum",), empty_all)


# The judge


def judge(history: History, rules: Rules) -> Report:
    report = check(history, replace(rules, off=UNDONE_BY_IT | rules.off))
    report.excused_overlap = report.worst_overlap
    strict = check(without_deleted(history), replace(rules, off=(ALL_RULES - UNDONE_BY_IT) | rules.off))
    report.findings += strict.findings
    report.worst_overlap = strict.worst_overlap
    granted = {lease.claim: lease for lease in history.of("acquire", outcome="granted")}
    for mark, operation in product(_marks(history, "deleted"), history.of("extend", "release")):
        lease = granted.get(operation.claim)
        if lease is None or lease.end >= mark.before or operation.started <= mark.after:
            continue
        if operation.outcome == "done":
            text = f"{operation.worker}'s {operation.kind} was done, and its record had been deleted"
            report.findings.append(Finding("deletion", operation.name, text, mark.after))
        else:
            report.counts[f"after deletion {operation.outcome}"] += 1
    return report


def without_deleted(history: History, kind: str = "deleted") -> History:
    """End the trust and the hold of each lease when a mark of ``kind`` that met the lease begins."""
    met: dict[str, float] = {}
    for lease in history.of("acquire", outcome="granted"):
        for mark in _marks(history, kind):
            if lease.started <= mark.after:
                met[lease.claim] = min(met.get(lease.claim, mark.before), mark.before)
    operations = []
    for operation in history.operations:
        if operation.claim in met:
            until = met[operation.claim]
            operation = replace(
                operation,
                trusted_before=min(operation.trusted_before, until),
                trusted_until=min(operation.trusted_until, until),
                at_least=max(0.0, min(operation.at_least, until - operation.started)),
            )
        operations.append(operation)
    return replace(history, operations=tuple(operations))


def _marks(history: History, kind: str) -> list[Mark]:
    return [mark for mark in history.marks if mark.kind == kind]


# Tools


def _flush(servers: Any) -> None:
    for server in servers:
        with server.client() as client:
            client.flushall()
