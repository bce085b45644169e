"""A cluster of etcd: any member dies at any moment, the leader stands still, the majority does. The lock goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tests.faults.checker import Report, check
from tests.faults.fleet import EVERYBODY, Fleet
from tests.faults.registry import Budget, Run, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.availability import private_server
from tests.support.etcd import EtcdCluster, EtcdServer
from tests.support.stores import EtcdStore, Store

NAMES = 3
WORKERS = Behaviour(at_most=1.0, work=(0.0, 0.15), pause=(0.0, 0.05), extends=0.3, keeps_alive=0.2, lengths=(0.5, 1.5))
GRANTS, ROUNDS = 25, 4
"""How many leases are granted, at least, while a member is away; how often that happens in a trial."""

Fault = Callable[[Fleet, EtcdCluster], EtcdServer]


def kill_any(fleet: Fleet, cluster: EtcdCluster) -> EtcdServer:
    """SIGKILL, the leader every other time."""
    member = cluster.leader if fleet.random.random() < 0.5 else fleet.random.choice(cluster.members)
    member.kill()
    return member


def stop_leader(fleet: Fleet, cluster: EtcdCluster) -> EtcdServer:
    """SIGSTOP: the others elect another one, of which this one knows nothing when it goes on."""
    member = cluster.leader
    member.pause()
    return member


def members(
    store: Store, budget: Budget, seed: int, fault: Fault, rounds: int = ROUNDS, grants: int = GRANTS
) -> Report:
    """Each trial: members go away one after the other, and each comes back when the others have granted some leases."""

    def trial(cluster: EtcdCluster, own: EtcdStore, number: int) -> Report:
        with Fleet(own, size=4, names=NAMES, behaviour=WORKERS, seed=seed + number) as fleet:
            for _ in range(rounds):
                holder = fleet.wait_for_holder()
                fleet.run_for(fleet.random.uniform(0.0, 0.3))
                # A member that stood still carries out late what it was sent, also for callers that have given up.
                with fleet.disturbed(EVERYBODY, own.addresses), fleet.marked("cut", holder):
                    member = fault(fleet, cluster)
                    fleet.wait_for_grants(grants)
                    member.resume()
                    member.start()
                cluster.wait_for_leader()
            fleet.wait_for_each_name()
            return check(fleet.end(), rules_of(own))

    with own_cluster(store) as (cluster, own):
        report = budget.total(partial(trial, cluster, own))
    report.notes.append(f"{store.kind}: {report.counts['acquire granted']} leases were granted")
    return report


@contextmanager
def own_cluster(store: Store) -> Iterator[tuple[EtcdCluster, EtcdStore]]:
    with private_server("etcd", EtcdCluster) as cluster:
        yield cluster, EtcdStore(*cluster.members, timeout="3s").like(store)


def _members(name: str, fault: Fault, least: int) -> Run:
    return scenario(3, name, stores=("etcd",), least=least)(partial(members, fault=fault))


killed = _members("etcd: one of three members killed", kill_any, 5)
leader_stopped = _members("etcd: the leader stands still", stop_leader, 3)


@scenario(3, "etcd: two of three stand still", stores=("etcd",), least=2)
def majority_stopped(store: Store, budget: Budget, seed: int) -> Report:
    """Nobody is granted anything, and no outage is a skip; when they go on, all is as before."""

    def trial(cluster: EtcdCluster, own: EtcdStore, number: int) -> Report:
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
