"""Ctrl-C and SIGTERM while a sync acquire waits for its reply: nothing stays locked for a caller that is gone."""

from __future__ import annotations

from collections import Counter

from tests.faults.checker import Finding, Report
from tests.faults.interrupted import SIGNALS, interrupt
from tests.faults.registry import by_trial, scenario
from tests.support.stores import WITH_NETWORK, Store


@scenario(16, "acquire interrupted by a signal", stores=WITH_NETWORK, kinds=("sync",), weight=0.5, least=2)
@by_trial
def interrupts(store: Store, seed: int, number: int) -> Report:
    """A process acquires for hours; the reply does not come, and a signal does."""
    signum = SIGNALS[number % len(SIGNALS)]
    wrong = interrupt(store, signum)
    findings = [Finding("interrupted acquire", signum.name, wrong, 0.0)] if wrong else []
    return Report(trials=1, findings=findings, counts=Counter(interrupted=1))
