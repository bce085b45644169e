"""A planned switchover: the old primary turns read-only and lives on, and the name moves to the new primary.

Open sessions stay with the old primary. If a worker kept such a session, its requests would be refused for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Report, check
from tests.faults.fleet import Fleet
from tests.faults.registry import Budget, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.polling import wait_until
from tests.support.stores import STORES, Store

BEHAVIOUR = Behaviour(at_most=0.8, work=(0.0, 0.05), pause=(0.01, 0.05), extends=0.2)
NOT_REPLICATED = frozenset({"overlap", "refused write", "minimum hold", "grant lost", "stale write"})
"""The new primary has no records of the old primary. This scenario does not test replication."""


def _postgres_read_only(store: Store, is_read_only: bool) -> None:
    value = "on" if is_read_only else "off"
    with store.servers[0].connect() as connection:
        connection.exec_driver_sql(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
        wait_until(
            lambda: connection.exec_driver_sql("SHOW default_transaction_read_only").scalar() == value,
            what="the new setting",
        )


TURN_READ_ONLY: dict[str, Callable[[Store, bool], None]] = {"postgres": _postgres_read_only}
"""By store: make its server refuse writes in open sessions, or accept them again."""


@contextmanager
def _another(store: Store) -> Iterator[Store]:
    """Start a second server of the same kind, with the same table."""
    opened: AbstractContextManager[Store] = STORES[store.name].open()
    with opened as other:
        other.options.update(store.options)
        other.prepare()
        yield other


@scenario(9, "switchover, the old primary read-only", stores=tuple(TURN_READ_ONLY), least=1)
def switchover(store: Store, budget: Budget, seed: int) -> Report:
    report = Report()
    turn: Any = TURN_READ_ONLY[store.name]
    for trial in budget.trials():
        with _another(store) as new, TcpProxy(store.servers[0].address) as proxy:
            arguments = store.arguments([proxy.address])
            with Fleet(store, size=2, behaviour=BEHAVIOUR, seed=seed + trial, arguments=arguments) as fleet:
                fleet.wait_for_grants(4)
                holder = fleet.wait_for_holder()
                try:
                    with fleet.marked("switchover", holder):
                        turn(store, True)
                        for worker in fleet.workers:
                            fleet.wait_for_count("acquire", "error", 1, worker=worker)
                        proxy.retarget(new.servers[0].address)
                    for worker in fleet.workers:
                        fleet.wait_for_grants(2, worker=worker)  # fails unless each worker comes back by itself
                finally:
                    turn(store, False)
                report.add(check(fleet.end(), rules_of(store, off=NOT_REPLICATED)))
    return report
