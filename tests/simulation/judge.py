"""Judge the history of a simulation with the checker of ``tests.faults``, window by window."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.checker import Report, Rules, check
from tests.faults.history import History, Operation
from tests.faults.scenarios import fire_times, once, operators, recoveries
from tests.simulation.log import Recorder
from tests.simulation.network import LATEST
from tests.simulation.schedule import KINDS, Violation

MARGIN = 2 * LATEST
"""Seconds for which operations may have an effect after their end. They then belong to the next window, too.

In a calm schedule the seconds are longer.
"""
DRIFT = 0.01
"""Greater than the difference in speed of two clocks in a simulation within the limits."""
_INFINITY = float("inf")


def _forced(history: History, rules: Rules) -> Report:
    """Judge the history as if nobody had acted by force."""
    return check(operators.as_acquires(history), rules)


_JUDGES: dict[str, Callable[[History, Rules], Report]] = {
    "operators": operators.judge,
    "fire times": fire_times.judge,
    "recoveries": recoveries.judge,
    "one-time tasks": once.judge,
    "forced releases": _forced,
}


class Judge:
    """Finds violations in the history of a recorder. The recorder then forgets the judged part."""

    def __init__(self, recorder: Recorder, kind: str, *, drifts: bool, pace: int, kept: float) -> None:
        """:param drifts: whether clocks run at different speeds.
        :param pace: the pace of the schedule.
        :param kept: how much longer than requested the store may keep a lease.
        """
        self._margin = MARGIN * pace
        self._recorder = recorder
        self._judge = _JUDGES.get(kind, check)
        self._may_break = KINDS[kind].may_break
        self._rules = Rules(drift=DRIFT if drifts else 0.0, kept=kept)
        self._judged_until = -_INFINITY
        self.violations: list[Violation] = []

    def judge(self, until: float) -> list[Violation]:
        """Return the violations that became known since the last call, of operations before ``until``."""
        recorder = self._recorder
        operations = sorted([*recorder.ended.values(), *recorder.under_way.values()], key=_begin)
        report = self._judge(History(tuple(operations), tuple(recorder.marks)), self._rules)
        found = {
            Violation(finding.rule, finding.at, finding.name, finding.text, finding.rule in self._may_break)
            for finding in report.findings
            if self._judged_until <= finding.at < until
        }
        self._judged_until = until
        if until < _INFINITY:
            self._forget(until - self._margin)
        new = sorted(found, key=lambda violation: (violation.at, violation.rule, violation.text))
        self.violations += new
        return new

    def _forget(self, before: float) -> None:
        recorder = self._recorder
        claims = {operation.claim for operation in recorder.under_way.values()}
        claims |= {operation.claim for operation in recorder.ended.values() if _end(operation) >= before}
        claims.discard("")
        recorder.forget(lambda operation: operation.claim not in claims and _end(operation) < before)
        workers = {operation.worker for operation in (*recorder.ended.values(), *recorder.under_way.values())}
        recorder.marks = [mark for mark in recorder.marks if mark.after >= before or mark.worker in workers]


def _begin(operation: Operation) -> float:
    return operation.started


def _end(operation: Operation) -> float:
    return operation.started if operation.ended is None else operation.ended
