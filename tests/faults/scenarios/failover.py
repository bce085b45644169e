"""The primary dies by kill -9, or lives on unnoticed, and its standby is promoted; clients follow. A quorum loses
servers, or their data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Report, check
from tests.faults.fleet import Fleet, WorkerProcess
from tests.faults.pairs import Pair, PostgresPair, RedisPair, Standby, waiting_for_standby
from tests.faults.registry import Budget, Run, scenario
from tests.faults.rules import rules_of
from tests.faults.scenarios.servers import FORGOTTEN, LONGEST_LEASE, own_quorum
from tests.faults.worker import Behaviour
from tests.support.servers import PostgresServer
from tests.support.stores import QuorumStore, RedisStore, Store, postgres_store

OTHERS = Behaviour(at_most=0.8, work=(0.0, 0.5), pause=(0.1, 0.3), extends=0.0)
HOLDER = Behaviour(at_most=2.0, work=(1.0, 1.8), pause=(0.0, 0.02), extends=0.3)
WAITS = replace(HOLDER, extends=0.0)
LATE = 3.0
"""Seconds: a commit that waits for its standby may be done long after its client has given up."""
BEHIND = FORGOTTEN | {"grant lost"}
"""Rules that break where the standby lacks the last commits of acquires and releases."""

Losing = Callable[[Fleet, Pair[Any], Standby[Any], int], Counter[str]]
"""Acts before the primary dies. Returns how often each event happened, for the report."""


def fail_overs(
    pair: Pair[Any],
    store: Store,
    budget: Budget,
    seed: int,
    *,
    losing: Losing,
    is_synchronous: bool = False,
    others: Behaviour = OTHERS,
    holds: Behaviour = HOLDER,
    off: frozenset[str] = frozenset(),
) -> Report:
    """In each trial, workers use the primary, ``losing`` acts, the primary fails over, and workers go on as before."""
    arguments = store.arguments([pair.address])

    def trial(number: int) -> Report:
        standby = pair.follow(is_synchronous=is_synchronous)
        with Fleet(store, size=2, behaviour=others, seed=seed + number, arguments=arguments) as fleet:
            holder = fleet.add(behaviour=holds)
            fleet.wait_for_grants(1)
            happened = losing(fleet, pair, standby, number)
            with fleet.marked("cut", (fleet.holders() or [holder])[0]):
                pair.fail_over(standby)
            fleet.wait_for_answers()
            fleet.wait_for_grants(1)
            report = check(fleet.end(), rules_of(store, late=LATE, off=off))
        report.counts += happened
        return report

    report = budget.total(trial)
    if "overlap" in off:
        report.note_overlaps(f"{store.kind}: not promised, the standby lacked the last writes", "fail-overs")
    return report


def fall_behind(fleet: Fleet, pair: Pair[Any], standby: Standby[Any], trial: int) -> Counter[str]:
    """Grant a lease that never reaches the standby. In every third trial the lag is left to chance."""
    holder = fleet.workers[-1]
    if trial % 3 != 2:
        fleet.wait_until_working(holder, is_working=False)
        standby.link.stall()
        fleet.run_for(OTHERS.at_most)  # until the last replicated lease has expired
        fleet.wait_for_grants(1, worker=holder)
    fleet.wait_until_working(holder)
    return Counter()


Told = Callable[[Fleet, WorkerProcess, Any], None]


def granted_more(fleet: Fleet, worker: WorkerProcess, server: Any) -> None:
    fleet.wait_for_grants(2, worker=worker)


def nothing(fleet: Fleet, worker: WorkerProcess, server: PostgresServer) -> None:
    """The commit hangs."""
    fleet.wait(lambda: waiting_for_standby(server), "a commit that waits for the standby")


def splits(
    pair: Pair[Any],
    store: Store,
    budget: Budget,
    seed: int,
    *,
    is_synchronous: bool = False,
    told: Told,
    off: frozenset[str] = frozenset(),
) -> Report:
    """In each trial, promote the standby while the primary is well. One worker keeps using the old primary.

    ``told`` waits for the old primary's replies. Then the other workers must get a few leases.
    """
    arguments = store.arguments([pair.address])

    def trial(number: int) -> Report:
        standby = pair.follow(is_synchronous=is_synchronous)
        with Fleet(store, size=2, behaviour=OTHERS, seed=seed + number, arguments=arguments) as fleet:
            stays = fleet.add(behaviour=WAITS, arguments=store.arguments([pair.primary.address]))
            fleet.wait_for_grants(1, worker=stays)
            fleet.wait_until_working(stays)
            with fleet.marked("cut", stays):
                old = pair.split(standby)
            told(fleet, stays, old)
            fleet.wait_for_grants(3, but=stays.name)
            old.kill()
            report = check(fleet.end(), rules_of(store, late=LATE, off=off))
        old.close()
        return report

    report = budget.total(trial)
    report.note_overlaps(f"{store.kind}: the old primary goes on answering one of three workers", "splits")
    return report


@contextmanager
def _open(store: Store) -> Iterator[tuple[Any, Store]]:
    """Open a private pair, and a store on its primary."""
    if store.name == "postgres":
        with PostgresPair() as pair:
            yield pair, postgres_store(pair.primary).like(store)
    else:
        with RedisPair() as redis_pair:
            yield redis_pair, RedisStore(redis_pair.primary).like(store)


def _on_a_pair(name: str, store_name: str, least: int, run: Callable[..., Report], **options: Any) -> Run:
    """A scenario with a private pair. ``*``: its standby lacks the last writes."""

    def on_a_pair(store: Store, budget: Budget, seed: int) -> Report:
        off = BEHIND if name.endswith("*") else frozenset()
        with _open(store) as (pair, own):
            return run(pair, own, budget, seed, off=off, **options)

    return scenario(9, name, stores=(store_name,), least=least)(on_a_pair)


def _silent_standby(fleet: Fleet, pair: Any, standby: Standby[Any], trial: int) -> Counter[str]:
    """The standby falls silent, so that commits hang. The primary dies while they hang."""
    if trial % 3 == 2:  # the primary dies while all is well
        fleet.wait_until_working(fleet.workers[-1])
        return Counter()
    standby.link.stall()
    fleet.wait(lambda: waiting_for_standby(pair.primary), "a commit that waits for the standby")
    fleet.run_for(fleet.random.uniform(0.0, 0.5))
    return Counter({"commit hanging": waiting_for_standby(pair.primary)})


def _cancelling(fleet: Fleet, pair: Any, standby: Standby[Any], trial: int) -> Counter[str]:
    """Cancel the wait: PostgreSQL reports the commit as done, with a warning. After the fail-over it is lost."""
    how = "terminate" if trial % 3 == 2 else "cancel"
    cancelled: Counter[str] = Counter()

    def cancel() -> bool:
        cancelled[f"commit {how}"] += pair.cancel_waiting(how)
        return cancelled.total() > 0

    standby.link.stall()
    fleet.wait(cancel, "a commit that waits for the standby and is cancelled")
    fleet.run_for(0.05)  # a worker that trusts the commit has recorded it by then
    return cancelled


# Nobody releases or extends: the commit that hangs is an acquire, after the last lease has expired.
FORGETS = Behaviour(at_most=2.0, work=(1.2, 1.9), pause=(0.0, 0.02), extends=0.0, forgets=1.0)

_on_a_pair("split brain, asynchronous standby *", "postgres", 2, splits, told=granted_more)
# The old primary waits for a standby that no longer follows it: it grants no more leases.
synchronous_split = _on_a_pair(
    "split brain, synchronous standby", "postgres", 2, splits, told=nothing, is_synchronous=True
)
_on_a_pair("fail-over, asynchronous standby *", "postgres", 3, fail_overs, losing=fall_behind)
_on_a_pair("fail-over, synchronous standby", "postgres", 3, fail_overs, losing=_silent_standby, is_synchronous=True)
cancelled_acquire = _on_a_pair(
    "fail-over, hanging acquire cancelled", "postgres", 3, fail_overs,
    losing=_cancelling, is_synchronous=True, others=FORGETS, holds=FORGETS,
)  # fmt: skip
replica_behind = _on_a_pair("fail-over, replica behind *", "redis", 3, fail_overs, losing=fall_behind)
redis_split = _on_a_pair("split brain, replica promoted *", "redis", 2, splits, told=granted_more)


# Quorum

MEMBERS = Behaviour(at_most=0.8, work=(0.0, 0.3), pause=(0.0, 0.05), extends=0.4, lengths=(0.3, 1.2))


@scenario(9, "majority lost, and back empty", stores=("quorum",), least=2)
def majority(store: Store, budget: Budget, seed: int) -> Report:
    """Two of three die in mid-hold and come back empty, at once or later. No lease is granted without a majority."""

    def trial(own: QuorumStore, number: int) -> Report:
        with Fleet(own, size=3, behaviour=MEMBERS, seed=seed + number) as fleet:
            holder = fleet.wait_for_holder()
            lost = fleet.random.sample(own.servers, 2)
            with fleet.marked("cut", holder):
                for server in lost:
                    server.kill()
                if number % 2 == 0:
                    fleet.wait_for_count("acquire", "error", 3)
                for server in lost:
                    server.start()
            fleet.wait_for_grants(3)
            return check(fleet.end(), rules_of(own))

    with own_quorum(store) as own:
        return budget.total(partial(trial, own))


@scenario(9, "a node back empty, and a split", stores=("quorum",), least=2)
def emptied_and_split(store: Store, budget: Budget, seed: int) -> Report:
    """The holder has servers 1 and 2. Server 2 comes back empty, and the other workers reach only 2 and 3."""
    with own_quorum(store) as own:
        return budget.total(lambda trial: _split(own, seed + trial))


LONG_HOLD = Behaviour(at_most=LONGEST_LEASE, work=(0.7, 0.9), pause=(0.0, 0.02), extends=0.0)
EAGER = Behaviour(at_most=LONGEST_LEASE, work=(0.0, 0.1), pause=(0.0, 0.03), extends=0.0)


def _split(own: QuorumStore, seed: int) -> Report:
    with ExitStack() as stack:
        one, other = ([stack.enter_context(TcpProxy(address)) for address in own.addresses] for _ in range(2))
        fleet = stack.enter_context(Fleet(own, size=0, seed=seed))
        one[2].refuse()  # before any worker has connected
        holder = fleet.add(via=[proxy.address for proxy in one], behaviour=LONG_HOLD)
        fleet.wait_for_grants(1)
        other[0].refuse()
        for _ in range(2):
            fleet.add(via=[proxy.address for proxy in other], behaviour=EAGER)
        fleet.wait_until_working(holder)
        with fleet.marked("cut", holder):
            own.servers[1].kill()
            own.servers[1].start()
        fleet.wait_for_grants(2, but=holder.name)
        for proxy in (one[2], other[0]):
            proxy.accept()
        fleet.wait_for_answers()
        return check(fleet.end(), rules_of(own))
