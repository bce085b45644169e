"""Measure, and write the results: ``make bench``, or ``python -m benchmarks --quick --only redis,latency``."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import re
import sys
import warnings
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks import cost, growth, history, inprocess, latency, life, machine, report, wire, workers
from benchmarks.contenders import CONTENDERS, US, of_group
from benchmarks.machine import ROOT
from benchmarks.plan import Absent, Plan
from benchmarks.progress import say
from benchmarks.servers import STORES, WITHOUT_HISTORY, RunningStore, ServerError, running

FIGURES = {
    "latency": "acquire and release, and skip, of one client; processor time",
    "wire": "round trips and bytes",
    "cost": "what the server writes and locks",
    "history": "what run history adds to all of these",
    "contention": "skips per second of many processes",
    "clients": "growth with the number of clients",
    "names": "growth with the number of names",
    "records": "growth with the number of records",
    "life": "keep-alive, leader and follower, per minute",
    "decorators": "overhead without a store",
    "imports": "import time and modules",
    "memory": "memory of 10,000 names",
}
OF_STORES = ("latency", "wire", "cost", "history", "contention", "clients", "names", "records", "life")
NOT_MEASURED = {("records", "etcd"), ("records", "dynamodb"), ("records", "s3"), ("records", "kubernetes")}
"""Their indexes do not grow: etcd's is in memory, DynamoDB Local's in SQLite, SeaweedFS's in LevelDB."""
LAST = ROOT / "benchmarks" / "results" / "last.json"
"""The last full run, which the documentation shows."""
PART = ROOT / "build" / "benchmarks.json"
# On MariaDB and MySQL, stormlock's transactions deadlock with several clients.
RIVALS_OF_MANY = {**growth.RIVALS, "mariadb": "sqlalchemy-dlock", "mysql": "sqlalchemy-dlock"}


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    plan = Plan.smoke() if options.smoke else Plan.quick() if options.quick else Plan()
    plan.rounds = options.rounds or plan.rounds
    words = set(filter(None, (options.only or "").split(",")))
    if unknown := words - set(STORES) - set(FIGURES):
        raise SystemExit(f"--only: unknown {', '.join(sorted(unknown))}; see --help")
    plan.stores = tuple(store for store in STORES if store in words) or STORES
    chosen = [figure for figure in FIGURES if figure in words]
    is_whole = not (words or options.quick or options.smoke)
    plan.figures = tuple(chosen or (OF_STORES if words else FIGURES))
    out = Path(options.out) if options.out else LAST if is_whole else PART
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # drivers warn of existing tables
        logging.getLogger().addHandler(logging.NullHandler())  # keeps peers' skips off the terminal
        results = measure(plan, random.Random(options.seed), " ".join(sys.argv[1:]))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(as_json(results))
    results = json.loads(out.read_text())  # in the file's order, so that the page can be written again
    say(f"{out}")
    if is_whole and not options.out:
        report.write(results)
    else:
        print(report.tables(results))
    return 0


