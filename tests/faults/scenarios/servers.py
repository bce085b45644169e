"""The server stands still, is restarted, or dies, and comes back; alone, or one of a quorum's three."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from tests.faults.checker import Report, Rules, check
from tests.faults.clocks import compiled
from tests.faults.fleet import EVERYBODY, Fleet, WorkerProcess
from tests.faults.history import History
from tests.faults.registry import Budget, scenario
from tests.faults.rules import GRACE, rules_of
from tests.faults.scenarios.deletions import ALL_RULES, without_deleted
from tests.faults.worker import Behaviour
from tests.support.availability import private_server
from tests.support.redis import RedisServer
from tests.support.stores import QuorumStore, RedisStore, Store

DURABLE = ("postgres", "mariadb", "mongodb")
"""They have on disk what they have answered. Redis and the quorum have scenarios of their own below."""
OTHERS = Behaviour(at_most=0.8, work=(0.0, 0.05), pause=(0.03, 0.1), lengths=(0.3, 1.2))
HOLDER = Behaviour(at_most=0.8, work=(0.3, 1.0), pause=(0.0, 0.02), extends=0.5, keeps_alive=0.5, lengths=(0.3, 1.2))
FORGOTTEN = frozenset({"overlap", "refused write", "minimum hold"})
"""What a store that forgets its leases cannot keep. Tokens follow its clock, and go on being checked."""
SHORTER = Behaviour(at_most=2.0, work=(0.0, 0.6), pause=(0.03, 0.1), extends=0.0)
LONG = Behaviour(at_most=2.0, work=(0.8, 1.6), pause=(0.0, 0.02), extends=0.0)
"""Its lease is not over when the server is back; if that has forgotten it, others are granted theirs meanwhile."""
LONGEST_LEASE = 1.0

Outage = Callable[[Fleet, Any], None]


def stand_still(fleet: Fleet, server: Any) -> None:
    """SIGSTOP: sometimes for less than a lease, sometimes until every lease and every attempt is over."""
    server.pause()
    try:
        fleet.run_for(fleet.random.uniform(0.3, 2.0))
    finally:
        server.resume()


def restart(fleet: Fleet, server: Any) -> None:
    server.stop()
    try:
        fleet.run_for(fleet.random.uniform(0.0, 0.6))
    finally:
        server.start()


def kill(fleet: Fleet, server: Any) -> None:
    """kill -9, in the middle of whatever it does."""
    server.kill()
    try:
        fleet.run_for(fleet.random.uniform(0.0, 0.6))
    finally:
        server.start()


def kill_briefly(fleet: Fleet, server: Any) -> None:
    """The server is back before any lease is over."""
    server.kill()
    server.start()


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
    """Each trial: workers, an outage of the store's server while one of them holds the lock, and work as before."""
    report = Report()
    overlaps = 0
    for trial in budget.trials():
        with Fleet(store, size=2, behaviour=others, seed=seed + trial) as fleet:
            holder = fleet.add(behaviour=holds)
            fleet.wait_until_working(holder)
            # What was sent to a server that stood still is done when it goes on, whoever has given up meanwhile.
            with fleet.disturbed(EVERYBODY, store.addresses), fleet.marked("cut", holder):
                outage(fleet, store.servers[0])
            wait_for_answers(fleet)
            if not off:
                fleet.run_for(GRACE + others.at_most)  # what arrived last is over, and no skip is excused any more
            fleet.wait_for_grants(3)
            one = judge(fleet.end(), rules_of(store), off)
        overlaps += one.worst_overlap > 0
        report.add(one)
    if off:
        report.notes.append(
            f"{kind(store)}: not promised, the store forgets. Two leases were trusted at once in {overlaps} of "
            f"{report.trials} trials, for up to {report.worst_overlap * 1000:.0f} ms. Tokens grew all the same, "
            f"{report.counts['write refused']} stale writes were refused"
        )
    return report


def judge(history: History, rules: Rules, off: frozenset[str]) -> Report:
    """``off``: rules that an outage breaks for the leases that it meets, and for no other."""
    report = check(history, replace(rules, off=off))
    if off:
        report.findings += check(without_deleted(history, "cut"), replace(rules, off=ALL_RULES - off)).findings
    return report


def wait_for_answers(fleet: Fleet) -> None:
    """Until every worker has found its way back to the store."""
    answers = {worker.name: _answers(fleet, worker) for worker in fleet.workers}
    fleet.wait(lambda: all(_answers(fleet, w) > answers[w.name] for w in fleet.workers), "an answer to every worker")


def _answers(fleet: Fleet, worker: WorkerProcess) -> int:
    return fleet.count("acquire", "granted", worker=worker) + fleet.count("acquire", "skipped", worker=worker)


def kind(store: Store) -> str:
    return "async" if store.is_async else "sync"


