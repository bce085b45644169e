"""Eight processes with a job that is due every half second, while an operator pauses and resumes it."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shedlock_py import LockRequest, Skipped, attempt
from tests.support.polling import wait_until
from tests.support.processes import kill_tree
from tests.support.stores import Store, open_provider

PROCESSES = 8
TICK = 0.5
"""Seconds between two fire times."""
FIRST = datetime(2020, 1, 1, tzinfo=UTC).timestamp()


class Attempt(NamedTuple):
    pid: int
    tick: int
    started: float
    """In seconds of the monotonic clock, which all processes share."""
    has_run: bool


def replica(arguments: dict[str, Any], log: Path, begin: float) -> None:
    """Attempt the job at each tick, until this process is killed."""
    provider = open_provider(**arguments)
    with log.open("a", buffering=1) as file:
        while True:
            tick = int((time.monotonic() - begin) / TICK) + 1
            time.sleep(max(0.0, begin + tick * TICK - time.monotonic()))
            fire_time = datetime.fromtimestamp(FIRST + tick * TICK, UTC)
            started = time.monotonic()
            done = attempt(LockRequest("job", "1m", fire_time=fire_time), lambda: None, provider=provider)
            file.write(json.dumps([os.getpid(), tick, started, not isinstance(done, Skipped)]) + "\n")


def replicas(arguments: dict[str, Any], log: Path) -> None:
    """Import everything in a parent process, and fork the workers."""
    context: Any = multiprocessing.get_context("fork")
    begin = time.monotonic()
    for _ in range(PROCESSES):
        context.Process(target=replica, args=(arguments, log, begin), daemon=True).start()
    time.sleep(120)


def attempts(log: Path) -> list[Attempt]:
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [Attempt(*json.loads(line)) for line in lines if line.endswith("\n")]


@pytest.mark.slow("waits for ten fire times")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("store_name", ["postgres", "redis"])
def test_eight_processes_run_nothing_during_a_pause_and_the_next_tick_after_it(
    store_name: str, make_store: Callable[..., Store], tmp_path: Path
) -> None:
    store, log = make_store(store_name), tmp_path / "log"
    provider = store.open()
    group = multiprocessing.get_context("forkserver").Process(target=replicas, args=(store.arguments(), log))
    group.start()

    def wait_for_all(since: float) -> None:
        """Wait until each process has attempted three times."""

        def have_all_attempted() -> bool:
            pids = [each.pid for each in attempts(log) if each.started > since]
            return len(set(pids)) == PROCESSES and min(map(pids.count, set(pids))) >= 3

        wait_until(have_all_attempted, timeout=60, what="three attempts of each process")

    try:
        wait_for_all(0.0)
        assert provider.pause("job", "1h", "migration", wait="30s").is_paused
        paused_at = time.monotonic()
        wait_for_all(paused_at)
        resumed_at = time.monotonic()
        assert provider.resume("job")
        is_resumed_at = time.monotonic()
        wait_for_all(is_resumed_at)
    finally:
        assert group.pid is not None
        kill_tree(group.pid)
        group.join(10)
        provider.close()
    found = attempts(log)
    during = [each for each in found if paused_at < each.started < resumed_at]
    assert len(during) >= 3 * PROCESSES
    assert [each for each in during if each.has_run] == []
    next_tick = min(each.tick for each in found if each.started > is_resumed_at)
    runs = Counter(each.tick for each in found if each.has_run)
    assert runs[next_tick] == 1
    assert max(runs.values()) == 1
    assert min(runs) < min(each.tick for each in during)  # the job ran before the pause, too
