"""Run history of fifty jobs after their processes are killed."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import LockRequest, hold
from shedlock_py.testing.contract.base import eventually
from tests.support.polling import wait_until
from tests.support.processes import kill_tree
from tests.support.stores import Store, open_provider

PROCESSES, JOBS = 2, 25
"""Processes, and simultaneous jobs in each process."""
NAMES = [f"job-{number}" for number in range(PROCESSES * JOBS)]
AT_MOST = "3s"


def holder(arguments: dict[str, Any], names: list[str], log: Path) -> None:
    """Run all these endless jobs."""
    provider = open_provider(**arguments)
    with ExitStack() as stack, log.open("a", buffering=1) as file:
        for name in names:
            assert stack.enter_context(hold(name, lock_at_most_for=AT_MOST, provider=provider)) is not None
            file.write(f"{name}\n")
        time.sleep(120)


def holders(arguments: dict[str, Any], log: Path) -> None:
    """Import everything in a parent process, and fork the workers."""
    context: Any = multiprocessing.get_context("fork")
    for number in range(PROCESSES):
        names = NAMES[number * JOBS : (number + 1) * JOBS]
        context.Process(target=holder, args=(arguments, names, log), daemon=True).start()
    time.sleep(120)


@pytest.mark.slow("starts processes, and waits for the end of fifty leases")
@pytest.mark.parametrize("store_name", ["sqlite", "postgres", "redis"])
def test_the_run_of_each_killed_holder_has_vanished_once(
    store_name: str, make_store: Callable[..., Store], tmp_path: Path
) -> None:
    store, log = make_store(store_name), tmp_path / "log"
    log.touch()
    store.options = {**store.options, "history": 5}
    store.prepare()
    group = multiprocessing.get_context("forkserver").Process(target=holders, args=(store.arguments(), log))
    group.start()
    try:
        wait_until(lambda: len(log.read_text().splitlines()) == len(NAMES), timeout=60, what="all jobs run")
    finally:
        assert group.pid is not None
        kill_tree(group.pid)
        group.join(10)
    with store.provider() as provider:
        keeper: Any = provider
        killed = {run.name: run for name in NAMES for run in keeper.runs(name)}
        assert [killed[name].outcome for name in NAMES] == [None] * len(NAMES)
        for outcomes in (["ok", "vanished"], ["ok", "ok", "vanished"]):
            for name in NAMES:
                lease = eventually(partial(keeper.acquire, LockRequest(name, "1m")), "the end of a lease")
                assert keeper.release(lease)
                runs = keeper.runs(name)
                assert [run.outcome for run in runs] == outcomes
                last = runs[-1]
                assert (last.locked_by, last.started) == (killed[name].locked_by, killed[name].started)
                assert (last.ended, last.duration) == (runs[-2].started, None)
