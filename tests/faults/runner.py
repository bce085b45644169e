"""Run scenarios, one store at a time. Each process of ``__main__.py`` runs this."""

from __future__ import annotations

import traceback
from contextlib import ExitStack

import pytest

from tests.faults.checker import Finding, Report
from tests.faults.registry import Budget, Scenario, all_scenarios
from tests.faults.report import Row, line
from tests.support import stores, versions

NOT_THERE = (pytest.skip.Exception, pytest.fail.Exception)
"""Raised by the tests' servers if their programs are not installed."""
SHOWN = 5
"""Number of findings of a scenario that are printed in full."""


def is_chosen(scenario: Scenario, only: str | None) -> bool:
    if only is None:
        return True
    return scenario.number == int(only) if only.isdecimal() else only.lower() in scenario.name.lower()


def run_store(name: str, only: str | None, share: float, seed: int) -> list[Row]:
    """Run all chosen scenarios on one store, with private servers."""
    chosen = [scenario for scenario in all_scenarios() if is_chosen(scenario, only) and name in scenario.stores]
    with ExitStack() as stack:
        try:
            store = stack.enter_context(stores.STORES[name].open())
        except NOT_THERE as missing:
            say(f"MISSING {name}: {missing}")
            return [Row(s.number, s.name, name, Report(errors=[str(missing)])) for s in chosen]
        return [_run(scenario, store, share, seed) for scenario in chosen]


def _run(scenario: Scenario, store: stores.Store, share: float, seed: int) -> Row:
    whole = Report()
    for kind in scenario.kinds:
        store.is_async = kind == "async"
        try:
            report = scenario.run(store, Budget(share * scenario.weight, scenario.least), seed)
        except AssertionError as error:  # an expected event did not happen
            report = Report(findings=[Finding("assertion", "", str(error), 0.0)])
            say(traceback.format_exc())
        except (Exception, *NOT_THERE) as error:  # run the other scenarios all the same
            report = Report(errors=[f"{type(error).__name__}: {error}"])
            say(traceback.format_exc())
        say(line(f"{scenario.number}. {scenario.name}", store.name, kind, report))
        for finding in report.findings[:SHOWN]:
            say(f"     {finding.rule}: {finding.text}")
        for why in report.errors:
            say(f"     not carried out: {why}")
        whole.add(report)
    return Row(scenario.number, scenario.name, store.name, whole, versions.met())


def say(text: str) -> None:
    print(text, flush=True)
