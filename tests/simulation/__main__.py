"""Simulate a year of the library's life, and try to break its promises.

    python -m tests.simulation [--hours H] [--seed S] [--kind KIND] [--store STORE] [--jobs J]
    python -m tests.simulation --replay SEED --kind KIND
    python -m tests.simulation --mutants
    python -m tests.simulation --list

Exits with 1 if a promise was broken, a mutant was not found, or a documented limit was not noticed. A full run of a
year or more also tries the limits and the mutants, and rewrites docs/results/simulation.md.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from tests.faults.report import write_page
from tests.simulation import timeline
from tests.simulation.campaign import MODELS, SHORT, STORES, WITHIN_LIMITS, Job, Limit, for_hours, jobs, run, try_limit
from tests.simulation.explain import explain
from tests.simulation.mutants import ALL
from tests.simulation.progress import Progress, plural
from tests.simulation.report import BEGIN, END, PAGE, Run, section
from tests.simulation.schedule import KINDS, LIMITS, draw
from tests.simulation.simulation import simulate
from tests.simulation.tally import Found, Result, Tally
from tests.simulation.trials import Detection, try_all

YEAR = 8760
"""Hours."""
SEEDS_OF_A_LIMIT = 20
SEEDS_OF_A_MUTANT = 5
SHRUNK = 3
"""Number of violations that are shrunk and printed as timelines."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if options.list:
        return _list()
    seed = options.seed if options.seed is not None else random.randrange(1_000_000_000)
    if options.replay is not None:
        kind, store = options.kind or WITHIN_LIMITS[0], options.store or "memory"
        return _replay(Job(options.replay, kind, options.hours or SHORT, store))
    if options.mutants:
        return int(not all(detection.is_found for detection in _mutants(seed)))
    hours = options.hours or YEAR
    print(f"seed {seed}: {hours:,g} simulated hours", flush=True)
    started = time.monotonic()
    tally = _simulate(seed, hours, options)
    seconds = time.monotonic() - started
    print(
        f"{_summary(tally)} in {seconds:.0f} s ({tally.hours * 3600 / seconds:,.0f} times as fast as time)", flush=True
    )
    limits: list[Limit] = []
    detections: list[Detection] = []
    if options.kind is None and options.store is None:
        limits = _limits(seed, options.jobs)
    if hours >= YEAR and options.kind is None and options.store is None:
        detections = _mutants(seed)
        write_page(section(Run(seed, seconds, tally, limits, detections)), PAGE, BEGIN, END)
    for found in _worth_shrinking([*tally.found, *(each for limit in limits for each in limit.unexpected.found)]):
        print(f"\n{explain(Job(found.seed, found.kind, found.hours, found.store))}", flush=True)
    is_good = (
        not tally.found
        and all(limit.broken and not limit.unexpected.found for limit in limits)
        and all(detection.is_found for detection in detections)
    )
    return 0 if is_good else 1


def _simulate(seed: int, hours: float, options: Any) -> Tally:
    kinds = (options.kind,) if options.kind else WITHIN_LIMITS
    progress = Progress(hours)

    def on_result(tally: Tally, result: Result) -> None:
        if result.violation is not None:
            again = timeline.replay(draw(result.seed, result.hours, result.kind, store=result.store))
            progress.say(f"VIOLATION {result.violation.rule}: {result.violation.text}\n  see it again: {again}")
        progress.update(tally)

    planned = for_hours(hours, jobs(seed, kinds, (options.store,) if options.store else STORES))
    tally = run(planned, processes=options.jobs, on_result=on_result)
    progress.clear()
    return tally


def _summary(tally: Tally) -> str:
    return (
        f"{tally.hours:,.0f} hours, {tally.events:,} events, {plural(tally.seeds, 'seed')}, "
        f"{plural(len(tally.found), 'violation')}"
    )


def _limits(seed: int, processes: int) -> list[Limit]:
    limits = []
    for kind in LIMITS:
        limits.append(try_limit(kind, seed, SEEDS_OF_A_LIMIT, processes=processes))
        print(limits[-1], flush=True)
    return limits


def _mutants(seed: int) -> list[Detection]:
    detections = []
    for detection in try_all(range(seed, seed + SEEDS_OF_A_MUTANT)):
        detections.append(detection)
        print(f"mutant {detection}", flush=True)
    found = sum(detection.is_found for detection in detections)
    print(f"{found} of {plural(len(detections), 'mutant')} found within one simulated hour", flush=True)
    return detections


def _worth_shrinking(found: list[Found]) -> list[Found]:
    """Return one violation for each rule, and not too many."""
    by_rule = {each.violation.rule: each for each in reversed(found)}
    return list(by_rule.values())[:SHRUNK]


def _replay(job: Job) -> int:
    schedule = draw(job.seed, job.hours, job.kind, store=job.store)
    outcome = simulate(schedule)
    print(f"{timeline.name_of(schedule)}: {outcome.events:,} events, {plural(len(outcome.violations), 'violation')}")
    for event, number in sorted(outcome.counts.items()):
        print(f"  {event}: {number:,}")
    if outcome.violations:
        print(explain(job))
    return 1 if outcome.broken() else 0


def _list() -> int:
    print("schedules within the limits of the library:")
    for kind in WITHIN_LIMITS:
        print(f"  {kind:20} {KINDS[kind].text}")
    print("schedules beyond a documented limit, which must break promises:")
    for kind in LIMITS:
        print(f"  {kind:20} {KINDS[kind].text}: {KINDS[kind].limit}")
    print("mutants:")
    for mutant in ALL.values():
        print(f"  {mutant.part:11} {mutant.name:45} {mutant.wrong}")
    return 0


def _parse(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulate, and break promises.")
    parser.add_argument("--hours", type=float, help=f"simulated hours (default: {YEAR}, a year)")
    parser.add_argument("--seed", type=int, help="of the first schedule (default: a fresh one)")
    parser.add_argument("--kind", choices=tuple(KINDS), help="schedules of this kind only")
    parser.add_argument(
        "--store",
        choices=("memory", *MODELS),
        help="whose programs run (default: memory, and each of the others in a hundredth of the schedules)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--list", action="store_true", help="list the kinds of schedules and the mutants")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one schedule again, shrunk and as a timeline")
    parser.add_argument("--mutants", action="store_true", help="simulate each mutant, and measure when it is found")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
