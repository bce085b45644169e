"""A server is stopped, restarted, or dies, and comes back: a single server, or a server of a quorum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tests.faults.checker import Report, Rules, check
from tests.faults.clocks import compiled
from tests.faults.fleet import EVERYBODY, Fleet
from tests.faults.history import History
from tests.faults.registry import Budget, Run, scenario
from tests.faults.rules import GRACE, rules_of
from tests.faults.scenarios.deletions import ALL_RULES, without_deleted
from tests.faults.worker import Behaviour
from tests.support.availability import private_server
from tests.support.redis import RedisServer
from tests.support.stores import ONE_SERVER, STORES, QuorumStore, RedisStore, Store

NOT_REDIS = tuple(name for name in ONE_SERVER if name != "redis")
"""Redis and the quorum have their own scenarios below."""
DURABLE = tuple(name for name in ONE_SERVER if STORES[name].is_durable)
OTHERS = Behaviour(at_most=0.8, work=(0.0, 0.05), pause=(0.03, 0.1), lengths=(0.3, 1.2))
HOLDER = Behaviour(at_most=0.8, work=(0.3, 1.0), pause=(0.0, 0.02), extends=0.5, keeps_alive=0.5, lengths=(0.3, 1.2))
FORGOTTEN = frozenset({"overlap", "refused write", "minimum hold"})
"""Rules that break if a store forgets its leases. Tokens follow the store's clock, and are still checked."""
SHORTER = Behaviour(at_most=2.0, work=(0.0, 0.6), pause=(0.03, 0.1), extends=0.0)
LONG = Behaviour(at_most=2.0, work=(0.8, 1.6), pause=(0.0, 0.02), extends=0.0)
"""Its lease is still valid when the server is back. If the server has forgotten it, others get leases meanwhile."""
LONGEST_LEASE = 1.0

Outage = Callable[[Fleet, Any], None]


def stand_still(fleet: Fleet, server: Any) -> None:
    """SIGSTOP the server, for less than a lease, or until every lease and every attempt is over."""
    server.pause()
    try:
        fleet.run_for(fleet.random.uniform(0.3, 2.0))
    finally:
        server.resume()


def _away(end: str, at_most: float) -> Outage:
    """Stop the server, or kill it in the middle of its work, and start it again."""

    def outage(fleet: Fleet, server: Any) -> None:
        getattr(server, end)()
        try:
            fleet.run_for(fleet.random.uniform(0.0, at_most))
        finally:
            server.start()

    return outage


restart, kill = _away("stop", 0.6), _away("kill", 0.6)
kill_briefly = _away("kill", 0.0)
"""The server is back before any lease is over."""


def outages(
    store: Store,
    budget: Budget,
    seed: int,
    outage: Outage,
    *,
    others: Behaviour = OTHERS,
    holds: Behaviour = HOLDER,
    off: frozenset[str] = frozenset(),
) -> Report:
    """In each trial, the server has an outage while a worker holds the lock. Afterwards the workers go on as before."""

    def trial(number: int) -> Report:
        with Fleet(store, size=2, behaviour=others, seed=seed + number) as fleet:
            holder = fleet.add(behaviour=holds)
            fleet.wait_until_working(holder)
            # When a stopped server goes on, it carries out requests, even if their callers have given up meanwhile.
            with fleet.disturbed(EVERYBODY, store.addresses), fleet.marked("cut", holder):
                outage(fleet, store.servers[0])
            fleet.wait_for_answers()
            if not off:
                fleet.run_for(GRACE + others.at_most)  # the last requests are over, and no skip is excused any more
            fleet.wait_for_grants(3)
            return judge(fleet.end(), rules_of(store), off)

    report = budget.total(trial)
    if off:
        report.note_overlaps(f"{store.kind}: not promised, the store forgets", "trials")
    return report


def judge(history: History, rules: Rules, off: frozenset[str]) -> Report:
    """``off``: rules that an outage breaks for the leases that it meets, and for no other lease."""
    report = check(history, replace(rules, off=off))
    if off:
        report.findings += check(without_deleted(history, "cut"), replace(rules, off=ALL_RULES - off)).findings
    return report


