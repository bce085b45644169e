"""The primary dies by kill -9, or lives on unnoticed, and its standby is promoted; clients follow. A quorum loses
servers, or their data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Report, check
from tests.faults.fleet import Fleet, WorkerProcess
from tests.faults.pairs import Pair, PostgresPair, RedisPair, Standby, waiting_for_standby
from tests.faults.registry import Budget, scenario
from tests.faults.rules import rules_of
from tests.faults.scenarios.servers import FORGOTTEN, LONGEST_LEASE, kind, own_quorum, wait_for_answers
from tests.faults.worker import Behaviour
from tests.support.servers import PostgresServer
from tests.support.stores import QuorumStore, RedisStore, Store, postgres_store

OTHERS = Behaviour(at_most=0.8, work=(0.0, 0.5), pause=(0.1, 0.3), extends=0.0)
HOLDER = Behaviour(at_most=2.0, work=(1.0, 1.8), pause=(0.0, 0.02), extends=0.3)
WAITS = replace(HOLDER, extends=0.0)
LATE = 3.0
"""Seconds: a commit that waits for its standby may be done long after its client has given up."""
BEHIND = FORGOTTEN | {"grant lost"}
"""What cannot be kept where the standby lacks the last commits: of acquires, and of releases."""

Losing = Callable[[Fleet, Standby[Any], int], Counter[str]]
"""What is done before the primary dies; how often it happened, for the report."""


def fail_overs(
    pair: Pair[Any],
    store: Store,
    budget: Budget,
    seed: int,
    losing: Losing,
    *,
    follow: Callable[[], Standby[Any]],
    others: Behaviour = OTHERS,
    holds: Behaviour = HOLDER,
    off: frozenset[str] = frozenset(),
) -> Report:
    """Each trial: workers on the primary, ``losing`` before its end, a fail-over, and work as before."""
    report = Report()
    overlaps = 0
    arguments = store.arguments([pair.address])
    for trial in budget.trials():
        standby = follow()
        with Fleet(store, size=2, behaviour=others, seed=seed + trial, arguments=arguments) as fleet:
            holder = fleet.add(behaviour=holds)
            fleet.wait_for_grants(1)
            report.counts += losing(fleet, standby, trial)
            with fleet.marked("cut", (fleet.holders() or [holder])[0]):
                pair.fail_over(standby)
            wait_for_answers(fleet)
            fleet.wait_for_grants(1)
            one = check(fleet.end(), rules_of(store, late=LATE, off=off))
        overlaps += one.worst_overlap > 0
        report.add(one)
    if "overlap" in off:
        report.notes.append(
            f"{kind(store)}: not promised, the standby lacked the last writes. Two leases were trusted at once in "
            f"{overlaps} of {report.trials} fail-overs, for up to {report.worst_overlap * 1000:.0f} ms. Tokens grew "
            f"all the same, {report.counts['write refused']} stale writes were refused"
        )
    return report


def fall_behind(fleet: Fleet, standby: Standby[Any], trial: int) -> Counter[str]:
    """A lease is granted that the standby never hears of. In every third trial it lags by as much as it happens to."""
    holder = fleet.workers[-1]
    if trial % 3 != 2:
        fleet.wait_until_working(holder, is_working=False)
        standby.fall_behind()
        fleet.run_for(OTHERS.at_most)  # until what it has heard of has run out
        fleet.wait_for_grants(1, worker=holder)
    fleet.wait_until_working(holder)
    return Counter()


Told = Callable[[Fleet, WorkerProcess, Any], None]


def granted_more(fleet: Fleet, worker: WorkerProcess, server: Any) -> None:
    fleet.wait_for_grants(2, worker=worker)


def nothing(fleet: Fleet, worker: WorkerProcess, server: PostgresServer) -> None:
    """Its commit hangs."""
    fleet.wait(lambda: waiting_for_standby(server), "a commit that waits for the standby")


def splits(
    pair: Pair[Any],
    store: Store,
    budget: Budget,
    seed: int,
    *,
    follow: Callable[[], Standby[Any]],
    told: Told,
    off: frozenset[str] = frozenset(),
) -> Report:
    """Each trial: the standby is promoted while the primary is well, and one worker goes on asking that one.

    Until it is ``told`` what it is told by the old primary, and the others have a few leases.
    """
    report = Report()
    both = 0
    for trial in budget.trials():
        standby = follow()
        arguments = store.arguments([pair.address])
        with Fleet(store, size=2, behaviour=OTHERS, seed=seed + trial, arguments=arguments) as fleet:
            stays = fleet.add(behaviour=WAITS, arguments=store.arguments([pair.primary.address]))
            fleet.wait_for_grants(1, worker=stays)
            fleet.wait_until_working(stays)
            with fleet.marked("cut", stays):
                old = pair.split(standby)
            told(fleet, stays, old)
            fleet.wait_for_grants(3, but=stays.name)
            old.kill()
            one = check(fleet.end(), rules_of(store, late=LATE, off=off))
        old.close()
        both += one.worst_overlap > 0
        report.add(one)
    report.notes.append(
        f"{kind(store)}: the old primary goes on answering one of three workers. Two leases were trusted at once in "
        f"{both} of {report.trials} splits, for up to {report.worst_overlap * 1000:.0f} ms; "
        f"{report.counts['write refused']} stale writes were refused"
    )
    return report


# PostgreSQL


@scenario(9, "split brain, asynchronous standby *", stores=("postgres",), least=2)
def asynchronous_split(store: Store, budget: Budget, seed: int) -> Report:
    with PostgresPair() as pair:
        return splits(pair, _on_postgres(pair, store), budget, seed, follow=pair.follow, told=granted_more, off=BEHIND)


@scenario(9, "split brain, synchronous standby", stores=("postgres",), least=2)
def synchronous_split(store: Store, budget: Budget, seed: int) -> Report:
    """The old primary waits for a standby that has left it: it grants nothing more."""
    with PostgresPair() as pair:
        return splits(pair, _on_postgres(pair, store), budget, seed, follow=_synchronously(pair), told=nothing)


@scenario(9, "fail-over, asynchronous standby *", stores=("postgres",), least=3)
def asynchronous_standby(store: Store, budget: Budget, seed: int) -> Report:
    with PostgresPair() as pair:
        return fail_overs(pair, _on_postgres(pair, store), budget, seed, fall_behind, follow=pair.follow, off=BEHIND)


@scenario(9, "fail-over, synchronous standby", stores=("postgres",), least=3)
def synchronous_standby(store: Store, budget: Budget, seed: int) -> Report:
    """The standby falls silent, so that commits hang; the primary dies while they do."""

    def losing(fleet: Fleet, standby: Standby[Any], trial: int) -> Counter[str]:
        if trial % 3 == 2:  # the primary dies while all is well
            fleet.wait_until_working(fleet.workers[-1])
            return Counter()
        standby.fall_behind()
        fleet.wait(lambda: waiting_for_standby(pair.primary), "a commit that waits for the standby")
        fleet.run_for(fleet.random.uniform(0.0, 0.5))
        return Counter({"commit hanging": waiting_for_standby(pair.primary)})

    with PostgresPair() as pair:
        follow = _synchronously(pair)
        return fail_overs(pair, _on_postgres(pair, store), budget, seed, losing, follow=follow)


@scenario(9, "fail-over, hanging acquire cancelled", stores=("postgres",), least=3)
def cancelled_acquire(store: Store, budget: Budget, seed: int) -> Report:
    """Cancelled, PostgreSQL reports the commit as done, with a warning; after the fail-over it never was."""

    def losing(fleet: Fleet, standby: Standby[Any], trial: int) -> Counter[str]:
        how = "terminate" if trial % 3 == 2 else "cancel"
        cancelled: Counter[str] = Counter()

        def cancel() -> bool:
            cancelled[f"commit {how}"] += pair.cancel_waiting(how)
            return cancelled.total() > 0

        standby.fall_behind()
        fleet.wait(cancel, "a commit that waits for the standby and is cancelled")
        # Whoever takes it for granted has said so by now, or will in a moment.
        fleet.run_for(0.05)
        return cancelled

    # Nobody releases or extends: the commit that hangs is an acquire, after the last lease has run out.
    forgets = Behaviour(at_most=2.0, work=(1.2, 1.9), pause=(0.0, 0.02), extends=0.0, forgets=1.0)
    with PostgresPair() as pair:
        follow = _synchronously(pair)
        own = _on_postgres(pair, store)
        return fail_overs(pair, own, budget, seed, losing, follow=follow, others=forgets, holds=forgets)


def _on_postgres(pair: PostgresPair, store: Store) -> Store:
    own = postgres_store(pair.primary)
    own.is_async = store.is_async
    return own


def _synchronously(pair: PostgresPair) -> Callable[[], Standby[Any]]:
    return lambda: pair.follow(is_synchronous=True)


# Redis


@scenario(9, "fail-over, replica behind *", stores=("redis",), least=3)
def replica_behind(store: Store, budget: Budget, seed: int) -> Report:
    with RedisPair() as pair:
        return fail_overs(pair, _on_redis(pair, store), budget, seed, fall_behind, follow=pair.follow, off=BEHIND)


@scenario(9, "split brain, replica promoted *", stores=("redis",), least=2)
def redis_split(store: Store, budget: Budget, seed: int) -> Report:
    with RedisPair() as pair:
        return splits(pair, _on_redis(pair, store), budget, seed, follow=pair.follow, told=granted_more, off=BEHIND)


def _on_redis(pair: RedisPair, store: Store) -> Store:
    own = RedisStore(pair.primary)
    own.is_async = store.is_async
    return own


# Quorum

MEMBERS = Behaviour(at_most=0.8, work=(0.0, 0.3), pause=(0.0, 0.05), extends=0.4, lengths=(0.3, 1.2))


@scenario(9, "majority lost, and back empty", stores=("quorum",), least=2)
def majority(store: Store, budget: Budget, seed: int) -> Report:
    """Two of three die in mid-hold and come back with nothing, at once or later; nobody is granted anything without."""
    report = Report()
    with own_quorum(store) as own:
        for trial in budget.trials():
            with Fleet(own, size=3, behaviour=MEMBERS, seed=seed + trial) as fleet:
                holder = fleet.wait_for_holder()
                lost = fleet.random.sample(own.servers, 2)
                with fleet.marked("cut", holder):
                    for server in lost:
                        server.kill()
                    if trial % 2 == 0:
                        fleet.wait_for_count("acquire", "error", 3)
                    for server in lost:
                        server.start()
                fleet.wait_for_grants(3)
                report.add(check(fleet.end(), rules_of(own)))
    return report


@scenario(9, "a node back empty, and a split", stores=("quorum",), least=2)
def emptied_and_split(store: Store, budget: Budget, seed: int) -> Report:
    """The holder has servers 1 and 2; 2 comes back empty, and the others see 2 and 3 only: a majority that forgot."""
    report = Report()
    with own_quorum(store) as own:
        for trial in budget.trials():
            report.add(_split(own, seed + trial))
    return report


LONG_HOLD = Behaviour(at_most=LONGEST_LEASE, work=(0.7, 0.9), pause=(0.0, 0.02), extends=0.0)
EAGER = Behaviour(at_most=LONGEST_LEASE, work=(0.0, 0.1), pause=(0.0, 0.03), extends=0.0)


def _split(own: QuorumStore, seed: int) -> Report:
    with ExitStack() as stack:
        one, other = ([stack.enter_context(TcpProxy(address)) for address in own.addresses] for _ in range(2))
        fleet = stack.enter_context(Fleet(own, size=0, seed=seed))
        _close(one[2])
        holder = fleet.add(via=[proxy.address for proxy in one], behaviour=LONG_HOLD)
        fleet.wait_for_grants(1)
        _close(other[0])
        for _ in range(2):
            fleet.add(via=[proxy.address for proxy in other], behaviour=EAGER)
        fleet.wait_until_working(holder)
        with fleet.marked("cut", holder):
            own.servers[1].kill()
            own.servers[1].start()
        fleet.wait_for_grants(2, but=holder.name)
        for proxy in (one[2], other[0]):
            proxy.accept()
        wait_for_answers(fleet)
        return check(fleet.end(), rules_of(own))


def _close(proxy: TcpProxy) -> None:
    proxy.refuse()
    proxy.cut()
