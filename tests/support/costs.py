"""CPU and wall time of each test: of its process, of the processes that it starts, and of the servers that it uses.

The summary lists the cost of each folder and the ten most expensive tests. A test that ``make test`` runs may use
:data:`MOST` CPU-seconds. ``make test-full`` fails if a folder exceeds its budget in tests/README.md.
``SHEDLOCK_TEST_COSTS=FILE`` writes one line of JSON for each test.
"""

from __future__ import annotations

import json
import os
import re
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import forked, tiers

TICKS = os.sysconf("SC_CLK_TCK")
SHARED = ("session", "package", "module", "class")
"""Scopes of fixtures that count as set-up of the folder, not as part of the first test."""
PROPERTY = "cost"
MOST = 2.0
"""CPU-seconds that a test may use in ``make test`` on an idle machine. A test is ``slow`` from 0.4 on, but its cost
also contains other work of the servers of its process: a Java server compiles for three seconds."""
BUDGET = re.compile(r"^\| `(\w+)/` \|.*\| *(\d+) \|$", re.MULTILINE)
"""A row of the table in tests/README.md: a folder, and its CPU-seconds in ``make test-full``."""


@dataclass
class Cost:
    cpu: float = 0.0
    wall: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu + other.cpu, self.wall + other.wall)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu - other.cpu, self.wall - other.wall)


def spent() -> Cost:
    """Return the time that this process and its descendants have used so far."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = time.process_time() + ended.ru_utime + ended.ru_stime
    todo = [pid for thread in os.listdir("/proc/self/task") for pid in _children("self", thread)]
    while todo:
        pid = todo.pop()
        todo += _children(pid, pid)
        cpu += _used(pid)
    return Cost(cpu, time.monotonic())


def _children(pid: str, thread: str) -> list[str]:
    """Return the processes that a thread has started. In other processes only the main thread counts."""
    return _read(f"/proc/{pid}/task/{thread}/children").split()


def _used(pid: str) -> float:
    """Return the CPU-seconds of a process and of its children that have ended."""
    return sum(map(int, _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[11:15])) / TICKS


def _read(path: str) -> str:
    """:return: "" if the process or the thread has just ended."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(file, 65536).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)


class Costs:
    """A pytest plugin for each process that runs tests."""

    def __init__(self) -> None:
        self._shared = Cost()
        self._start = Cost()
        self._forks = 0.0

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
        self._shared, self._start, self._forks = Cost(), spent(), forked.start_cost()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        self._shared += Cost(forked.start_cost() - self._forks)
        own = spent() - self._start - self._shared
        item.user_properties.append((PROPERTY, [own.cpu, own.wall, self._shared.cpu, self._shared.wall]))
        # In the full tier, tests of this tier do more rounds. On a busy machine, the same work takes more CPU time.
        most = MOST * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        if own.cpu > most and not tiers.runs("full"):
            pytest.fail(
                f"the test used {own.cpu:.1f} CPU-seconds, and {most:.1f} is the most in `make test` at this load: "
                'make it cheaper, or mark it with pytest.mark.slow("why")',
                pytrace=False,
            )
        return result


class Summary:
    """A pytest plugin for the process that reports.

    :param budgets: the most CPU-seconds of each folder that has a budget.
    """

    def __init__(self, budgets: Mapping[str, float]) -> None:
        self._budgets = budgets
        self._tests: list[tuple[str, Cost, Cost]] = []
        self._file = os.environ.get("SHEDLOCK_TEST_COSTS")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost: Any = dict(report.user_properties).get(PROPERTY)
        if report.when == "teardown" and cost:
            self._tests.append((report.nodeid, Cost(*cost[:2]), Cost(*cost[2:])))
            if self._file:
                with open(self._file, "a") as f:
                    f.write(json.dumps([report.nodeid, *cost]) + "\n")

    def folders(self) -> dict[str, tuple[int, Cost]]:
        """Return the number of tests and the cost of each folder, most expensive first."""
        found: dict[str, tuple[int, Cost]] = {}
        for nodeid, own, shared in self._tests:
            folder = nodeid.split("/")[1] if nodeid.count("/") > 1 else "tests"
            count, cost = found.get(folder, (0, Cost()))
            found[folder] = count + 1, cost + own + shared
        return dict(sorted(found.items(), key=lambda entry: -entry[1][1].cpu))

    def over_budget(self) -> list[str]:
        return [
            f"{folder}/ used {cost.cpu:.0f} CPU-seconds; its budget in tests/README.md is {budget:g}"
            for folder, (_, cost) in self.folders().items()
            if (budget := self._budgets.get(folder)) is not None and cost.cpu > budget
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.over_budget() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._tests) < 100:  # a developer runs a part of the suite
            return
        terminalreporter.section("cost of this run")
        folders = self.folders()
        for folder, (count, cost) in folders.items():
            terminalreporter.write_line(f"{folder:14}{count:6} tests {cost.cpu:7.1f} CPU-s {cost.wall:7.1f} s")
        whole = sum((cost for _, cost in folders.values()), Cost())
        terminalreporter.write_line(f"{'all':14}{len(self._tests):6} tests {whole.cpu:7.1f} CPU-s {whole.wall:7.1f} s")
        terminalreporter.write_line("the ten most expensive tests:")
        for nodeid, own, _ in sorted(self._tests, key=lambda test: -test[1].cpu)[:10]:
            terminalreporter.write_line(f"  {own.cpu:5.1f} CPU-s {own.wall:5.1f} s  {nodeid}")
        for line in self.over_budget():
            terminalreporter.write_line(line, red=True)


def budgets(config: pytest.Config) -> dict[str, float]:
    """Return the budgets of a run of ``make test-full``. Empty if the run has fewer tests, or more."""
    if config.getoption("--tier") != "full" or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return {}
    if config.getoption("-k") or config.getoption("-m"):
        return {}
    text = (config.rootpath / "tests" / "README.md").read_text()
    return {folder: float(seconds) for folder, seconds in BUDGET.findall(text)}