@scenario(3, "server stands still (SIGSTOP)", stores=(*DURABLE, "redis"), least=2)
def stopped(store: Store, budget: Budget, seed: int) -> Report:
    return outages(store, budget, seed, stand_still)


@scenario(3, "server restarted", stores=DURABLE, least=2)
def restarted(store: Store, budget: Budget, seed: int) -> Report:
    return outages(store, budget, seed, restart)


@scenario(3, "server killed (kill -9)", stores=DURABLE, least=2)
def killed(store: Store, budget: Budget, seed: int) -> Report:
    return outages(store, budget, seed, kill)


# Redis, by what it keeps


@contextmanager
def redis_that_keeps(
    store: Store, appendfsync: str | None, environment: Mapping[str, str] | None = None
) -> Iterator[Store]:
    """A Redis of our own, in place of ``store``'s; None: it keeps nothing."""

    def make() -> RedisServer:
        if appendfsync is None:
            return RedisServer()
        server = RedisServer(appendonly=True, config={"appendfsync": appendfsync})
        server.environment.update(environment or {})
        return server

    with private_server("redis", make) as server:
        own = RedisStore(server)
        own.is_async = store.is_async
        yield own


@scenario(3, "killed, AOF appendfsync always", stores=("redis",), least=2)
def aof_always(store: Store, budget: Budget, seed: int) -> Report:
    with redis_that_keeps(store, "always") as own:
        return outages(own, budget, seed, kill_briefly, others=SHORTER, holds=LONG)


@scenario(3, "restarted, AOF appendfsync everysec", stores=("redis",), least=2)
def aof_everysec_restarted(store: Store, budget: Budget, seed: int) -> Report:
    with redis_that_keeps(store, "everysec") as own:
        return outages(own, budget, seed, restart, others=SHORTER, holds=LONG)


@scenario(3, "killed, AOF everysec, slow disk *", stores=("redis",), least=2)
def aof_everysec_slow_disk(store: Store, budget: Budget, seed: int) -> Report:
    """While a sync is under way, Redis answers and writes later, up to 2 s: kill -9 loses what it has answered."""
    slow = {"LD_PRELOAD": str(compiled("slow_sync.c")), "SHEDLOCK_SYNC_SECONDS": "1.5"}
    with redis_that_keeps(store, "everysec", slow) as own:
        return outages(own, budget, seed, kill_briefly, others=SHORTER, holds=LONG, off=FORGOTTEN)


@scenario(3, "killed, AOF appendfsync everysec *", stores=("redis",), least=2)
def aof_everysec(store: Store, budget: Budget, seed: int) -> Report:
    """As good as the disk is quick: measured, not promised."""
    with redis_that_keeps(store, "everysec") as own:
        return outages(own, budget, seed, kill_briefly, others=SHORTER, holds=LONG, off=FORGOTTEN)


@scenario(3, "killed, no persistence *", stores=("redis",), least=3)
def forgetful(store: Store, budget: Budget, seed: int) -> Report:
    with redis_that_keeps(store, None) as own:
        return outages(own, budget, seed, kill_briefly, others=SHORTER, holds=LONG, off=FORGOTTEN)


# One of three


@contextmanager
def own_quorum(store: Store) -> Iterator[QuorumStore]:
    """Servers that keep nothing, and are kept out for ``LONGEST_LEASE`` when they come back."""
    with ExitStack() as stack:
        own = ShortQuorumStore([stack.enter_context(private_server("redis", RedisServer)) for _ in range(3)])
        own.is_async = store.is_async
        yield own


class ShortQuorumStore(QuorumStore):
    def prepare(self) -> None:
        self.options["longest_lease"] = LONGEST_LEASE
        super().prepare()


@scenario(3, "one of three: still, restarted, killed", stores=("quorum",), least=3)
def minority(store: Store, budget: Budget, seed: int) -> Report:
    """The others go on while it is away, and while it is kept out afterwards; then the next one's turn comes."""
    report = Report()
    with own_quorum(store) as own:
        for trial in budget.trials():
            stands_still = trial % 3 == 1
            with Fleet(own, size=2, behaviour=OTHERS, seed=seed + trial) as fleet:
                holder = fleet.add(behaviour=HOLDER)
                fleet.wait_until_working(holder)
                server = fleet.random.choice(own.servers)
                with fleet.disturbed(EVERYBODY, [server.address]):
                    with fleet.marked("cut", holder):
                        (server.kill, server.pause, server.stop)[trial % 3]()
                    try:
                        fleet.wait_for_grants(3)  # with two of three
                    finally:
                        server.resume() if stands_still else server.start()
                fleet.wait_for_grants(3)
                fleet.run_for(GRACE + LONGEST_LEASE)
                report.add(check(fleet.end(), rules_of(own)))
    return report
