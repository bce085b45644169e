"""A ZooKeeper ensemble: servers die, and the leader stands still."""

from __future__ import annotations

from typing import Any

from tests.faults.checker import Report, check
from tests.faults.fleet import Fleet
from tests.faults.registry import Budget, Run, scenario
from tests.faults.rules import rules_of
from tests.faults.scenarios.members import GRANTS, NAMES, ROUNDS, WORKERS, figures, kill_any, stop_leader
from tests.support.availability import private_server
from tests.support.stores import Store, ZooKeeperStore
from tests.support.zookeeper import ZooKeeperEnsemble


def _members(name: str, fault: Any, least: int) -> Run:
    """In each trial, servers go away in turn. Each comes back when some leases were granted without it."""

    def run(store: Store, budget: Budget, seed: int) -> Report:
        with private_server("zookeeper", ZooKeeperEnsemble) as ensemble:
            own = ZooKeeperStore(*ensemble.members, timeout="10s").like(store)

            def trial(number: int) -> Report:
                with Fleet(own, size=4, names=NAMES, behaviour=WORKERS, seed=seed + number) as fleet:
                    for _ in range(ROUNDS):
                        fleet.run_for(fleet.random.uniform(0.0, 0.3))
                        with fault(fleet, ensemble):
                            fleet.wait_for_grants(GRANTS)
                            fleet.wait_for_each_name()
                        ensemble.wait_for_leader()
                    fleet.wait_for_each_name()
                    return check(fleet.end(), rules_of(own))

            report = budget.total(trial)
        report.notes.append(f"{store.kind}: {figures(report)}")
        return report

    return scenario(3, name, stores=("zookeeper",), least=least)(run)


killed = _members("zookeeper: one of three servers killed", kill_any, least=2)
leader_stopped = _members("zookeeper: the leader stands still", stop_leader, least=2)
