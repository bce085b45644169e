"""The full suite of faults, with a report.

    python -m tests.faults [--minutes N] [--only SCENARIO] [--store STORE] [--seed S]

Exits with 1 if a promise was broken, or a planted fault not found. A run without --only and --store rewrites the tables
in docs/reliability.md.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from tests.faults import stores
from tests.faults.checker import Finding, Report
from tests.faults.controls import run_controls
from tests.faults.registry import Budget, Scenario, all_scenarios
from tests.faults.report import Control, Row, line, tables, write_page

NOT_THERE = (pytest.skip.Exception, pytest.fail.Exception)
"""What the tests' servers raise if their programs are not installed."""
SHOWN = 5
"""Findings of one scenario that are printed in full."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    chosen = [scenario for scenario in all_scenarios() if _is_chosen(scenario, options.only)]
    jobs = [(name, s) for name in stores.ALL for s in chosen if name in s.stores and options.store in (None, name)]
    if not jobs:
        print("no such scenario on such a store; there are:")
        for scenario in all_scenarios():
            print(f"  {scenario.number:2} {scenario.name}: {', '.join(scenario.stores)}")
        return 2
    started = time.monotonic()
    print(f"seed {seed}; {len(jobs)} scenarios on stores in about {options.minutes:g} minutes", flush=True)
    is_whole = options.only is None and options.store is None
    controls = _controls(seed) if is_whole else []
    share = options.minutes * 60 / sum(scenario.weight * len(scenario.kinds) for _, scenario in jobs)
    rows: list[Row] = []
    for name in dict.fromkeys(name for name, _ in jobs):
        with ExitStack() as stack:
            try:
                store = stack.enter_context(stores.OPEN[name]())
            except NOT_THERE as missing:
                say(f"MISSING {name}: {missing}")
                rows += [Row(s.number, s.name, name, _failed(str(missing))) for of, s in jobs if of == name]
                continue
            for scenario in (s for of, s in jobs if of == name):
                rows.append(_run(scenario, store, share, seed))
    rows.sort(key=lambda row: (row.number, row.scenario, stores.ALL.index(row.store)))
    seconds = time.monotonic() - started
    text = tables(rows, controls, seed=seed, seconds=seconds)
    print(f"\n{text}\n")
    if is_whole:
        write_page(text)
    violations = sum(len(row.report.findings) for row in rows)
    missed = [control.fault for control in controls if control.caught_by is None]
    print(f"{violations} violations in {seconds / 60:.1f} minutes, seed {seed}")
    if missed:
        print(f"planted faults that were not found: {', '.join(missed)}")
    return 1 if violations or missed else 0


def _is_chosen(scenario: Scenario, only: str | None) -> bool:
    if only is None:
        return True
    return scenario.number == int(only) if only.isdecimal() else only.lower() in scenario.name.lower()


def say(text: str) -> None:
    print(text, flush=True)


def _controls(seed: int) -> list[Control]:
    try:
        return run_controls(seed, say)
    except NOT_THERE as missing:
        say(f"MISSING for the planted faults: {missing}")
        return [Control("any", str(missing), None, 0)]


def _run(scenario: Scenario, store: stores.Store, share: float, seed: int) -> Row:
    whole = Report()
    for kind in scenario.kinds:
        store.is_async = kind == "async"
        try:
            report = scenario.run(store, Budget(share * scenario.weight, scenario.least), seed)
        except (Exception, *NOT_THERE) as error:  # the others shall be tried all the same
            report = _failed(f"{type(error).__name__}: {error}")
            say(traceback.format_exc())
        say(line(f"{scenario.number}. {scenario.name}", store.name, kind, report))
        for finding in report.findings[:SHOWN]:
            say(f"     {finding.rule}: {finding.text}")
        whole.add(report)
    return Row(scenario.number, scenario.name, store.name, whole)


def _failed(why: str) -> Report:
    return Report(findings=[Finding("not carried out", "", why, 0.0)])


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Try to break the promises.")
    parser.add_argument("--minutes", type=float, default=30.0, help="about how long, over all (default: 30)")
    parser.add_argument("--only", metavar="SCENARIO", help="by its number, or by a part of its name")
    parser.add_argument("--store", choices=stores.ALL, help="on this one only")
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier run (its timing is not repeated)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