def _outages(name: str, stores: tuple[str, ...], outage: Outage, holds: Behaviour = HOLDER) -> Run:
    return scenario(3, name, stores=stores, least=2)(partial(outages, outage=outage, holds=holds))


stopped = _outages("server stands still (SIGSTOP)", ONE_SERVER, stand_still)
restarted = _outages("server restarted", NOT_REDIS, restart)
killed = _outages("server killed (kill -9)", DURABLE, kill, replace(LONG, extends=0.5, keeps_alive=0.5))


# Redis, by persistence


def _redis_that_keeps(
    name: str, appendfsync: str | None, outage: Outage, *, least: int = 2, sync_seconds: float = 0.0
) -> Run:
    """A scenario on a private Redis. ``appendfsync`` None: no persistence. ``*``: it may forget its leases."""

    def make() -> RedisServer:
        if appendfsync is None:
            return RedisServer()
        server = RedisServer(appendonly=True, config={"appendfsync": appendfsync})
        if sync_seconds:
            slow = {"LD_PRELOAD": str(compiled("slow_sync.c")), "SHEDLOCK_SYNC_SECONDS": str(sync_seconds)}
            server.environment.update(slow)
        return server

    def run(store: Store, budget: Budget, seed: int) -> Report:
        off = FORGOTTEN if name.endswith("*") else frozenset()
        with private_server("redis", make) as server:
            own = RedisStore(server).like(store)
            return outages(own, budget, seed, outage, others=SHORTER, holds=LONG, off=off)

    return scenario(3, name, stores=("redis",), least=least)(run)


kept_always = _redis_that_keeps("killed, AOF appendfsync always", "always", kill_briefly)
redis_restarted = _redis_that_keeps("restarted, AOF appendfsync everysec", "everysec", restart)
# During a slow sync, Redis replies up to 2 s before it writes: kill -9 loses these writes.
kept_every_second_on_a_slow_disk = _redis_that_keeps(
    "killed, AOF everysec, slow disk *", "everysec", kill_briefly, sync_seconds=1.5
)
# Depends on the speed of the disk: measured, not promised.
kept_every_second = _redis_that_keeps("killed, AOF appendfsync everysec *", "everysec", kill_briefly)
forgetful = _redis_that_keeps("killed, no persistence *", None, kill_briefly, least=3)


# One of three


@contextmanager
def own_quorum(store: Store) -> Iterator[QuorumStore]:
    """Yield servers without persistence, which are kept out for ``LONGEST_LEASE`` when they come back."""
    with ExitStack() as stack:
        servers = [stack.enter_context(private_server("redis", RedisServer)) for _ in range(3)]
        yield QuorumStore(servers, longest_lease=LONGEST_LEASE).like(store)


@scenario(3, "one of three: still, restarted, killed", stores=("quorum",), least=3)
def minority(store: Store, budget: Budget, seed: int) -> Report:
    """A server goes away in turn. The others go on while it is away, and while it is kept out afterwards."""

    def trial(own: QuorumStore, number: int) -> Report:
        stands_still = number % 3 == 1
        with Fleet(own, size=2, behaviour=OTHERS, seed=seed + number) as fleet:
            holder = fleet.add(behaviour=HOLDER)
            fleet.wait_until_working(holder)
            server = fleet.random.choice(own.servers)
            with fleet.disturbed(EVERYBODY, [server.address]):
                with fleet.marked("cut", holder):
                    (server.kill, server.pause, server.stop)[number % 3]()
                try:
                    fleet.wait_for_grants(3)  # with two of three
                finally:
                    server.resume() if stands_still else server.start()
            fleet.wait_for_grants(3)
            fleet.run_for(GRACE + LONGEST_LEASE)
            return check(fleet.end(), rules_of(own))

    with own_quorum(store) as own:
        return budget.total(partial(trial, own))
