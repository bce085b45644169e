"""CPU and wall time of each test: of its own process, of the processes that it starts, and of the servers it uses.

The summary names the cost per folder and the ten most expensive tests. ``SHEDLOCK_TEST_COSTS=FILE`` writes one line of
JSON per test.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
SHARED = ("session", "package", "module", "class")
"""Scopes of fixtures that count as set-up of the folder, not as a part of the test that comes first."""
PROPERTY = "cost"


@dataclass
class Cost:
    """CPU and wall time in seconds."""

    cpu: float = 0.0
    wall: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu + other.cpu, self.wall + other.wall)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu - other.cpu, self.wall - other.wall)


def spent() -> Cost:
    """What this process and its descendants have used until now."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = time.process_time() + ended.ru_utime + ended.ru_stime
    todo = _children(os.getpid())
    while todo:
        pid = todo.pop()
        todo += _children(pid)
        cpu += _used(pid)
    return Cost(cpu, time.monotonic())


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except OSError:  # the process or the thread has just ended
        pass
    return found


def _used(pid: int) -> float:
    """CPU seconds of a process and of its children that ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    return sum(map(int, text.rpartition(")")[2].split()[11:15])) / TICKS


class Costs:
    """A plugin for pytest, in each process that runs tests."""

    def __init__(self) -> None:
        self._shared = Cost()
        self._start = Cost()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        if fixturedef.scope not in SHARED:
            return (yield)
        before, inner = spent(), self._shared
        try:
            return (yield)
        finally:
            self._shared = inner + (spent() - before)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._shared, self._start = Cost(), spent()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        finally:
            own = spent() - self._start - self._shared
            item.user_properties.append((PROPERTY, [own.cpu, own.wall, self._shared.cpu, self._shared.wall]))


class Summary:
    """A plugin for the process that reports."""

    def __init__(self) -> None:
        self._tests: list[tuple[str, Cost, Cost]] = []
        self._file = os.environ.get("SHEDLOCK_TEST_COSTS")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost: Any = dict(report.user_properties).get(PROPERTY)
        if report.when == "teardown" and cost:
            self._tests.append((report.nodeid, Cost(*cost[:2]), Cost(*cost[2:])))
            if self._file:
                with open(self._file, "a") as f:
                    f.write(json.dumps([report.nodeid, *cost]) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        folders: dict[str, Cost] = defaultdict(Cost)
        counts: dict[str, int] = defaultdict(int)
        for nodeid, own, shared in self._tests:
            folder = nodeid.removeprefix("tests/").partition("/")[0]
            folders[folder] += own + shared
            counts[folder] += 1
        for folder, cost in sorted(folders.items(), key=lambda entry: -entry[1].cpu):
            terminalreporter.write_line(
                f"{folder:20} {counts[folder]:6} tests {cost.cpu:7.1f} CPU-s {cost.wall:7.1f} s"
            )
