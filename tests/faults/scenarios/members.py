"""A cluster of etcd or NATS: members die, the leader stands still or is cut off, the majority stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import median

from tests.faults.checker import Finding, Report, Rules, check
from tests.faults.fleet import EVERYBODY, Fleet, WorkerProcess
from tests.faults.history import History
from tests.faults.registry import Budget, Run, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.availability import private_server
from tests.support.etcd import CuttableEtcdCluster, EtcdCluster
from tests.support.nats import NatsCluster
from tests.support.stores import EtcdStore, NatsStore, Store

NAMES = 3
WORKERS = Behaviour(at_most=1.0, work=(0.0, 0.15), pause=(0.0, 0.05), extends=0.3, keeps_alive=0.2, lengths=(0.5, 1.5))
CUT_OFF = replace(WORKERS, work=(3.0, 5.0), keeps_alive=1.0, is_careless=True)
"""A worker that only knows the member that is cut off. It goes on writing when other workers have its lock."""
GRANTS, ROUNDS = 25, 4
"""The least number of leases that are granted while a member is away; how often a member goes away in a trial."""
THOUSAND = 1000

Cluster = EtcdCluster | NatsCluster
Fault = Callable[[Fleet, Cluster], AbstractContextManager[None]]
"""A fault of a member, which ends with the block."""


@contextmanager
def kill_any(fleet: Fleet, cluster: Cluster) -> Iterator[None]:
    """SIGKILL a member, every other time the leader."""
    member = cluster.leader if fleet.random.random() < 0.5 else fleet.random.choice(cluster.members)
    with _disturbed(fleet, fleet.wait_for_holder(), member.kill):
        yield
        member.start()


@contextmanager
def stop_leader(fleet: Fleet, cluster: Cluster) -> Iterator[None]:
    """SIGSTOP the leader. The others elect a new leader; the old leader does not know this when it goes on."""
    member = cluster.leader
    # A stopped member carries out late requests, also for callers that have given up.
    with _disturbed(fleet, fleet.wait_for_holder(), member.pause):
        yield
        member.resume()


@contextmanager
def cut_leader_off(fleet: Fleet, cluster: Cluster) -> Iterator[None]:
    """Cut the leader off from the members, in one or both directions. Clients reach it; the holder knows no other."""
    assert isinstance(cluster, CuttableEtcdCluster)
    leader = cluster.leader
    victim = fleet.add(via=[leader.address], behaviour=CUT_OFF)
    observer = fleet.add(via=[leader.address], arguments={"options": {**fleet.store.options, "timeout": "1s"}})
    fleet.wait_until_working(victim)
    hears, speaks = fleet.random.choice([(False, False), (True, False), (False, True)])
    with _disturbed(fleet, victim, partial(cluster.cut_off, leader, hears=hears, speaks=speaks)):
        yield
        fleet.wait(lambda: fleet.count("acquire", "error", worker=observer) > 2, "attempts at who is cut off")
        fleet.wait(lambda: victim not in fleet.holders(), "the end of work that nobody has a lease for")
        with fleet.marked("healed", observer):
            cluster.heal(arrives=fleet.random.random() < 0.5)
        fleet.wait_for_answers()
    fleet.kill(victim)
    fleet.kill(observer)


@contextmanager
def _disturbed(fleet: Fleet, holder: WorkerProcess, disturb: Callable[[], None]) -> Iterator[None]:
    with fleet.disturbed(EVERYBODY, fleet.store.addresses):
        with fleet.marked("cut", holder):
            disturb()
        yield


def members(
    store: Store, budget: Budget, seed: int, *faults: Fault, rounds: int = ROUNDS, grants: int = GRANTS, whole: int = 0
) -> Report:
    """In each trial, members go away in turn. Each comes back when some leases were granted without it.

    :param whole: the least number of leases in a trial, however many rounds that takes.
    """

    def trial(cluster: Cluster, own: Store, number: int) -> Report:
        with Fleet(own, size=4, names=NAMES, behaviour=WORKERS, seed=seed + number) as fleet:
            for round_number in count(1):
                fleet.run_for(fleet.random.uniform(0.0, 0.3))
                with fleet.random.choice(faults)(fleet, cluster):
                    fleet.wait_for_grants(grants)
                    fleet.wait_for_each_name()
                cluster.wait_for_leader()
                if round_number >= rounds and fleet.count("acquire", "granted") >= whole:
                    break
            fleet.wait_for_each_name()
            return judge(fleet.end(), rules_of(own))

    with own_cluster(store, CuttableEtcdCluster if cut_leader_off in faults else EtcdCluster) as (cluster, own):
        report = budget.total(partial(trial, cluster, own))
    report.notes.append(f"{store.kind}: {figures(report)}")
    return report


def judge(history: History, rules: Rules) -> Report:
    """Run the checker. Also find each reply of a cut-off member to an acquire: only errors are allowed."""
    report = check(history, rules)
    cuts = [mark.after for mark in history.marks if mark.kind == "cut"]
    for healed in (mark for mark in history.marks if mark.kind == "healed"):
        cut = max(moment for moment in cuts if moment < healed.before)
        for operation in history.of("acquire", worker=healed.worker):
            if cut < operation.started and operation.end < healed.before and operation.outcome != "error":
                text = f"{operation.worker}, {operation.outcome} by a member without a majority"
                report.findings.append(Finding("cut off", operation.name, text, operation.started))
    return report


def figures(report: Report) -> str:
    text = f"{report.counts['acquire granted']} leases were granted, members went away {report.counts['cut']} times"
    if report.counts["healed"]:
        text += f", {report.counts['healed']} of them cut off as leaders, {report.counts['write refused']} stale writes"
        text += " were refused"
    if report.takeovers:
        text += (
            f"; the next holder after {median(report.takeovers):.2f} s (median), {max(report.takeovers):.2f} s at worst"
        )
    return text


@contextmanager
def own_cluster(store: Store, make: Callable[[], EtcdCluster] = EtcdCluster) -> Iterator[tuple[Cluster, Store]]:
    if store.name == "nats":
        with private_server("nats", NatsCluster) as servers:
            yield servers, NatsStore(*servers.members, timeout="3s").like(store)
        return
    with private_server("etcd", make) as cluster:
        yield cluster, EtcdStore(*cluster.members, timeout="3s").like(store)


def _members(name: str, *faults: Fault, least: int, store: str = "etcd", **sizes: int) -> Run:
    def run(on: Store, budget: Budget, seed: int) -> Report:
        return members(on, budget, seed, *faults, **sizes)

    return scenario(3, name, stores=(store,), least=least)(run)


killed = _members("etcd: one of three members killed", kill_any, least=5)
leader_stopped = _members("etcd: the leader stands still", stop_leader, least=3)
leader_cut_off = _members("etcd: the leader is cut off", cut_leader_off, least=2)
thousand_grants = _members(
    "etcd: 1000 grants, members killed and cut off", kill_any, cut_leader_off, least=1, whole=THOUSAND
)
nats_killed = _members("NATS: one of three servers killed", kill_any, least=5, store="nats")
nats_leader_stopped = _members("NATS: the leader stands still", stop_leader, least=3, store="nats")


@scenario(3, "two of three stand still", stores=("etcd", "nats"), least=2)
def majority_stopped(store: Store, budget: Budget, seed: int) -> Report:
    """Grant no lease, and report no outage as a skip. When the members go on, all is as before."""

    def trial(cluster: Cluster, own: Store, number: int) -> Report:
        with Fleet(own, size=3, names=NAMES, behaviour=WORKERS, seed=seed + number) as fleet:
            holder = fleet.wait_for_holder()
            with fleet.disturbed(EVERYBODY, own.addresses), fleet.marked("cut", holder):
                stopped = fleet.random.sample(cluster.members, 2)
                for member in stopped:
                    member.pause()
                fleet.wait_for_count("acquire", "error", 3)
                for member in stopped:
                    member.resume()
            cluster.wait_for_leader()
            fleet.wait_for_answers()
            fleet.wait_for_grants(5)
            return check(fleet.end(), rules_of(own))

    with own_cluster(store) as (cluster, own):
        return budget.total(partial(trial, cluster, own))
