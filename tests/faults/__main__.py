"""Run the full suite of faults and write a report.

    python -m tests.faults [--minutes N] [--only SCENARIO] [--store STORE] [--jobs J] [--seed S] [--keep DIRECTORY]

Exits with 1 if a promise was broken, a scenario failed to run, or a mutant was not found. A run without --only and
--store rewrites the tables in docs/results/faults.md.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from tests.faults.controls import run_controls
from tests.faults.fleet import KEEP
from tests.faults.registry import all_scenarios
from tests.faults.report import Control, Row, tables, write_page
from tests.faults.runner import NOT_THERE, is_chosen, run_store, say
from tests.support import stores


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    chosen = [scenario for scenario in all_scenarios() if is_chosen(scenario, options.only)]
    jobs = [(name, s) for name in stores.ALL for s in chosen if name in s.stores and options.store in (None, name)]
    if not jobs:
        print("no such scenario on such a store; there are:")
        for scenario in all_scenarios():
            print(f"  {scenario.number:2} {scenario.name}: {', '.join(scenario.stores)}")
        return 2
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        os.environ[KEEP] = str(options.keep.resolve())  # for the processes of the stores, too
    started = time.monotonic()
    print(f"seed {seed}; {len(jobs)} scenarios on stores in about {options.minutes:g} minutes", flush=True)
    is_whole = options.only is None and options.store is None
    controls = _controls(seed) if is_whole else []
    share = options.minutes * 60 / sum(scenario.weight * len(scenario.kinds) for _, scenario in jobs)
    rows: list[Row] = []
    names = list(dict.fromkeys(name for name, _ in jobs))
    run_one = partial(run_store, only=options.only, share=share * options.jobs, seed=seed)
    try:
        for of_store in _run_stores(names, run_one, options.jobs):
            rows += of_store
    except KeyboardInterrupt:
        say("interrupted: the page stays as it was")
        return 130
    rows.sort(key=lambda row: (row.number, row.scenario, stores.ALL.index(row.store)))
    seconds = time.monotonic() - started
    text = tables(rows, controls, seed=seed, seconds=seconds)
    print(f"\n{text}\n")
    if is_whole:
        write_page(text)
    violations = sum(len(row.report.findings) for row in rows)
    missed = [control.fault for control in controls if control.caught_by is None]
    errors = sum(len(row.report.errors) for row in rows)
    print(f"{violations} violations, {errors} errors in {seconds / 60:.1f} minutes, seed {seed}")
    if missed:
        print(f"mutants that were not found: {', '.join(missed)}")
    return 1 if violations or errors or missed else 0


def _run_stores(names: list[str], run_one: Callable[[str], list[Row]], jobs: int) -> Iterator[list[Row]]:
    """Yield the rows of each store. If ``jobs`` > 1, each store has a process: most of the time is waiting."""
    if jobs == 1:
        yield from map(run_one, names)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        try:
            yield from pool.map(run_one, names)
        except KeyboardInterrupt:
            while processes := active_children():  # the pool may start another process for each that ends
                for process in processes:
                    process.join(5)  # in a terminal, Ctrl-C interrupted this process, too: it now stops its servers
                    process.terminate()
            raise


def _controls(seed: int) -> list[Control]:
    try:
        return run_controls(seed, say)
    except NOT_THERE as missing:
        say(f"MISSING for the mutants: {missing}")
        return [Control("any", str(missing), None, 0)]


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Try to break the promises.")
    parser.add_argument("--minutes", type=float, default=30.0, help="about how long, over all (default: 30)")
    parser.add_argument("--only", metavar="SCENARIO", help="by its number, or by a part of its name")
    parser.add_argument("--store", choices=stores.ALL, help="on this one only")
    parser.add_argument("--jobs", type=int, default=2, help="how many stores at the same time (default: 2)")
    parser.add_argument(
        "--keep", type=Path, metavar="DIRECTORY", help="keep the histories there, for python -m tests.formal.traces"
    )
    parser.add_argument("--seed", type=int, help="repeat the choices of an earlier run (its timing is not repeated)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