def as_json(results: dict[str, Any]) -> str:
    """Indent the JSON, but write each list of numbers on one line."""
    text = json.dumps(results, indent=1, sort_keys=True)
    return re.sub(r"\[[^\[\]{}\"]+\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


def _parser() -> argparse.ArgumentParser:
    figures = "\n".join(f"  {name:<14}{what}" for name, what in FIGURES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare the speed of locks with each store's floor and with other packages, on private servers.",
        epilog=f"figures:\n{figures}\nstores:\n  {', '.join(STORES)}\n\nA whole run takes a quarter of an hour and "
        "rewrites docs/results/benchmarks.md and its\ncharts; a part of it prints its tables.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="WORDS", help="stores and figures, separated by commas: redis,latency")
    parser.add_argument("--rounds", type=int, help="number of rounds")
    parser.add_argument("--quick", action="store_true", help="two minutes; coarse")
    parser.add_argument("--smoke", action="store_true", help="seconds; only to see that it works")
    parser.add_argument("--out", metavar="FILE", help="file for the raw figures, as JSON")
    parser.add_argument("--seed", type=int, default=None, help="seed of the random order")
    return parser


def measure(plan: Plan, rng: random.Random, command: str = "") -> dict[str, Any]:
    began = monotonic()
    say("the machine")
    results: dict[str, Any] = {"meta": machine.describe() | {"command": command, "rounds": plan.rounds, "servers": {}}}
    for figure in plan.figures:
        results[figure] = {}
    _without_a_store(plan, rng, results)
    with ExitStack() as stack:
        processes = None
        if {"contention", "clients"} & set(plan.figures):
            say("starting client processes")
            processes = stack.enter_context(workers.Workers(max(*plan.clients, plan.contending)))
        gc.collect()
        gc.freeze()  # keeps garbage collections of imported modules out of the measurements
        for name in plan.stores:
            if (set(OF_STORES) - {"life"}) & set(plan.figures):
                _of_store(name, plan, rng, results, processes)
    if "life" in plan.figures:
        results["life"] = life.measure(plan)
    results["absent"] = [asdict(one) for one in plan.absent]
    results["meta"]["seconds"] = round(monotonic() - began)
    results["meta"]["load_at_end"] = os.getloadavg()[0]
    return results


def _without_a_store(plan: Plan, rng: random.Random, results: dict[str, Any]) -> None:
    if "imports" in plan.figures:
        say("imports")
        results["imports"] = inprocess.imports(plan, rng)
    if "memory" in plan.figures:
        say("memory")
        results["memory"] = inprocess.memory(plan)
    if "decorators" in plan.figures:
        say("decorators")
        results["decorators"] = inprocess.decorators(plan, rng)


def _of_store(
    name: str, plan: Plan, rng: random.Random, results: dict[str, Any], processes: workers.Workers | None
) -> None:
    try:
        with running(name) as store:
            results["meta"]["servers"][name] = store.version
            _measure_store(store, plan, rng, results, processes)
    except ServerError as error:
        plan.absent.append(Absent(name, "all", "all", str(error)))


def _measure_store(
    store: RunningStore, plan: Plan, rng: random.Random, results: dict[str, Any], processes: workers.Workers | None
) -> None:
    name = store.site.store
    groups = [name, f"{name} async"]
    sync = of_group(name)
    plain = [one for one in sync if ":" not in one.name]  # hold and the decorator send the same requests
    if "latency" in plan.figures:
        for group in groups:
            with plan.reported(group, "latency"):
                results["latency"][group] = latency.figures(latency.measure(store, of_group(group), plan, rng))
    if "wire" in plan.figures and store.pid is not None:
        for group in groups:
            with plan.reported(group, "round trips"):
                results["wire"][group] = wire.measure(store, of_group(group), plan)
    if "cost" in plan.figures and store.pid is not None:
        with plan.reported(name, "server cost"):
            results["cost"][name] = cost.measure(store, plain, plan)
    if "history" in plan.figures and name not in WITHOUT_HISTORY:
        with plan.reported(name, "run history"):
            results["history"][name] = history.measure(store, plan, rng)
    if "contention" in plan.figures and processes is not None:
        with plan.reported(name, f"{plan.contending} processes after one lock"):
            contenders = [one for one in plain if one.skips]
            results["contention"][name] = workers.figures(workers.contention(processes, store, contenders, plan, rng))
    if "clients" in plan.figures and processes is not None:
        compared = [one for one in sync if one.name in ("floor", US, RIVALS_OF_MANY.get(name))]
        for clients in plan.clients:
            with plan.reported(name, f"{clients} clients"):
                found = workers.figures(workers.growth(processes, store, compared, clients, plan, rng))
                results["clients"].setdefault(name, {})[str(clients)] = found
    for figure, grow in (("names", growth.by_names), ("records", growth.by_records)):
        if figure in plan.figures and (figure, name) not in NOT_MEASURED:
            with plan.reported(name, f"growth with {figure}"):
                results[figure][name] = grow(store, plan, rng)


assert set(OF_STORES) <= set(FIGURES)
assert {one.store for one in CONTENDERS} == set(STORES)

if __name__ == "__main__":
    raise SystemExit(main())
