"""The SQLite file is replaced by one with an empty lock table while workers run: a redeploy, or a restored copy.

As for a deleted record, nobody can prevent that the name is free although its holder still trusts its lease. But no
worker may go on in the old file, where it would be a second holder for good.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.faults.checker import Report
from tests.faults.fleet import Fleet
from tests.faults.registry import Budget, scenario
from tests.faults.scenarios.deletions import with_deletions
from tests.support.stores import Store


def replace_file(store: Store, fleet: Fleet) -> None:
    path = Path(store.where(()).removeprefix("sqlite:///"))
    fresh = path.with_name("fresh.db")
    with closing(SqlAlchemyLockProvider(f"sqlite:///{fresh}")) as provider:
        provider.create_schema()
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    os.replace(fresh, path)


@scenario(10, "SQLite file replaced in mid-hold", stores=("sqlite",), least=2)
def replaced(store: Store, budget: Budget, seed: int) -> Report:
    return with_deletions(store, budget, seed, replace_file)
