"""Ctrl-C and SIGTERM while a sync acquire waits for its reply: nothing stays locked for a caller that is gone."""

from __future__ import annotations

from tests.faults.checker import Finding, Report
from tests.faults.interrupted import SIGNALS, interrupt
from tests.faults.registry import Budget, scenario
from tests.support.stores import WITH_NETWORK, Store


@scenario(16, "acquire interrupted by a signal", stores=WITH_NETWORK, kinds=("sync",), weight=0.5, least=2)
def interrupts(store: Store, budget: Budget, seed: int) -> Report:
    """A process acquires for hours; the reply does not come, and a signal does."""
    report = Report()
    for trial in budget.trials():
        number = SIGNALS[trial % len(SIGNALS)]
        wrong = interrupt(store, number)
        report.trials += 1
        report.counts["interrupted"] += 1
        if wrong:
            report.findings.append(Finding("interrupted acquire", number.name, wrong, 0.0))
    return report
